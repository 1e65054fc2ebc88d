"""The frame of a measurement in the guest: its own slice and folder, and one JSON object on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cgpause.core.errors import CgpauseError
from cgpause.kernel.cgroupfs import find_cgroup_root
from cgpause.kernel.process import lock_memory
from lab.bed.daemon_process import OOM_SCORE_ADJ
from lab.bed.stage import own_folder, own_slice
from lab.vm.host import LabError, end_by_signal


@contextlib.contextmanager
def own_bed(name: str) -> Iterator[tuple[Path, Path]]:
    """Make the slice and the folder `cgpause-NAME`, and remove both at the end.

    Raises:
        LabError: this process is not root, or another run uses the machine.
    """
    need_root()
    with (
        own_slice(Path(find_cgroup_root()), f"cgpause-{name}.slice") as parent,
        own_folder(Path(f"/run/cgpause-{name}")) as folder,
    ):
        yield parent, folder


def need_root() -> None:
    """Raise LabError unless this process is root."""
    if os.geteuid() != 0:
        raise LabError("it makes cgroups and network namespaces, so it needs root")


def stay_alive() -> None:
    """Keep this process working when memory runs out: the kernel kills pods first, and its own pages stay in memory.

    Raises:
        LabError: this process is not root, or the pages cannot be locked. Page faults would then stall this process,
            which restarts and times jobs.
    """
    need_root()
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    if refused := lock_memory():
        raise LabError(f"cannot keep our pages in memory: {refused}")


def comes_true(condition: Callable[[], bool], seconds: float, *, poll_s: float = 0.1) -> bool:
    """Wait until `condition` returns True, and ask it every `poll_s`; return False if it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def wait_until(condition: Callable[[], bool], seconds: float, failure: str, *, poll_s: float = 0.1) -> None:
    """Wait until `condition` returns True, and ask it every `poll_s`.

    Raises:
        LabError: it did not within `seconds`; the message is `failure`.
    """
    if not comes_true(condition, seconds, poll_s=poll_s):
        raise LabError(failure)


def print_result(
    name: str, measure: Callable[[], dict[str, Any]], failed: Callable[[dict[str, Any]], object] = lambda _: False
) -> int:
    """Run `measure` and print its result as JSON.

    Return the exit status: 0, 1 if the bed failed, 3 if `failed` returns a true value for the result.
    """
    end_by_signal()
    try:
        result = measure()
    except (LabError, CgpauseError) as e:
        before = "" if e.__context__ is None else f"\nafter: {e.__context__!r}"
        print(f"{name}: {e}{before}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 3 if failed(result) else 0
