"""`cgpause condition`: the state of this node for node-problem-detector, which makes it a condition of the Node.

The protocol of its custom plugins (https://github.com/kubernetes/node-problem-detector, custom_plugin_monitor.md): exit
code 0 if all is well, 1 if there is a problem, 2 if that is unknown, and a message on stdout, of which it keeps 80
bytes. It runs the command every half minute, so this module imports neither typer nor rich; as a program of its own
(`python -m cgpause.cli.condition`) it takes a third of the time.
"""

from __future__ import annotations

import argparse
import os
import sys
from enum import IntEnum
from typing import NamedTuple

from cgpause.core import durations
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, CgroupGoneError, DamagedRecordError, printable
from cgpause.core.model import About, Owner, PauseRecord
from cgpause.core.paths import DEFAULT_LOG_DIR, metrics_path
from cgpause.kernel.cgroupfs import find_cgroup_root
from cgpause.kernel.find_daemon import DaemonState, find_daemon
from cgpause.ledger.ledger import read_record
from cgpause.pods.discover import paused_cgroups
from cgpause.pods.names import read_names
from cgpause.telemetry import published

_MOST_BYTES = 80
"""node-problem-detector's default for max_output_length."""


class Status(IntEnum):
    """The exit codes of the protocol."""

    OK = 0
    PROBLEM = 1
    UNKNOWN = 2


class Condition(NamedTuple):
    """The answer to one question."""

    status: Status
    message: str


_RUNS = Condition(Status.OK, "the daemon runs")
"""Also for a dry run: it pauses no pod, so that no pod can be left paused. It publishes nothing."""


class _Found(NamedTuple):
    """The records on this node."""

    paused: list[tuple[str, PauseRecord]]
    """Paused pods, those paused longest first."""
    damaged: list[str]


def read_condition(about: About, root: str | None, log_dir: str, metrics_file: str | None) -> Condition:
    """Return one condition of this node; an error makes it unknown."""
    try:
        root = root or find_cgroup_root()
        if not os.path.isdir(root):
            return Condition(Status.UNKNOWN, _cut(f"no such directory: {root}"))
        found = _records(root, log_dir)
        status, message = _paused(found) if about is About.PAUSED else _unsafe(found, root, metrics_file)
    except CgpauseError as e:
        status, message = Status.UNKNOWN, str(e)
    return Condition(status, _cut(message))


def _records(root: str, log_dir: str) -> _Found:
    """Return the records of all pods.

    Raises:
        CgpauseError: a cgroup cannot be read, so it may have a record.
    """

    def fail(_path: str, error: CgpauseError) -> None:
        raise error

    names = None
    paused, damaged = [], []
    for pod, cgroup in paused_cgroups(root, fail):
        names = read_names(log_dir).pods if names is None else names
        name = names.get(pod.uid)
        label = pod.uid if name is None else f"{name.namespace}/{name.name}"
        try:
            record = read_record(cgroup)
        except CgroupGoneError:
            continue
        except DamagedRecordError:
            damaged.append(label)
            continue
        if record is not None:
            paused.append((label, record))
    return _Found(sorted(paused, key=lambda one: one[1].since_ns), damaged)


def _paused(found: _Found) -> Condition:
    at_ns = now_ns()
    shown = [f"{label} ({durations.shown((at_ns - record.since_ns) / 1e9)})" for label, record in found.paused]
    shown += [f"{label} (damaged record)" for label in found.damaged]
    if not shown:
        return Condition(Status.OK, "no pod is paused")
    return Condition(Status.PROBLEM, f"{_pods(len(shown))} paused: {', '.join(shown)}")


def _unsafe(found: _Found, root: str, metrics_file: str | None) -> Condition:
    if found.damaged:
        count = _pods(len(found.damaged))
        return Condition(Status.PROBLEM, f"{count} with a damaged record: {', '.join(found.damaged)}")
    daemon = find_daemon(root).state
    if daemon is DaemonState.STOPPED:
        left = sum(record.owner is Owner.DAEMON for _, record in found.paused)
        stay = f"; {_pods(left)} left paused (cgpause resume --all)" if left else ""
        return Condition(Status.PROBLEM, f"the daemon does not run{stay}")
    if metrics_file is not None and os.path.exists(metrics_file):
        return _published(metrics_file)
    if daemon is DaemonState.UNKNOWN:
        return Condition(Status.UNKNOWN, "cannot find out whether the daemon runs (root, host's PID namespace?)")
    return _RUNS


def _published(metrics_file: str) -> Condition:
    """Return the condition that the published figures show.

    Raises:
        PublishedError: they cannot be read.
    """
    stamp, text = published.read(metrics_file)
    if not stamp.is_fresh(now_ns()):
        return Condition(Status.PROBLEM, "the daemon publishes nothing any more: does it hang?")
    lost = published.figure(text, "cgpause_damaged_pods")
    if lost:
        return Condition(Status.PROBLEM, f"{_pods(int(lost))} cannot be resumed: the record is missing or damaged")
    if published.figure(text, 'cgpause_degraded{what="memory"}'):
        return Condition(Status.PROBLEM, "the daemon cannot read the node's memory, and pauses no pod")
    return _RUNS


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _cut(message: str) -> str:
    """Return a message as one line of at most 80 bytes of ASCII."""
    text = printable(message).encode("ascii", "replace").decode()
    return text if len(text) <= _MOST_BYTES else f"{text[: _MOST_BYTES - 3]}..."


def main(argv: list[str] | None = None) -> int:
    """Print one condition; return the exit code."""
    parser = argparse.ArgumentParser(prog="cgpause condition", description="Print one condition of this node.")
    parser.add_argument("about", choices=list(About), metavar="|".join(About))
    parser.add_argument("--cgroup-root", metavar="DIR")
    parser.add_argument("--log-dir", metavar="DIR", default=DEFAULT_LOG_DIR)
    parser.add_argument("--run-dir", metavar="DIR")
    found = parser.parse_args(argv)
    file = metrics_path(found.run_dir, found.cgroup_root)
    status, message = read_condition(About(found.about), found.cgroup_root, found.log_dir, file)
    sys.stdout.write(f"{message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
