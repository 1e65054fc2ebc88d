"""The arms of the experiment: the daemon that each runs beside kubepods, its configuration, its start and its stop.

cgpause's own arms run its daemon. The peers run as Debian packages them, under their own units, in the VM only (the
image has them). An arm's notes list every setting that differs from the package, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cgpause.policy.level import AIRBAG_PCT
from lab.bed.daemon_process import OOM_SCORE_ADJ, DaemonLog, DaemonProcess
from lab.bed.frame import comes_true
from lab.bed.kubepods import MIB, read_keyed, write
from lab.vm.host import REPO, LabError, run_tool
from lab.vm.image import PEERS_WANTED

SLICE = "cgpauselab.slice"
"""Name without a dash: systemd derives a slice's parent from the dashes in its name."""
HIGH_PCT = AIRBAG_PCT
"""memory.high of the arm `memory-high`, in % of the capacity: the same as cgpause's."""
_START_SECONDS = 240


class Setting(StrEnum):
    """The limit that the jobs run into: kubepods' memory.max or the node's memory."""

    KUBEPODS = "kubepods"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Place:
    """The cgroups, folders and sizes that an arm works with."""

    parent: Path
    """The slice; the daemon's cgroup is in it beside kubepods.slice."""
    kubepods: Path
    log_dir: Path
    folder: Path
    """Folder for configurations and logs."""
    capacity_bytes: int
    scale: float
    """Factor on the kubelet's back-off; below 1 it is shorter than on a node."""


class Nobody:
    """An arm without a daemon."""

    cpu_s = 0.0

    def read_log(self) -> DaemonLog:
        """Return an empty log."""
        return DaemonLog()

    def stop(self) -> None:
        """Do nothing: no daemon runs."""


# Kang & Yu's Table 3 [paper]: Mupper, Mlower, interval, T, R and CPUr equal cgpause's defaults; spelled out here.
WATERMARK_CONFIG = """\
policy = "watermark"
mechanism = "throttle"
[watermark]
upper_pct = 90
lower_pct = 80
interval_s = 1
patience = 3
batch = 2
sacrifice = true
[throttle]
quota_us = 1000
[memory_high]
enabled = false
"""
# The paper has neither limits on pauses nor services. settle_s is short because the bed makes a pod in 0.15 s.
_PAUSE = """\
[pause]
max_pause_s = 86400
batch_max_pause_s = 86400
min_run_s = 0
settle_s = 0.25
[[pods]]
match = "*/*"
class = "batch"
"""
STOCK = "stock"
CONFIG = REPO / "systemd" / "config.toml"
"""The shipped configuration file, which sets no option."""


def cgpause_config(arm: str) -> str:
    """Return the configuration of an arm that runs cgpause: the shipped file, or that of the paper's policy."""
    return CONFIG.read_text() if arm == STOCK else WATERMARK_CONFIG + _PAUSE


def _cgpause(arm: str, place: Place) -> DaemonProcess:
    path = place.folder / "config.toml"
    path.write_text(cgpause_config(arm))
    return DaemonProcess(place.parent, place.log_dir, path, place.folder / "cgpause.log")


def _nobody(_arm: str, _place: Place) -> AbstractContextManager[Nobody]:
    return contextlib.nullcontext(Nobody())


def _memory_high(_arm: str, place: Place) -> AbstractContextManager[Nobody]:
    write(place.kubepods / "memory.high", str(int(place.capacity_bytes * HIGH_PCT / 100)))
    return contextlib.nullcontext(Nobody())


def systemctl(*words: str) -> str:
    """Run systemctl and return its output.

    Raises:
        ToolError: systemctl failed.
    """
    return run_tool(["systemctl", *words]).strip()


class Peer:
    """A peer's running unit."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self.pid = int(systemctl("show", "-p", "MainPID", "--value", unit))
        self.cgroup = Path("/sys/fs/cgroup") / systemctl("show", "-p", "ControlGroup", "--value", unit).lstrip("/")

    @property
    def cpu_s(self) -> float:
        """CPU time of the unit's cgroup, in seconds."""
        return read_keyed(self.cgroup / "cpu.stat")["usage_usec"] / 1e6

    def read_log(self) -> DaemonLog:
        """Return an empty log: peers pause no pods."""
        return DaemonLog()

    def stop(self) -> None:
        """Stop the unit."""
        systemctl("stop", self._unit)


