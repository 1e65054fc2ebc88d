"""Record one load of the experiment, without cgpause and with it: `python -m lab.measure.timeline` prints JSON.

It needs root in a VM. The recording has the memory use and the paused pods at each sample, and the times at which each
job started, was killed and finished. `lab.pages.timeline_plot` draws timeline.png from it.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.bed.arms import STOCK, Setting
from lab.bed.frame import own_bed, print_result, stay_alive
from lab.bed.kubelet import Event
from lab.bed.stage import calibrate
from lab.bed.trial import Observer, Plan, run_trial
from lab.vm.build import ensure_program

ARMS = ("none", STOCK)
SHARE = 8
OVERSUBSCRIPTION = 1.5
SEED = 1
UNIT_CPU_MS = 200
"""CPU time of the work after each unit."""


@dataclass
class Recorder:
    """An observer of a trial that keeps events and samples as plain values."""

    used: list[tuple[float, int]] = field(default_factory=list)
    """Memory use at each sample, as (seconds, bytes)."""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By job in the order of start: `events` as (kind, seconds), and its pauses `paused` as [from, to] in seconds."""
    _names: dict[str, str] = field(default_factory=dict)
    """Names of jobs by the UID of their pod."""
    _paused: dict[str, list[float]] = field(default_factory=dict)
    """Unfinished pauses by UID, as [from, to] in seconds."""

    def on_event(self, event: Event) -> None:
        """Keep an event of a job."""
        self._names[event.pod.uid] = event.job.name
        job = self.jobs.setdefault(event.job.name, {"events": [], "paused": []})
        job["events"].append((event.kind, round(event.at_s, 2)))

    def on_look(self, at_s: float, used_bytes: int, paused: frozenset[str]) -> None:
        """Keep a sample: a pause begins with the first sample that has it, and ends with the first one that has not."""
        self.used.append((round(at_s, 2), used_bytes))
        for span in self._paused.values():
            span[1] = round(at_s, 2)
        for uid in paused - self._paused.keys():
            self._paused[uid] = [round(at_s, 2), round(at_s, 2)]
            self.jobs[self._names[uid]]["paused"].append(self._paused[uid])
        self._paused = {uid: span for uid, span in self._paused.items() if uid in paused}


def record(arm: str, work: int, worker: Path) -> dict[str, Any]:
    """Run one arm; return its results, its memory use and its jobs for the picture."""
    plan = Plan(setting=Setting.KUBEPODS, share=SHARE, oversubscription=OVERSUBSCRIPTION, arm=arm, seed=SEED, work=work)
    recorder = Recorder()
    with own_bed("timeline") as (parent, folder):
        result = run_trial(plan, parent, folder, worker, Observer(recorder.on_event, recorder.on_look))
    return {**result, "used": recorder.used, "timeline": recorder.jobs}


def record_all() -> dict[str, Any]:
    """Measure the speed of this machine, then run both arms."""
    stay_alive()
    worker = ensure_program("worker")
    work = calibrate(worker, UNIT_CPU_MS)
    return {"kernel": platform.release(), "arms": [record(arm, work, worker) for arm in ARMS]}


if __name__ == "__main__":
    sys.exit(print_result("timeline", record_all))
