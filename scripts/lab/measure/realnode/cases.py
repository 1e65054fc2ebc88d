"""The cases of `scripts/bench realnode`, run in the guest: `python3 -m lab.measure.realnode.cases FILE CASE...`.

A load is timed without and with cgpause. A check pauses pods by hand and tests that the pauses survive an event of the
node, such as a restart of kubelet, or end cleanly with it. The results are written to FILE as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.measure.realnode import node
from lab.measure.realnode.node import Pod
from lab.vm.host import REPO, LabError, say

PATIENCE_S = 240.0
"""Longest time of a round in seconds: several times its duration without stalls."""
PORT = 18080
MIB = 1 << 20
ROUNDS = 6
"""Rounds of the three jobs. One round says little: its time depends on which two jobs run first."""
ATTEMPTS = 3
"""Attempts at a round; see `node.Outcome.lost`."""
WATCH_S = 60.0
"""Time in seconds for which a check watches paused pods after an event: kubelet updates cgroups at least that often."""

Row = dict[str, Any]


def idle_and_large() -> tuple[list[Pod], list[list[Pod]]]:
    """Return seven idle pods, and rounds of three jobs: each needs 40 % of kubepods once, and its limit is 44 %.

    Each round has other workloads, so that cgpause knows none of the jobs.
    """
    idle = [Pod(f"idle-{number}", ["idle"], 64 * MIB) for number in range(7)]
    return idle, [_jobs(f"round-{number}") for number in range(ROUNDS)]


def without_limit() -> tuple[list[Pod], list[list[Pod]]]:
    """Return four rounds of two jobs without a limit; each job needs 75 % of kubepods."""
    need = str(_share(0.75) // MIB)
    return [], [[Pod(f"wide-{number}", ["grow", need]) for number in range(2)] for _ in range(4)]


def probed_service() -> tuple[list[Pod], list[list[Pod]]]:
    """Return a service with an HTTP liveness probe, and rounds of the three jobs of `idle_and_large`.

    The rounds have the same workload, so that cgpause knows its peaks after three of them.
    """
    return [Pod("service", ["serve", str(PORT)], 64 * MIB, port=PORT)], [_jobs("job") for _ in range(ROUNDS)]


def _jobs(name: str) -> list[Pod]:
    need = str(_share(0.40) // MIB)
    return [Pod(f"{name}-{number}", ["grow", need], _share(0.44)) for number in range(3)]


def _share(part: float) -> int:
    return int(node.capacity_bytes() * part) // MIB * MIB


LOADS: dict[str, Callable[[], tuple[list[Pod], list[list[Pod]]]]] = {
    "idle": idle_and_large,
    "unlimited": without_limit,
    "probed": probed_service,
}


def run_load(case: str, *, with_cgpause: bool) -> Row:
    """Run a load and return its figures."""
    arm = "with" if with_cgpause else "without"
    beside, rounds = LOADS[case]()
    node.set_cgpause(on=with_cgpause)
    node.add(beside)
    node.await_running(beside)
    kills = node.oom_kills()
    results: list[Row] = []
    for number, jobs in enumerate(rounds, start=1):
        say(f"{case}, {arm} cgpause, round {number} of {len(rounds)}")
        results.append(_run_round(jobs))
    row = {
        "case": case,
        "arm": arm,
        "done_s": [result["done_s"] for result in results],
        "restarts": [result["restarts"] for result in results],
        "restarts_beside": node.count_restarts(beside),
        "oom_kills": node.oom_kills() - kills,
        "repeated": sum(result["repeated"] for result in results),
        **(node.pauses() if with_cgpause else {}),
    }
    node.remove(beside)
    say(json.dumps(row))
    return row


def _run_round(jobs: Sequence[Pod]) -> Row:
    """Run one round, and run it again with new pods if kubelet lost a job."""
    for repeated in range(ATTEMPTS):
        result = _run_jobs([replace(job, uid=str(uuid.uuid4())) for job in jobs])
        if result is not None:
            return result | {"repeated": repeated}
        say("kubelet lost a job while its container started: the round is run again")
    raise LabError(f"kubelet lost a job in each of {ATTEMPTS} attempts")


def _run_jobs(jobs: Sequence[Pod]) -> Row | None:
    """Run one round until all jobs are done, or for PATIENCE_S; return None if kubelet lost a job."""
    begun = time.time()
    node.add(jobs)
    while True:
        time.sleep(2)
        mine = node.look_at(jobs)
        ends = [outcome.done_at for outcome in mine if outcome.done_at is not None]
        lost = any(outcome.lost for outcome in mine)
        if lost or len(ends) == len(jobs) or time.time() > begun + PATIENCE_S:
            restarts = 0 if lost else node.count_restarts(jobs)
            node.remove(jobs)
            done_s = round(max(ends) - begun) if len(ends) == len(jobs) else None
            return None if lost else {"done_s": done_s, "restarts": restarts}


class Paused:
    """Idle pods that are paused by hand, one with a CPU limit and one without."""

    def __init__(self, grace_s: int = 5) -> None:
        node.set_cgpause(on=True)
        self.pods = [
            Pod("limited", ["idle"], 64 * MIB, cpu_limit="500m", grace_s=grace_s),
            Pod("unlimited", ["idle"], 64 * MIB, grace_s=grace_s),
        ]
        node.add(self.pods)
        node.await_running(self.pods)
        self.originals = [pod.cpu_max for pod in self.pods]
        self.restarts = node.count_restarts(self.pods)
        node.command("cgpause", "pause", *(pod.uid for pod in self.pods))
        self.written = [pod.cpu_max for pod in self.pods]
        if any(old == new for old, new in zip(self.originals, self.written, strict=True)):
            raise LabError(f"not paused: {self.written}")

    def watch(self, seconds: float) -> Row:
        """Watch cpu.max; return how often it changed from the value of the pause, and the longest such time."""
        times, longest, since, lost = 0, 0.0, 0.0, False
        begun = now = time.monotonic()
        while now - begun < seconds:
            time.sleep(0.1)
            now = time.monotonic()
            was_lost, lost = lost, [pod.cpu_max for pod in self.pods] != self.written
            if lost and not was_lost:
                times, since = times + 1, now
            if lost:
                longest = max(longest, now - since + 0.1)
        return {"times_undone": times, "longest_undone_s": round(longest, 1), "paused_at_end": not lost}

    def resume(self) -> Row:
        """Resume and remove the pods; return the row of `look`, taken between both."""
        node.command("cgpause", "resume", *(pod.uid for pod in self.pods))
        row = self.look()
        node.remove(self.pods)
        return row

    def look(self) -> Row:
        """Return whether each cpu.max is its original, the number of records left, and the restarts since the start."""
        return {
            "originals_back": [pod.cpu_max for pod in self.pods] == self.originals,
            "records_left": sum(pod.is_marked() for pod in self.pods),
            "restarts": node.count_restarts(self.pods) - self.restarts,
        }


def daemon_reload() -> Row:
    """Reload systemd's units while pods are paused, then start a pod, which makes systemd write its values again."""
    paused = Paused()
    node.command("systemctl", "daemon-reload")
    another = Pod("another", ["idle"], 64 * MIB)
    node.add([another])
    row = paused.watch(WATCH_S) | paused.resume()
    node.remove([another])
    return row | {"ok": row["paused_at_end"] and _is_clean(row)}


