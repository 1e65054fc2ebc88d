"""A node in virtual time: pods that take memory, a kernel and a kubelet that kill, a daemon.

The model, with its sources (docs/architecture.md, kernel facts):

- memory: anonymous memory of pods; no pod exceeds its own limit;
- the OOM killer: a process that needs memory when none is free tries to reclaim some from all cgroups, 18 times, in its
  own CPU time. If no memory becomes free meanwhile, the kernel kills the container with the highest badness
  (oom_badness(): size, plus oom_score_adj thousandths of the capacity, which kubelet sets by request or QoS class);
- kubelet: a killed container starts again from zero after 1, 10, 20, 40 … 300 s; three missed liveness probes (every
  10 s, 1 s each) kill;
- a container does not listen before it has run for `starts_s`: the kernel refuses its probes, paused or not;
- `SimDaemon.noise`: `memory.current` is up to 64 pages per CPU larger than the memory of a pod (MEMCG_CHARGE_BATCH,
  include/linux/memcontrol.h);
- `engine` has CPUs and time, `daemon` the daemon. All random numbers are seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random

from cgpause.config.settings import Config
from cgpause.core.model import CgroupId, Headroom, Pod, QosClass
from cgpause.core.pod_names import workload_of
from cgpause.offline.simulate.daemon import SimDaemon
from cgpause.offline.simulate.engine import START_S, Engine
from cgpause.offline.simulate.kubelet import oom_score_adj
from cgpause.offline.simulate.pods import RECLAIM_S, Probe, SimPod

_NODE_BYTES = 1 << 40
"""Memory of a node, unless kubepods may have more; pods on a node without a limit on kubepods never take so much."""
_REMOVE_S = 0.5
"""Longest time from the kill of a container to the removal of its cgroup."""
_OOM_SCORE_ADJ = {QosClass.BURSTABLE: 500, QosClass.BEST_EFFORT: 1000}
"""kubelet's values for a pod without `request_bytes`; a Burstable one counts as if it requested half the capacity."""


