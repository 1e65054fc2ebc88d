"""The command line of the daemon."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from cgpause import __version__
from cgpause.core.paths import DEFAULT_CONFIG, DEFAULT_LOG_DIR, DEFAULT_RUN_DIR, DEFAULT_STATE_DIR, Places

_WITH_VALUE = {
    "--config": ("FILE", f"configuration (default: {DEFAULT_CONFIG}, if it exists)"),
    "--cgroup-root": ("DIR", "cgroup v2 mount, or a tree laid out like it"),
    "--log-dir": ("DIR", "parent of the kubelet's pods/ and containers/ logs"),
    "--state-dir": (
        "DIR",
        f"where history and peaks are kept (default: {DEFAULT_STATE_DIR}, and nowhere with --cgroup-root)",
    ),
    "--run-dir": ("DIR", f"where metrics are published (default: {DEFAULT_RUN_DIR}, and nowhere with --cgroup-root)"),
}
_SWITCHES = {"--dry-run": "do everything but write", "--verbose": "log each event too"}


@dataclass(frozen=True, slots=True)
class Options(Places):
    """The parsed command line."""

    dry_run: bool
    verbose: bool

    @property
    def config_shown(self) -> str:
        """Path of the configuration for the log; says so if the file does not exist."""
        file = self.config_file
        return file if os.path.exists(file) else f"{file} does not exist: the defaults"


def daemon_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the daemon's options.

    The unit gives CGPAUSE_OPTIONS to `cgpause.daemon`, `cgpause.daemon.reload` and `cgpause.restore`, so all three use
    this parser. It takes no abbreviations: one that is clear to one program can be ambiguous to another.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)
    for name, (metavar, about) in _WITH_VALUE.items():
        parser.add_argument(name, metavar=metavar, help=about)
    for name, about in _SWITCHES.items():
        parser.add_argument(name, action="store_true", help=about)
    parser.add_argument("--version", action="version", version=f"cgpause {__version__}")
    return parser


def daemon_options(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Options:
    """Return the options that a `daemon_parser` found; exit with 2 on an empty value."""
    for name, value in vars(found).items():
        if value == "":  # usually from an unset variable; an empty cgroup root would mean the node's own
            parser.error(f"--{name.replace('_', '-')} is empty: give it a path, or leave it out")
    return Options(
        cgroup_root=found.cgroup_root,
        config_path=found.config,
        log_dir=found.log_dir or DEFAULT_LOG_DIR,
        state_dir=found.state_dir,
        run_dir=found.run_dir,
        dry_run=found.dry_run,
        verbose=found.verbose,
    )


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the daemon's options with their values, and all other words.

    A clean-up runs with the options alone: a mistake in CGPAUSE_OPTIONS must not leave pods paused.
    """
    kept: list[str] = []
    mistakes: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, has_value, value = word.partition("=")
        if word in _SWITCHES or (name in _WITH_VALUE and has_value and value):
            kept.append(word)
        elif word in _WITH_VALUE and words and words[0] and words[0][0] != "-":
            kept += [word, words.pop(0)]
        else:
            mistakes.append(word)
    return kept, mistakes


def parse_options(argv: list[str] | None = None) -> Options:
    """Return the options on the daemon's command line; exit with 2 on a usage error."""
    parser = daemon_parser("cgpause run", "Pause pods before the OOM killer kills them.")
    return daemon_options(parser, parser.parse_args(argv))