Watcher = DaemonProcess | Peer | Nobody
"""A running arm."""


@contextlib.contextmanager
def peer(name: str, place: Place) -> Iterator[Peer]:
    """Start a peer from PEERS under its packaged unit, configured for a place; stop it at the end.

    Raises:
        LabError: this is not the VM, or the peer did not start.
    """
    if not os.environ.get("CGPAUSE_VM"):
        raise LabError(f"{name} is in the VM's image, and runs only there")
    unit, (ready, configure) = f"{name}.service", PEERS[name]
    with configure(place):
        Path(PEERS_WANTED).touch()
        since = time.time()
        try:
            systemctl("start", unit)
            _await_journal(unit, ready, since)
            found = Peer(unit)
            # When the node runs out of memory, the kernel must not kill the peer that could prevent it.
            Path(f"/proc/{found.pid}/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
            yield found
        finally:
            Path(PEERS_WANTED).unlink()
            systemctl("stop", unit)


def _await_journal(unit: str, pattern: str, since: float) -> None:
    command = ["journalctl", "-q", "-o", "cat", "-u", unit, "--since", f"@{math.floor(since)}"]
    if not comes_true(lambda: re.search(pattern, run_tool(command)) is not None, _START_SECONDS):
        raise LabError(f"{unit} did not start:\n{run_tool(command)}")


@contextlib.contextmanager
def _replaced(path: Path, text: str) -> Iterator[None]:
    """Replace the contents of a configuration file; restore the file at the end."""
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


def nohang_config(packaged: str, scale: float) -> str:
    """Return nohang's packaged configuration with its waits for a victim scaled, at least 0.1 s each.

    Raises:
        LabError: the packaged configuration lacks a line that this replaces.
    """
    for key, seconds in (("max_soft_exit_time", 10.0), ("post_soft_action_delay", 3.0)):
        line = f"{key} = {seconds:g}"
        if line not in packaged.splitlines():
            raise LabError(f"nohang's packaged configuration has no line {line!r}")
        packaged = packaged.replace(line, f"{key} = {max(0.1, seconds * scale):g}")
    return packaged


def _nohang(place: Place) -> AbstractContextManager[None]:
    path = Path("/etc/nohang/nohang.conf")
    return _replaced(path, nohang_config(path.read_text(), place.scale))


OOMD_PCT = 95
"""Use at which oomd kills, in % of the capacity: midway between an early kill and the kernel's own OOM kill."""


def oomd_config(kubepods: str, capacity_bytes: int, scale: float) -> dict[str, object]:
    """Return the ruleset "user session protection", with which oomd is packaged, for kubepods.

    The ruleset keeps the pressure detector and the action (kill by size or growth), and scales durations to whole
    seconds. It has a second detector, because without swap there is hardly any pressure before memory is gone. It
    drops the condition of recent reclaim, because without swap nothing is ever reclaimed.
    """

    def seconds(packaged: float) -> str:
        return str(max(1, round(packaged * scale)))

    pressure: dict[str, str] = {"cgroup": kubepods, "resource": "memory", "threshold": "60", "duration": seconds(30)}
    above = {"cgroup": kubepods, "threshold": f"{capacity_bytes * OOMD_PCT // 100 // MIB}M", "duration": "0"}
    action = {
        "cgroup": f"{kubepods}/kubepods-burstable.slice/*/*.scope",
        "post_action_delay": seconds(15),
    }
    return {
        "rulesets": [
            {
                "name": "kubepods protection",
                "detectors": [
                    ["pressure above 60", {"name": "pressure_above", "args": pressure}],
                    [f"use above {OOMD_PCT} %", {"name": "memory_above", "args": above}],
                ],
                "actions": [{"name": "kill_by_memory_size_or_growth", "args": action}],
            }
        ]
    }


@contextlib.contextmanager
def _oomd(place: Place) -> Iterator[None]:
    path = place.folder / "oomd.json"
    kubepods = str(place.kubepods.relative_to("/sys/fs/cgroup"))
    path.write_text(json.dumps(oomd_config(kubepods, place.capacity_bytes, place.scale)))
    place.folder.chmod(0o755)
    with _replaced(Path("/etc/default/oomd"), f'DAEMON_OPTS="--interval 1 --config {path}"\n'):
        yield


SYSTEMD_OOMD_LIMIT_PCT = 20
"""Pressure at which systemd-oomd kills, in %. The kernel's 10 s average cannot be scaled: a stall of 2 s shows as 20 %.
"""
SYSTEMD_OOMD_DURATION_S = 20
"""Debian's duration of pressure in seconds, before scaling; systemd-oomd accepts no less than 1 s."""


@contextlib.contextmanager
def _systemd_oomd(place: Place) -> Iterator[None]:
    conf = Path("/run/systemd/oomd.conf.d/99-lab.conf")
    duration_s = max(1, round(SYSTEMD_OOMD_DURATION_S * place.scale))
    with _replaced(conf, f"[OOM]\nDefaultMemoryPressureDurationSec={duration_s}s\n"):
        # systemd reports only slices that it knows to its oomd; it adopts an existing cgroup.
        limit = f"ManagedOOMMemoryPressureLimit={SYSTEMD_OOMD_LIMIT_PCT}%"
        systemctl("set-property", "--runtime", place.parent.name, "ManagedOOMMemoryPressure=kill", limit)
        systemctl("start", place.parent.name)
        try:
            yield
        finally:
            systemctl("revert", place.parent.name)


PEERS: dict[str, tuple[str, Callable[[Place], AbstractContextManager[None]]]] = {
    "earlyoom": (r"sending SIGTERM when", lambda _: contextlib.nullcontext()),
    "nohang": (r"Monitoring has started", _nohang),
    "oomd": (r"Running oomd", _oomd),
    "systemd-oomd": (r"Started", _systemd_oomd),
}
"""By the name of a peer: a pattern that its journal matches once it runs, and its configuration for a place."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of the experiment, and how to start it."""

    start: Callable[[str, Place], AbstractContextManager[Watcher]]
    notes: tuple[str, ...] = ()
    """Differences from the packaged or default setup."""


_PEER_NOTES = ("packaged unit and configuration", "oom_score_adj -999, like ours")
ARMS: dict[str, Arm] = {
    "none": Arm(_nobody),
    "unlimited": Arm(_nobody, notes=("kubepods has no memory.max, and the node enough",)),
    "watermark": Arm(_cgpause, notes=("Table 3 of the paper", "no limit on pauses, no memory.high, all pods batch")),
    STOCK: Arm(_cgpause, notes=("the shipped configuration file, which sets no option",)),
    "memory-high": Arm(_memory_high, notes=(f"memory.high of kubepods is {HIGH_PCT:g} % of the capacity, no daemon",)),
    "earlyoom": Arm(peer, notes=_PEER_NOTES),
    "nohang": Arm(peer, notes=(*_PEER_NOTES, "but max_soft_exit_time (10 s) and post_soft_action_delay (3 s) scaled")),
    "oomd": Arm(
        peer,
        notes=(
            *_PEER_NOTES,
            'but for kubepods, after the packaged ruleset "user session protection"',
            f"a detector added: use above {OOMD_PCT} % of the capacity; memory_reclaim left out: nothing is reclaimed",
            "looks every 1 s (packaged: 5 s); duration (30 s) and post_action_delay (15 s) scaled, at least 1 s",
        ),
    ),
    "systemd-oomd": Arm(
        peer,
        notes=(
            *_PEER_NOTES,
            f"but ManagedOOMMemoryPressureLimit={SYSTEMD_OOMD_LIMIT_PCT}% (60 %: its average is over 10 s)",
            f"and DefaultMemoryPressureDurationSec ({SYSTEMD_OOMD_DURATION_S} s) scaled",
            "it acts only while pages are scanned; without swap, anonymous memory is not",
        ),
    ),
}
