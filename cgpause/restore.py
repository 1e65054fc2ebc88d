"""Undoes pauses, and memory.high of kubepods, with nothing but the cgroup tree: no daemon, no file, no name is needed.

    python -m cgpause.restore [--cgroup-root DIR] [--daemon-only]

The unit runs this as ExecStopPost, so it also runs after SIGKILL, a watchdog kill and an OOM kill of the daemon; it
imports neither typer nor rich. `cgpause resume --all` is the same function.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cgpause import high, logfmt
from cgpause.cgroupfs import Cgroup, find_cgroup_root
from cgpause.errors import CgpauseError, CgroupGoneError, DamagedRecordError, HostError, printable
from cgpause.ledger import Resumed, read_record, resume
from cgpause.logfmt import fields
from cgpause.model import Owner
from cgpause.record import XATTR
from cgpause.systemd import original_from_systemd
from cgpause.tree import kubepods_roots, walk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one paused pod, or of memory.high of a kubepods root; exactly one of the last two is set."""

    path: str
    resumed: Resumed | high.Released | None
    error: CgpauseError | None


def paused_cgroups(root: str, on_error: Callable[[str, CgpauseError], None]) -> Iterator[Cgroup]:
    """Open every pod cgroup that carries a record, in every tree named like kubepods; closed after each step.

    `on_error` is told of what could not be looked at: it may hold a record.
    """
    for path, _ in kubepods_roots(root, on_error):
        try:
            with Cgroup(root, path) as kubepods:
                pods, _ = walk(kubepods, on_error)
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            on_error(path, e)
            continue
        for pod in sorted(pods, key=lambda found: found.cgroup.path):
            try:
                cgroup = Cgroup(root, pod.cgroup.path)
            except CgroupGoneError:
                continue
            except CgpauseError as e:
                on_error(pod.cgroup.path, e)
                continue
            with cgroup:
                try:
                    paused = cgroup.get_xattr(XATTR) is not None
                except CgroupGoneError:
                    continue
                except CgpauseError as e:
                    on_error(pod.cgroup.path, e)
                    continue
                if paused:
                    yield cgroup


def resume_all(root: str, *, owner: Owner | None = None) -> list[Outcome]:
    """Resume every paused pod (of one owner, or of any); one that fails never stops the others.

    memory.high of every kubepods root is the daemon's, and released with its pauses.

    Raises:
        HostError, CgroupGoneError, KernelReadError: the cgroup root itself is missing or unreadable.
    """
    outcomes: list[Outcome] = []
    for cgroup in paused_cgroups(root, lambda path, error: outcomes.append(Outcome(path, None, error))):
        try:
            if owner is not None and not _is_owned_by(cgroup, owner):
                continue
            resumed = resume(cgroup, second_source=original_from_systemd)
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            outcomes.append(Outcome(cgroup.id.path, None, e))
        else:
            if resumed is not None:
                outcomes.append(Outcome(cgroup.id.path, resumed, None))
    if owner is not Owner.MANUAL:
        # Last: while pods come back, it keeps them from filling the node at once.
        outcomes += _release_high(root)
    return outcomes


def _release_high(root: str) -> list[Outcome]:
    outcomes = []
    for kubepods in braked_roots(root):
        try:
            released = high.release(kubepods)
        except CgroupGoneError:
            continue
        except CgpauseError as e:
            outcomes.append(Outcome(kubepods.id.path, None, e))
        else:
            if released is not None:
                outcomes.append(Outcome(kubepods.id.path, released, None))
    return outcomes


def braked_roots(root: str) -> Iterator[Cgroup]:
    """Open every kubepods root whose memory.high is ours; closed after each step."""
    for path, _ in kubepods_roots(root):
        try:
            kubepods = Cgroup(root, path)
        except CgpauseError:
            continue  # gone, or told by `paused_cgroups`, as is what cannot be listed
        with kubepods:
            try:
                braked = kubepods.get_xattr(high.XATTR) is not None
            except CgroupGoneError:
                continue
            except CgpauseError:
                braked = True  # whoever releases it will say what is wrong
            if braked:
                yield kubepods


def _is_owned_by(cgroup: Cgroup, owner: Owner) -> bool:
    try:
        record = read_record(cgroup)
    except DamagedRecordError:
        return True  # nobody can tell, and left paused is worse than resumed
    return record is not None and record.owner is owner


def main(argv: list[str] | None = None) -> int:
    """Resume all; returns the exit code: 0, 1 without a cgroup root, 6 when something could not be restored."""
    parser = argparse.ArgumentParser(prog="cgpause.restore", description="Resume every paused pod.")
    parser.add_argument("--cgroup-root", metavar="DIR")
    parser.add_argument("--daemon-only", action="store_true", help="leave pods that an operator paused as they are")
    options = parser.parse_args(argv)
    logfmt.set_up(verbose=False)
    try:
        root = options.cgroup_root or find_cgroup_root()
        if not os.path.isdir(root):
            raise HostError(f"--cgroup-root {printable(root)}: no such directory")
        outcomes = resume_all(root, owner=Owner.DAEMON if options.daemon_only else None)
    except HostError as e:
        log.error("%s", e)
        return 1
    except CgpauseError as e:
        log.error("%s", e)
        return 6
    for outcome in outcomes:
        if isinstance(outcome.resumed, high.Released):
            log.info(
                "released memory.high %s",
                fields(
                    cgroup=outcome.path,
                    memory_high_to=high.text(outcome.resumed.high_bytes),
                    foreign="yes" if outcome.resumed.foreign else None,
                ),
            )
        elif outcome.resumed is not None:
            log.info("resumed %s", fields(cgroup=outcome.path, cpu_max_to=outcome.resumed.cpu_max))
        else:
            log.error("could not resume %s", fields(cgroup=outcome.path, error=outcome.error))
    return 6 if any(outcome.error is not None for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