class SimNode:
    """A node with pods under a policy or under none; the pods and the counters have the results."""

    def __init__(
        self,
        pods: Iterable[SimPod],
        *,
        config: Config | None,
        kubepods_max_bytes: int | None = None,
        cpus: float = 2.0,
        make_s: float = 0.0,
        reclaim_s: float = RECLAIM_S,
        seed: int = 0,
    ) -> None:
        """`config` None: no daemon. Pods come at their `start_s`, or by `add`. `load.Machine` explains the costs."""
        self.kubepods_max_bytes = kubepods_max_bytes
        self.admitted: dict[SimPod, None] = {}
        """Present and admitted pods, in order."""
        self.gone: list[SimPod] = []
        self._node_bytes = max(_NODE_BYTES, kubepods_max_bytes or 0)
        capacity_bytes = kubepods_max_bytes or self._node_bytes
        throttled_cpus = min((config or Config()).throttle.cpus, 1.0)  # a pod is one thread
        self.engine = Engine(
            self, cpus=cpus, capacity_bytes=capacity_bytes, throttled_cpus=throttled_cpus, reclaim_s=reclaim_s
        )
        self._random = Random(seed)  # noqa: S311 - repeatable, not secret
        self._make_s = make_s
        self._made_at_s = START_S
        for pod in sorted(pods, key=lambda pod: pod.start_s):
            self.admitted[pod] = None
            self.engine.at(START_S + pod.start_s, partial(self._appear, pod))
        self.daemon = None if config is None else SimDaemon(self, config, self._random)

    # Results

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self.engine.now_s

    @property
    def pods(self) -> list[SimPod]:
        """Pods with a cgroup."""
        return self.engine.pods

    @property
    def all_pods(self) -> list[SimPod]:
        """Every pod that ever had a cgroup."""
        return self.pods + self.gone

    @property
    def oom_kills(self) -> int:
        """Number of kills at the limit of the node or of kubepods."""
        return sum(pod.oom_kills for pod in self.all_pods)

    @property
    def headroom(self) -> Headroom:
        """The present headroom."""
        used = self.engine.used_bytes
        if self.daemon is not None and self.daemon.noise:
            # The kernel returns advance charges before it reclaims or kills.
            used = min(used + sum(pod.charged_bytes for pod in self.pods), self.engine.capacity_bytes)
        return Headroom(
            node_total_bytes=self._node_bytes,
            node_available_bytes=int(self._node_bytes - used),
            kubepods_max_bytes=self.kubepods_max_bytes,
            kubepods_used_bytes=int(used),
        )

    def pause_spans(self, pod: SimPod) -> list[tuple[float, float]]:
        """Return start and end of each pause of a pod; a present pause ends now."""
        return [(since_s, self.now_s if end_s is None else end_s) for since_s, end_s in pod.pauses]

    # Time

    def run(self, seconds: float) -> None:
        """Let a time pass, or run until every pod has finished."""
        end_s = self.now_s + seconds
        while self.now_s < end_s and self.admitted:
            self.engine.step(end_s)
        self.engine.settle_all()

    # kubelet

    def add(self, pod: SimPod) -> None:
        """Admit a pod now."""
        pod.waiting_s += self.now_s - START_S - pod.start_s
        self.admitted[pod] = None
        self._make(pod, self._appear)

    def _make(self, pod: SimPod, then: Callable[[SimPod], None]) -> None:
        """Let kubelet start a container after the earlier ones; this needs one CPU. A pod that ends first gets none."""
        if self._make_s:
            begins_s = max(self._made_at_s, self.now_s)
            self._made_at_s = begins_s + self._make_s
            self.engine.at(begins_s, partial(self.engine.make, busy=True))
            self.engine.at(self._made_at_s, partial(self.engine.make, busy=False))
        self.engine.at_for(pod, max(self._made_at_s, self.now_s), then)

    def _appear(self, pod: SimPod) -> None:
        number = len(self.all_pods) + 1
        pod.facts = Pod(
            cgroup=CgroupId(f"kubepods/{pod.qos.lower()}/pod{pod.name}", number),
            uid=pod.name,
            qos=pod.qos,
            namespace="default",
            name=pod.name,
            memory_max_bytes=pod.limit_bytes,
            protected=pod.protected,
            kind=pod.kind,
            priority=pod.priority,
            workload=workload_of("default", pod.name),
        )
        self.engine.pods.append(pod)
        if pod.lasts_s is not None and pod.lasts_s < math.inf:
            self.engine.at(self.now_s + pod.lasts_s, lambda: self.finish(pod) if pod in self.admitted else None)
        self._start(pod)

    def _start(self, pod: SimPod) -> None:
        pod.steps = pod.behaviour()
        pod.epoch += 1
        pod.cpu_s = 0.0
        pod.started_s = self.now_s
        pod.missed_in_a_row = 0
        if self.daemon is not None:
            self.daemon.containers_changed(pod)
        if pod.probe is not None:
            first_s = pod.probe.initial_delay_s + pod.probe.period_s * self._random.random()
            self._probe_at(pod, pod.probe, self.now_s + first_s)
        self.engine.next_step(pod)

    def kill(self, pod: SimPod, *, starved: bool = False) -> None:
        """Kill a container, `starved` if for lack of memory on the node; it restarts after the back-off."""
        pod.steps = None
        pod.epoch += 1
        self.engine.drop(pod)
        pod.lost_cpu_s += pod.cpu_s
        pod.cpu_s = 0.0
        pod.probe_open = False
        ran_s = self._stop(pod)
        if pod.facts is not None:
            pod.facts = replace(pod.facts, no_program=True)
        remove_s = _REMOVE_S * pod.backoff.scale * self._random.random()
        if self.daemon is not None:
            self.engine.at(self.now_s + remove_s, partial(self.daemon.container_ended, pod, starved=starved))
        backoff_s = pod.backoff.after_kill(ran_s)
        pod.waiting_s += backoff_s
        pod.backoff_until_s = self.now_s + backoff_s
        self.engine.at_for(pod, pod.backoff_until_s, lambda pod: self._make(pod, self._start))

    def _stop(self, pod: SimPod) -> float:
        """Count the run of a container that ends now; return its length."""
        if pod.started_s is None:
            return 0.0
        ran_s = self.now_s - pod.started_s
        pod.running_s += ran_s
        pod.runs.append((pod.started_s, self.now_s))
        pod.started_s = None
        return ran_s

    def finish(self, pod: SimPod) -> None:
        """Remove a finished pod."""
        pod.finished_s = self.now_s - START_S
        if self.daemon is not None:
            self.daemon.finish(pod)
        pod.steps = None
        pod.epoch += 1
        self.engine.remove(pod)
        pod.facts = None
        self._stop(pod)
        self.gone.append(pod)
        del self.admitted[pod]

    def _probe_at(self, pod: SimPod, probe: Probe, at_s: float) -> None:
        def ask(pod: SimPod) -> None:
            self._probe_at(pod, probe, at_s + probe.period_s)
            if not self.is_up(pod):
                if self.daemon is not None:
                    self.daemon.probe_refused(pod)
                self._miss(pod, probe)
            elif pod.mechanism is None:
                self.answer(pod)
            else:
                pod.probe_open = True
                self.engine.at_for(pod, self.now_s + probe.timeout_s, time_out)

        def time_out(pod: SimPod) -> None:
            if pod.probe_open:
                pod.probe_open = False
                self._miss(pod, probe)

        self.engine.at_for(pod, at_s, ask)

    def is_up(self, pod: SimPod) -> bool:
        """Return True if a container has run, without pauses, for as long as it needs to start (`KindSigns.ran_s`)."""
        if pod.started_s is None or not pod.starts_s:
            return pod.started_s is not None
        paused_s = sum(max(end_s - max(since_s, pod.started_s), 0.0) for since_s, end_s in self.pause_spans(pod))
        return self.now_s - pod.started_s - paused_s >= pod.starts_s

    def answer(self, pod: SimPod) -> None:
        """Let a pod answer its probe."""
        pod.probe_open = False
        pod.answered += 1
        pod.missed_in_a_row = 0

    def _miss(self, pod: SimPod, probe: Probe) -> None:
        pod.missed += 1
        pod.missed_in_a_row += 1
        pod.worst_missed_in_a_row = max(pod.worst_missed_in_a_row, pod.missed_in_a_row)
        if pod.missed_in_a_row >= probe.failures:
            pod.probe_kills += 1
            self.kill(pod)

    # The kernel

    def kill_one(self) -> None:
        """Kill the container with the highest badness."""
        victim = max((pod for pod in self.pods if self.engine.used(pod) > 0), key=self._badness)
        victim.oom_kills += 1
        self.kill(victim, starved=True)

    def _badness(self, pod: SimPod) -> float:
        """Return oom_badness() in bytes."""
        adj = _OOM_SCORE_ADJ[pod.qos]
        if pod.request_bytes is not None:
            adj = oom_score_adj(pod.request_bytes, int(self.engine.capacity_bytes))
        return self.engine.used(pod) + adj * self.engine.capacity_bytes / 1000
