"""Measures how a paused pod answers kubelet's probes: `python3 -m lab.measure.liveness`, in the guest, prints JSON.

It needs root and cgroup v2, on a host or in a VM. One pod has its own network namespace and runs a service (service.c).
Probes reach it by HTTP, by TCP and by starting a process in its container (exec), while it runs, is throttled to 1 % of
a CPU, or is frozen; running and throttled also with a service that takes memory all the time. No daemon runs: the
results are effects of the kernel's two mechanisms alone.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from lab.bed.frame import own_bed, print_result, wait_until
from lab.bed.kubepods import MIB, Container, Kubepods, PodSpec, make_uid, spawn_into, write
from lab.bed.services import PORT, Namespaces, Prober
from lab.vm.build import ensure_program
from lab.vm.host import say

TIMEOUT_MS: Final = 1000
"""Kubernetes' default timeoutSeconds."""
PERIOD_MS: Final = 1300
"""Time between probes. It is not a multiple of the quota's period, or every probe would meet the same moment of it."""
PROBES: Final = 20
"""Number of probes of each kind in each state."""
NETWORK: Final = ("http", "tcp")
EXEC: Final = "exec"
_HOLD_BYTES = 8 * MIB
_SWING_BYTES = 64 * MIB
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class State:
    """A way to pause the pod, by default none, and the work of its service meanwhile."""

    name: str
    file: str = "cpu.max"
    value: str = "max 100000"
    back: str = "max 100000"
    busy: bool = False


STATES: Final = (
    State("running"),
    State("running, busy", busy=True),
    State("throttled", value="1000 100000"),
    State("throttled, busy", value="1000 100000", busy=True),
    State("frozen", "cgroup.freeze", "1", "0"),
)


class Answer(NamedTuple):
    """One probe's outcome."""

    answered: bool
    took_us: int


def add_up(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Return the summary of these answers; times in ms, of answered probes only."""
    times_ms = [answer.took_us / 1000 for answer in answers if answer.answered]
    return {
        "sent": len(answers),
        "answered": len(times_ms),
        "median_ms": round(statistics.median(times_ms), 1) if times_ms else None,
        "longest_ms": round(max(times_ms), 1) if times_ms else None,
    }


def read_answer(line: str) -> Answer:
    """Parse a line of the prober."""
    verdict, took_us = line.split()
    return Answer(verdict == "answered", int(took_us))


@dataclass(frozen=True, slots=True)
class Stage:
    """The pod, its service and its probes."""

    tree: Kubepods
    namespaces: Namespaces
    program: Path
    pod: PodSpec

    def serve(self, *, busy: bool) -> Container:
        """Start the service; a busy one takes and frees memory all the time."""
        swing, step_ms = (_SWING_BYTES, 1) if busy else (0, 1000)
        argv = (str(self.program), "serve", str(PORT), *map(str, (_HOLD_BYTES, swing, step_ms)))
        return self.tree.start_container(self.pod, self.namespaces.enter(self.pod.name, *argv))

    def stop(self, container: Container) -> None:
        """End the service."""
        signal.pidfd_send_signal(container.pidfd, signal.SIGKILL)
        self.tree.remove_container(self.pod, container)

    def ask(self, kind: str, count: int) -> list[Answer]:
        """Send `count` probes, by HTTP or TCP, and return their answers."""
        numbers = (PORT, 0, PERIOD_MS, TIMEOUT_MS)
        prober = Prober(self.namespaces.enter(self.pod.name, str(self.program), "probe", kind, *map(str, numbers)))
        answers: list[Answer] = []
        try:
            while len(answers) < count:
                answers += [read_answer(line) for line in prober.lines()]
                time.sleep(0.05)
        finally:
            prober.close()
        return answers[:count]

    def run_in(self, container: Container, count: int) -> list[Answer]:
        """Start a program in the container `count` times, as an exec probe does; return the answers."""
        answers = []
        for _ in range(count):
            started_ns = time.monotonic_ns()
            pid, pidfd = spawn_into(container.scope, ("true",))
            try:
                ended = bool(select.select([pidfd], [], [], TIMEOUT_MS / 1000)[0])
                took_us = (time.monotonic_ns() - started_ns) // 1000
                if not ended:  # a runtime does the same; SIGKILL ends frozen processes, too
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.waitpid(pid, 0)
                os.close(pidfd)
            answers.append(Answer(ended, took_us))
            time.sleep(PERIOD_MS / 1000 - min(took_us / 1e6, PERIOD_MS / 1000))
        return answers

    def await_answer(self) -> None:
        """Wait until the service listens.

        Raises:
            LabError: the service did not answer in time.
        """
        failure = f"no answer from a pod that runs within {_READY_S:.0f} s"
        wait_until(lambda: self.ask(NETWORK[0], 1)[0].answered, _READY_S, failure, poll_s=0)


def measure(stage: Stage, count: int, states: Sequence[State]) -> list[dict[str, Any]]:
    """Send every kind of probe in each of these states; return a summary for each."""
    asked = []
    for state in states:
        container = stage.serve(busy=state.busy)
        stage.await_answer()
        file = stage.tree.pod_path(stage.pod) / state.file
        write(file, state.value)
        for kind in (*NETWORK, EXEC):
            answers = stage.run_in(container, count) if kind == EXEC else stage.ask(kind, count)
            asked.append({"state": state.name, "kind": kind, **add_up(answers)})
            say(f"{asked[-1]}")
        write(file, state.back)
        stage.await_answer()  # the service must work again after any kind of pause
        stage.stop(container)
    return asked


def run(count: int, states: Sequence[State] = STATES) -> list[dict[str, Any]]:
    """Make the pod in its own slice and folder, and measure."""
    worker, program = ensure_program("worker"), ensure_program("service")
    pod = PodSpec("web", make_uid("liveness"), 128 * MIB, container="server")
    with (
        own_bed("liveness") as (parent, folder),
        Kubepods(parent, folder / "log", 256 * MIB, Namespaces.sandbox(worker)) as tree,
    ):
        namespaces = Namespaces(tree, folder / "netns")
        tree.add_pod(pod)
        namespaces.link(pod)
        return measure(Stage(tree, namespaces, program, pod), count, states)


def measure_all() -> dict[str, Any]:
    """Return the result for JSON."""
    return {"timeout_ms": TIMEOUT_MS, "kernel": platform.release(), "asked": run(PROBES)}


if __name__ == "__main__":
    sys.exit(print_result("liveness", measure_all))