def kubelet_restart() -> Row:
    """Restart kubelet while pods are paused."""
    paused = Paused()
    node.command("systemctl", "restart", "kubelet")
    row = paused.watch(WATCH_S)
    node.await_running(paused.pods)
    row |= paused.resume()
    return row | {"ok": row["paused_at_end"] and _is_clean(row)}


def sigterm() -> Row:
    """Delete paused pods and, for comparison, a running one: each must end by itself within its grace period."""
    running = Pod("running", ["idle"], 64 * MIB, grace_s=30)
    node.add([running])
    node.await_running([running])
    paused = Paused(grace_s=30)
    for pod in (running, *paused.pods):
        (node.OUT / pod.name).unlink(missing_ok=True)
    row: Row = {"grace_s": 30, "running_s": _end([running]), "paused_s": _end(paused.pods)}
    return row | {"ok": row["paused_s"] is not None and row["paused_s"] < row["grace_s"]}


def _end(pods: Sequence[Pod]) -> float | None:
    """Delete pods; return the seconds until the last one ended by itself, None if one was killed."""
    begun = time.time()
    node.remove(pods)
    notes = [node.OUT / pod.name for pod in pods]
    return round(max(note.stat().st_mtime for note in notes) - begun, 1) if all(map(Path.exists, notes)) else None


def uninstall() -> Row:
    """Uninstall cgpause while pods are paused."""
    paused = Paused()
    node.command(REPO / "scripts/install", "--uninstall")
    row = paused.look()
    node.remove(paused.pods)
    node.install()
    return row | {"ok": _is_clean(row)}


def run_check(case: str) -> Row:
    """Run a check and return its figures."""
    say(case)
    row = {"case": case, **CHECKS[case]()}
    say(json.dumps(row))
    return row


def _is_clean(row: Row) -> bool:
    return bool(row["originals_back"] and not row["records_left"] and not row["restarts"])


CHECKS: dict[str, Callable[[], Row]] = {
    "reload": daemon_reload,
    "kubelet": kubelet_restart,
    "sigterm": sigterm,
    "uninstall": uninstall,
}
CASES = (*CHECKS, *LOADS)


def main(argv: Sequence[str]) -> int:
    """Run the named cases and write their figures."""
    file, *cases = argv
    say("starting kubelet")
    node.start_node()
    say("installing cgpause")
    node.install()
    result: dict[str, Any] = {"facts": node.facts(), "loads": [], "checks": []}
    failed = 0
    for case in cases:
        try:
            if case in LOADS:
                result["loads"] += [run_load(case, with_cgpause=on) for on in (False, True)]
            else:
                result["checks"].append(run_check(case))
        except (LabError, OSError) as e:
            say(f"{case} could not be measured: {e}")
            failed = 1
            node.remove_all()
        Path(file).write_text(json.dumps(result))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
