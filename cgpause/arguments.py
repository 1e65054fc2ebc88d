"""The command line of the daemon, and the places where it and the CLI look by default."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from cgpause import __version__, history, published

DEFAULT_CONFIG = "/etc/cgpause/config.toml"
DEFAULT_LOG_DIR = "/var/log"
DEFAULT_STATE_DIR = "/var/lib/cgpause"
"""Made by the installer or package; the daemon runs without it, and never makes it."""
DEFAULT_RUN_DIR = "/run/cgpause"
"""Made by systemd-tmpfiles at each boot; the daemon does without as well."""
TRACE_FILE = "trace.jsonl.gz"
LEARNED_FILE = "learned.json"
DEFAULT_LISTEN = "127.0.0.1:10912"
"""Beyond 9100 to 9999, which exporters share and have filled, and not in the way of anything of Kubernetes'."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    config_path: str
    config_required: bool
    cgroup_root: str | None
    log_dir: str
    history_path: str | None
    """Where the history is kept; None: nowhere."""
    learned_path: str | None
    """Where what was learned of workloads is kept; None: nowhere."""
    trace_path: str | None
    """Where the trace is kept, if that is configured; None: nowhere."""
    metrics_path: str | None
    """Where figures are published, if that is configured; None: nowhere."""
    dry_run: bool
    verbose: bool

    @property
    def config_shown(self) -> str:
        """The configuration for the log, which says where there is none."""
        return (
            self.config_path if os.path.exists(self.config_path) else f"{self.config_path} does not exist: the defaults"
        )


def history_path(state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Where the history is; that of the node is about the node's own tree, and no other."""
    folder = _state_dir(state_dir, cgroup_root)
    return None if folder is None else history.path_in(folder)


def learned_path(state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Return where the daemon saves what it learns; like the history."""
    folder = _state_dir(state_dir, cgroup_root)
    return None if folder is None else os.path.join(folder, LEARNED_FILE)


def trace_path(state_dir: str | None, cgroup_root: str | None) -> str | None:
    """Where the daemon's trace is; like the history."""
    folder = _state_dir(state_dir, cgroup_root)
    return None if folder is None else os.path.join(folder, TRACE_FILE)


def _state_dir(state_dir: str | None, cgroup_root: str | None) -> str | None:
    return DEFAULT_STATE_DIR if state_dir is None and cgroup_root is None else state_dir


def metrics_path(run_dir: str | None, cgroup_root: str | None) -> str | None:
    """Where the figures are published; like the history, of the node's own tree only."""
    if run_dir is None:
        run_dir = DEFAULT_RUN_DIR if cgroup_root is None else None
    return None if run_dir is None else published.path_in(run_dir)


def daemon_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the daemon's options.

    The unit gives CGPAUSE_OPTIONS to the daemon, to `cgpause.reload` and to `cgpause.restore`, so all three use it. It
    takes no abbreviations: an option of one of them could make one ambiguous.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help=f"configuration (default: {DEFAULT_CONFIG}, if it exists)")
    parser.add_argument("--cgroup-root", metavar="DIR", help="cgroup v2 mount, or a tree laid out like it")
    parser.add_argument(
        "--log-dir", metavar="DIR", default=DEFAULT_LOG_DIR, help="parent of the kubelet's pods/ and containers/ logs"
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help=f"where history and peaks are kept (default: {DEFAULT_STATE_DIR}, and nowhere with --cgroup-root)",
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help=f"where figures are published (default: {DEFAULT_RUN_DIR}, and nowhere with --cgroup-root)",
    )
    parser.add_argument("--dry-run", action="store_true", help="do everything but write")
    parser.add_argument("--verbose", action="store_true", help="log each event too")
    parser.add_argument("--version", action="version", version=f"cgpause {__version__}")
    return parser


def daemon_options(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Options:
    """Return what a `daemon_parser` found; exits with 2 on an empty value."""
    for name, value in vars(found).items():
        if value == "":  # as an unset variable leaves it; of a cgroup root it would mean the node's own
            parser.error(f"--{name.replace('_', '-')} is empty: give it a path, or leave it out")
    return Options(
        config_path=found.config or DEFAULT_CONFIG,
        config_required=found.config is not None,
        cgroup_root=found.cgroup_root,
        log_dir=found.log_dir,
        history_path=history_path(found.state_dir, found.cgroup_root),
        learned_path=learned_path(found.state_dir, found.cgroup_root),
        trace_path=trace_path(found.state_dir, found.cgroup_root),
        metrics_path=metrics_path(found.run_dir, found.cgroup_root),
        dry_run=found.dry_run,
        verbose=found.verbose,
    )


def parse_options(argv: list[str] | None = None) -> Options:
    """Read the command line of the daemon; exits with 2 on a usage error."""
    parser = daemon_parser("cgpause run", "Pause pods before the OOM killer restarts them.")
    return daemon_options(parser, parser.parse_args(argv))
