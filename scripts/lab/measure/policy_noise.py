"""Idle pods whose memory only seems to change: charges in batches for each CPU; no policy may take that for growth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cgpause.config.settings import Config
from cgpause.core.memory_units import MIB
from cgpause.core.model import Sample
from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import SimPod, Step, fill
from cgpause.policy.decide import Decision, State

NOISE_CPUS: Final = (2, 4, 8, 16, 32, 64)
NOISE_PODS: Final = 110
NOISE_S: Final = 7200.0
SETTLED_S: Final = 180.0
"""Time in seconds before counting begins: all pods have started by 80 s. After that the policy expects them to grow on
for a while."""


@dataclass(frozen=True, slots=True)
class Quietness:
    """The result of a run with idle pods, whose memory only seems to change."""

    cpus: int
    seconds: float
    samples: int
    """Number of samples after SETTLED_S."""
    steps_bytes: int
    """Largest change of a pod's memory between two samples, in bytes."""
    pauses: int
    """Number of pauses that began after SETTLED_S."""
    first: int
    """Number of samples after which the policy served a pod first (`ReserveState.first`)."""


def noise(cpus: int, seconds: float = NOISE_S, seed: int = 0) -> Quietness:
    """Simulate idle pods with limits of twice the node's memory, and charges in batches for each of `cpus` CPUs."""
    held, batches = 40 * MIB, cpus * (256 << 10)
    seen: dict[str, int] = {}
    largest = samples = first = 0

    def observe(sample: Sample, _: State, decision: Decision) -> None:
        nonlocal largest, samples, first
        if sample.at_ns < (START_S + SETTLED_S) * 1e9:
            return
        samples += 1
        first += decision.state.reserve.first is not None
        for current, pod in sample.pods:
            largest = max(largest, abs(current - seen.get(pod.uid, current)))
            seen[pod.uid] = current

    def behave() -> Iterator[Step]:
        yield fill(held)
        while True:
            yield Step(cpu_s=0.001, sleep_s=1.0)

    pods = [SimPod(f"idle-{n}", behave, limit_bytes=2 * held + 2 * batches) for n in range(NOISE_PODS)]
    node = SimNode(
        pods,
        config=Config(),
        # 5 % of the memory is left even if the noise of all pods adds up.
        kubepods_max_bytes=int(1.05 * NOISE_PODS * (held + batches)),
        cpus=cpus,
        seed=seed,
    )
    assert node.daemon is not None
    node.daemon.observe, node.daemon.noise = observe, True
    node.run(seconds)
    pauses = sum(since_s >= START_S + SETTLED_S for pod in node.all_pods for since_s, _ in node.pause_spans(pod))
    return Quietness(cpus, seconds, samples, largest, pauses, first)
