"""Measures how long container runtimes need to make a container: `python3 -m lab.measure.runtimes` prints JSON.

It needs root in a VM with crun and runc. The daemon must not pause a pod while a runtime makes a container in it: it
spares the pod from the creation of the container's cgroup until it sees the program (`pods/programs.py`), or for
`tracked.SPARED_S` and while it sees a runtime there. Here, as in the daemon, inotify reports that creation; the
container's program writes the time at which it runs. The container is started as soon as it is created. The work of
kubelet and of a runtime's own daemon is not part of the time.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from inotify_simple import INotify, flags

from lab.bed.frame import own_bed, print_result, wait_until
from lab.bed.kubepods import enable_controllers, make_cgroup, scope_name
from lab.vm.host import LabError, run_tool, say

RUNTIMES: Final = ("crun", "runc")
STARTS: Final = 20
_PROGRAM: Final = "date +%s%N; exec sleep 1000"
_WAIT_S: Final = 60


def make_bundle(runtime: str, folder: Path, cgroups_path: str, command: str) -> None:
    """Make an OCI bundle that runs a shell's command, with a bind mount of this machine's root as its root."""
    run_tool([runtime, "spec"], cwd=folder)
    config = folder / "config.json"
    spec = json.loads(config.read_text())
    spec["root"] = {"path": "rootfs", "readonly": True}
    spec["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", command]}
    spec["linux"]["cgroupsPath"] = cgroups_path
    config.write_text(json.dumps(spec))
    # The mount comes last: after a failure before it, the folder can be removed without the machine's files in it.
    (folder / "rootfs").mkdir()
    run_tool(["mount", "--bind", "/", folder / "rootfs"])


def start_once(runtime: str, bundle: Path, pod: Path) -> float:
    """Create, start and delete a container; return the ms from its cgroup's creation to the start of its program.

    Raises:
        LabError: the runtime failed, or something took more than a minute.
    """
    out = bundle / "out"
    with INotify() as inotify, out.open("wb") as file:
        inotify.add_watch(str(pod), flags.CREATE)
        create = [runtime, "create", "--bundle", str(bundle), "measured"]
        with subprocess.Popen(create, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as creating:
            if not inotify.read(timeout=_WAIT_S * 1000):
                raise LabError(f"{runtime} made no cgroup in {_WAIT_S} s")
            made_ns = time.time_ns()
        try:
            if creating.returncode:
                raise LabError(f"{runtime} create failed: {out.read_text()}")
            run_tool([runtime, "start", "measured"])
            failure = f"the program that {runtime} started said nothing in {_WAIT_S} s"
            wait_until(lambda: out.read_text().endswith("\n"), _WAIT_S, failure, poll_s=0.01)
        finally:
            run_tool([runtime, "delete", "--force", "measured"])
    return (int(out.read_text()) - made_ns) / 1e6


def measure(runtime: str, parent: Path) -> dict[str, Any]:
    """Return a runtime's version and its times in ms, in the order of the starts.

    Raises:
        LabError: the runtime is missing or failed.
    """
    if shutil.which(runtime) is None:
        raise LabError(f"there is no {runtime} on this machine")
    pod = parent / f"{runtime}.slice"
    make_cgroup(pod)
    # Not in the folder of the bed: the next run removes its remains, and a bind mount of / would be among them.
    with tempfile.TemporaryDirectory(prefix="cgpause-runtimes.") as name:
        bundle = Path(name)
        make_bundle(runtime, bundle, f"/{pod.relative_to(parent.parent)}/{scope_name('0' * 64)}", _PROGRAM)
        try:
            times = [start_once(runtime, bundle, pod) for _ in range(STARTS)]
        finally:
            run_tool(["umount", bundle / "rootfs"])
    say(f"{runtime}: {min(times):.0f} to {max(times):.0f} ms")
    version = run_tool([runtime, "--version"]).partition("\n")[0]
    return {"runtime": version, "times_ms": [round(time_ms, 1) for time_ms in times]}


def measure_all() -> dict[str, Any]:
    """Measure every runtime."""
    with own_bed("runtimes") as (parent, _):
        enable_controllers(parent)
        found = [measure(runtime, parent) for runtime in RUNTIMES]
    return {"kernel": platform.release(), "runtimes": found}


if __name__ == "__main__":
    sys.exit(print_result("runtimes", measure_all))
