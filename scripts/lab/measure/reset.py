"""Resets a machine on which pods are paused, as a power failure does, and looks what is left of it.

    python -m lab.measure.reset              on the host: boots a VM, resets it, and looks
    python3 -m lab.measure.reset before      in the VM: installs the package and pauses a pod
    python3 -m lab.measure.reset after       in the VM, booted again: the same pod starts anew

Cgroups, and with them pauses and their records, are gone after it; files of /var are what the disk had. The pod of the
same name must run as it was made, nothing may say that it is paused, and the daemon must be there to pause it again.
Exit status: 0 when all of it is so, 3 when something is not, 125 when the test bed failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cgpause.ledger.record import XATTR
from lab.bed.frame import comes_true
from lab.bed.kubepods import make_uid
from lab.vm.host import REPO, LabError, end_by_signal, run_tool, say
from lab.vm.machine import EXIT_LOST, Vm, try_twice
from lab.vm.payload import GUEST_ROOT
from lab.vm.qemu import Machine

UID = make_uid("reset", 0)
KUBEPODS = Path("/sys/fs/cgroup/kubepods")
POD = KUBEPODS / "burstable" / f"pod{UID}"
LOGS = Path(f"/var/log/pods/default_web_{UID}")
ORIGINAL = "50000 100000"
PATIENCE_S = 120.0


def start_pod() -> None:
    """Make the pod as kubelet does: its cgroups, a running container and its log folder."""
    for folder in (KUBEPODS, KUBEPODS / "burstable", POD):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("+cpu +memory")
    (POD / "cpu.max").write_text(ORIGINAL)
    container = POD / ("c" * 64)
    container.mkdir()
    # With this process's output it would keep the ssh connection open.
    null = subprocess.DEVNULL
    process = subprocess.Popen(["sleep", "infinity"], stdin=null, stdout=null, stderr=null)
    (container / "cgroup.procs").write_text(str(process.pid))
    LOGS.mkdir(parents=True, exist_ok=True)


def ask(*words: str) -> str:
    """Run `cgpause` and return its output.

    Raises:
        ToolError: the command failed.
    """
    return run_tool(["cgpause", *words])


def hold() -> None:
    """Pause the pod.

    Raises:
        LabError: the pod's cpu.max did not change, or it has no record.
    """
    ask("pause", "default/web")
    if (POD / "cpu.max").read_text().strip() == ORIGINAL or XATTR not in os.listxattr(POD):
        raise LabError(f"{POD} is not paused: {(POD / 'cpu.max').read_text()}")


def before() -> None:
    """Install cgpause's package, start the pod and pause it: the state of the node at the power failure."""
    (package,) = Path(GUEST_ROOT, "debs").iterdir()
    subprocess.run(["dpkg", "-i", package], check=True)
    shutil.copy(REPO / "systemd/config.toml", "/etc/cgpause/config.toml")  # that of the package protects every pod
    start_pod()
    hold()
    os.sync()  # the disk's history has this pause for certain, and perhaps the second one
    ask("resume", "default/web")
    hold()


def after() -> list[str]:
    """Start the pod anew after the reset; return a sentence for each fault found."""
    wrong = []
    command = ["systemctl", "is-active", "--quiet", "cgpause"]
    if not comes_true(lambda: subprocess.run(command, check=False).returncode == 0, PATIENCE_S):
        return ["the daemon did not start at boot"]
    if KUBEPODS.exists():
        wrong.append(f"{KUBEPODS} is there after the reset")
    start_pod()
    if (cpu_max := (POD / "cpu.max").read_text().strip()) != ORIGINAL:
        wrong.append(f"cpu.max of the new pod is {cpu_max}")
    (pod,) = json.loads(ask("status", "-ojson"))["pods"]
    if pod["paused"] is not None:
        wrong.append(f"status says of the new pod: {pod['paused']}")
    states = [pause["state"] for pause in json.loads(ask("history", "-ojson"))["pauses"]]
    if not states or "active" in states:
        wrong.append(f"the history has pauses that are {states}")
    hold()
    ask("resume", "default/web")
    if (cpu_max := (POD / "cpu.max").read_text().strip()) != ORIGINAL:
        wrong.append(f"cpu.max is {cpu_max} after pause and resume")
    return wrong


def run_vm() -> int:
    """Boot a VM, run both phases with a reset between them, and return the exit status."""
    with Vm(Machine(cpus=1, resets=True)) as vm:
        for phase in ("before", "after"):
            status = vm.run(["python3", "-m", "lab.measure.reset", phase], timeout=600)
            if status:
                return status
            if phase == "before":
                vm.reset()
    say("nothing of a pause outlives a reset of the machine")
    return 0


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    end_by_signal()
    try:
        match list(argv):
            case []:
                return try_twice(run_vm)
            case ["before"]:
                before()
            case ["after"]:
                wrong = after()
                for one in wrong:
                    say(one)
                return 3 if wrong else 0
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (LabError, OSError, subprocess.CalledProcessError) as e:
        say(str(e))
        return EXIT_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
