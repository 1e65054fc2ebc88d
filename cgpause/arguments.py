"""The command line of the daemon, and the places where it and the CLI look by default."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from cgpause import __version__

DEFAULT_CONFIG = "/etc/cgpause/config.toml"
DEFAULT_LOG_DIR = "/var/log"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    config_path: str
    config_required: bool
    cgroup_root: str | None
    log_dir: str
    dry_run: bool
    verbose: bool


def parse_options(argv: list[str] | None = None) -> Options:
    """Read the command line; exits with 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="cgpause run", description="Pause pods before the OOM killer restarts them.")
    parser.add_argument("--config", metavar="FILE", help=f"configuration (default: {DEFAULT_CONFIG}, if it exists)")
    parser.add_argument("--cgroup-root", metavar="DIR", help="cgroup v2 mount, or a tree laid out like it")
    parser.add_argument(
        "--log-dir", metavar="DIR", default=DEFAULT_LOG_DIR, help="parent of the kubelet's pods/ and containers/ logs"
    )
    parser.add_argument("--dry-run", action="store_true", help="do everything but write")
    parser.add_argument("--verbose", action="store_true", help="log each event too")
    parser.add_argument("--version", action="version", version=f"cgpause {__version__}")
    found = parser.parse_args(argv)
    return Options(
        config_path=found.config or DEFAULT_CONFIG,
        config_required=found.config is not None,
        cgroup_root=found.cgroup_root,
        log_dir=found.log_dir,
        dry_run=found.dry_run,
        verbose=found.verbose,
    )
