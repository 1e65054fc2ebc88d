"""A kubelet for a queue of jobs: it admits a pod when its request fits, runs its container and restarts a killed one.

`Kubelet` runs kubelet's rules (`cgpause.offline.simulate.kubelet`: back-off, requests, oom_score_adj) on a `Kubepods`
tree. It sleeps in poll(2) on its children's pidfds and its next timer. As on a node, a pod has its cgroup some time
before it has a name (its log folder), and its sandbox before its container.
"""

from __future__ import annotations

import heapq
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cgpause.offline.simulate.kubelet import Backoff, oom_score_adj, request_bytes
from lab.bed.kubepods import Container, Kubepods, PodSpec, Tier, make_uid, read_keyed
from lab.vm.host import LabError

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit code of a container that ended at SIGTERM; kubelet restarts it like a killed one."""
BEST_EFFORT_OOM_SCORE_ADJ: Final = 1000
"""kubelet's besteffortOOMScoreAdj (pkg/kubelet/qos/policy.go)."""
_LINGER_S: Final = 5.0
"""Longest delay in seconds before the pod of a finished job is removed; `may_remove` can end it earlier."""
_LINGER_POLL_S: Final = 0.1
_VOLUMES_S: Final = 0.3
"""From a pod's cgroup to its log folder and sandbox: kubelet waits for the pod's volumes, at least for one retry
(podAttachAndMountRetryInterval in pkg/kubelet/volumemanager/volume_manager.go)."""
_SANDBOX_S: Final = 0.5
"""From there to the container: the runtime sets up the pod's network, and creates the container. An estimate."""
START_S: Final = _VOLUMES_S + _SANDBOX_S


def count_oom_kills(memory_events: dict[str, int]) -> int:
    """Return the OOM kills in a `memory.events`: group kills, if the kernel counts them.

    `oom_kill` counts processes, and counts the chosen process of a group twice: when chosen and with its group
    (mm/oom_kill.c, oom_kill_process; measured on 6.1 and 6.12). `oom_group_kill` (kernel 5.17) counts each group once,
    and all our containers are groups.
    """
    return memory_events.get("oom_group_kill", memory_events.get("oom_kill", 0))


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the queue."""

    name: str
    limit_bytes: int | None
    argv: tuple[str, ...]
    cpu_max: str = "max 100000"
    request_bytes: int | None = None
    """Request in bytes. None: the limit divided by the oversubscription, and 0 without a limit."""
    start_s: float = 0.0
    """Earliest admission, in seconds into the run. It also delays the jobs behind it in the queue."""
    tier: Tier = Tier.BURSTABLE


class EventKind(StrEnum):
    """Kind of an event for `on_event`."""

    ADMITTED = "admitted"
    """The pod has a cgroup and nothing else."""
    NETWORKED = "networked"
    """The pod's sandbox runs."""
    STARTED = "started"
    KILLED = "killed"
    FINISHED = "finished"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job's pod, `at_s` seconds into the run."""

    kind: EventKind
    at_s: float
    job: Job
    pod: PodSpec
    settled: bool = True
    """REMOVED only: True if `may_remove` agreed, False if the wait for it timed out."""


@dataclass(slots=True)
class JobTimes:
    """Times and restarts of one job. Waiting: for admission or in back-off. Running: until its end or a kill."""

    waiting_s: float = 0.0
    running_s: float = 0.0
    restarts: int = 0
    cpu_s: float = 0.0
    """CPU time of all its runs in seconds; `lost_cpu_s` is the part in killed runs."""
    lost_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run."""

    finished: int
    total_s: float
    restarts: int
    oom_kills: int
    """Containers that the kernel killed for lack of memory; see `count_oom_kills`."""
    lost_cpu_s: float
    jobs: dict[str, JobTimes]


@dataclass(slots=True)
class _Running:
    job: Job
    pod: PodSpec
    backoff: Backoff
    times: JobTimes
    since_s: float = 0.0
    container: Container | None = None
    has_started: bool = False
    """Whether a container was started in the pod."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Parameters of a kubelet."""

    oversubscription: float
    scale: float
    """Factor on kubelet's times: back-off, and the steps in which a pod starts."""
    tick_s: float = 0.5
    """Interval between calls of `on_tick`, in seconds."""


@dataclass(slots=True)
class Progress:
    """State of a run: its time in seconds, and numbers of jobs and restarts."""

    at_s: float = 0.0
    total: int = 0
    waiting: int = 0
    starting: int = 0
    running: int = 0
    backing_off: int = 0
    finished: int = 0
    restarts: int = 0


class Kubelet:
    """A kubelet for one run on a tree. It leaves pods that still run after `run` for the tree to remove."""

    def __init__(
        self,
        tree: Kubepods,
        policy: Policy,
        *,
        on_event: Callable[[Event], None] = lambda _: None,
        on_tick: Callable[[Progress], None] = lambda _: None,
        may_remove: Callable[[PodSpec], bool] = lambda _: True,
        run_id: str = "",
    ) -> None:
        self._tree = tree
        self._policy = policy
        self._on_event = on_event
        self._on_tick = on_tick
        self._may_remove = may_remove
        self._run_id = run_id
        self._poll = select.poll()
        self._by_fd: dict[int, _Running] = {}
        self._admitted: dict[str, _Running] = {}
        self._queue: deque[Job] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_ids = 0
        self._start_s = time.monotonic()
        self._last_finish_s = 0.0
        self._times: dict[str, JobTimes] = {}
        self._finished = 0
        self._total = 0
        self._lasting = 0
        self._awaited: Job | None = None
        self._stopped = False

    @property
    def pods(self) -> list[PodSpec]:
        """Pods that are admitted now."""
        return [running.pod for running in self._admitted.values()]

    def stop(self) -> None:
        """Make `run` return as soon as it can; callbacks call this. Pods stay as they are."""
        self._stopped = True

    def launch(self, jobs: Iterable[Job]) -> None:
        """Start pods that never end, before `run`. Their requests do not count; kubelet restarts them like jobs.

        Return when all their containers have started.
        """
        for job in jobs:
            self._lasting += 1
            self._start_pod(job)
        while any(not running.has_started for running in self._admitted.values()):
            self._turn(START_S)

    def submit(self, job: Job) -> None:
        """Add a job to the end of the queue; callbacks of `run` call this."""
        self._queue.append(job)
        self._total += 1

    def run(self, jobs: Iterable[Job], *, timeout_s: float) -> Outcome:
        """Run all jobs until they finish or `timeout_s` passes; `Outcome.finished` is the number of finished jobs."""
        for job in jobs:
            self.submit(job)
        self._start_s = time.monotonic()
        for running in self._admitted.values():
            running.since_s = 0.0
        oom_before = self._oom_kills()
        self._tick()
        self._admit()
        while (len(self._admitted) > self._lasting or self._queue) and not self._stopped:
            left_s = timeout_s - self._now()
            if left_s <= 0:
                break
            self._turn(left_s)
        for running in self._by_fd.values():
            self._count_run(running)
        return Outcome(
            finished=self._finished,
            total_s=self._last_finish_s if self._finished == self._total else self._now(),
            restarts=sum(times.restarts for times in self._times.values()),
            oom_kills=self._oom_kills() - oom_before,
            lost_cpu_s=sum(times.lost_cpu_s for times in self._times.values()),
            jobs=self._times,
        )

    def _count_run(self, running: _Running) -> float:
        """Add the container's current run, ended or not, to its job's times; return its duration in seconds."""
        assert running.container is not None
        ran_s = self._now() - running.since_s
        running.times.running_s += ran_s
        running.times.cpu_s += read_keyed(running.container.scope / "cpu.stat")["usage_usec"] / 1e6
        return ran_s

    def _turn(self, left_s: float) -> None:
        due_s = self._timers[0][0] - self._now() if self._timers else left_s
        # Rounded up: poll(2) counts in ms, and an early wake-up would only lead to another sleep.
        for fd, _ in self._poll.poll(max(0, int(min(due_s, left_s) * 1000) + 1)):
            self._on_exit(fd)
        while self._timers and self._timers[0][0] <= self._now() and not self._stopped:
            heapq.heappop(self._timers)[2]()

    def _now(self) -> float:
        return time.monotonic() - self._start_s

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timer_ids += 1  # the id keeps timers of equal times in order of arrival
        heapq.heappush(self._timers, (self._now() + seconds, self._timer_ids, action))

    def _tell(self, kind: EventKind, running: _Running, *, settled: bool = True) -> None:
        self._on_event(Event(kind, self._now(), running.job, running.pod, settled))

    def _tick(self) -> None:
        starting = sum(not one.has_started for one in self._admitted.values())
        running = sum(one.container is not None for one in self._admitted.values())
        self._on_tick(
            Progress(
                at_s=self._now(),
                total=self._total,
                waiting=len(self._queue),
                starting=starting,
                running=running,
                backing_off=len(self._admitted) - starting - running,
                finished=self._finished,
                restarts=sum(times.restarts for times in self._times.values()),
            )
        )
        self._after(self._policy.tick_s, self._tick)

    def _oom_kills(self) -> int:
        return count_oom_kills(read_keyed(self._tree.root / "memory.events"))

    def _admit(self) -> None:
        """Admit the first job of the queue if it fits; a job that does not fit blocks the rest.

        Admit one job per call: starting a pod takes a while, and exits meanwhile must not wait for the whole queue.
        """
        if not self._queue:
            return
        job = self._queue[0]
        early_s = job.start_s - self._now()
        if early_s > 0:
            if self._awaited is not job:
                self._awaited = job
                self._after(early_s, self._admit)
            return
        admitted = sum(self._request(one.job) for one in self._admitted.values())
        if admitted + self._request(job) > self._tree.memory_max_bytes:
            return
        self._queue.popleft()
        self._start_pod(job)
        self._after(0, self._admit)

    def _start_pod(self, job: Job) -> None:
        adj = oom_score_adj(self._request(job), self._tree.memory_max_bytes)
        if job.tier is Tier.BEST_EFFORT:
            adj = BEST_EFFORT_OOM_SCORE_ADJ
        uid = make_uid(self._run_id, job.name)
        pod = PodSpec(job.name, uid, job.limit_bytes, job.tier, cpu_max=job.cpu_max, oom_score_adj=adj)
        times = JobTimes(waiting_s=self._now() + START_S * self._policy.scale)
        running = _Running(job, pod, Backoff(self._policy.scale), times)
        self._times[job.name] = times
        self._admitted[job.name] = running
        self._tree.make_pod(pod)
        self._tell(EventKind.ADMITTED, running)
        self._after(_VOLUMES_S * self._policy.scale, lambda: self._start_sandbox(running))

    def _request(self, job: Job) -> int:
        if job.request_bytes is not None or job.limit_bytes is None:
            return job.request_bytes or 0
        return request_bytes(job.limit_bytes, self._policy.oversubscription)

    def _start_sandbox(self, running: _Running) -> None:
        self._tree.start_sandbox(running.pod)
        self._tell(EventKind.NETWORKED, running)
        self._after(_SANDBOX_S * self._policy.scale, lambda: self._start_container(running))

    def _start_container(self, running: _Running) -> None:
        running.has_started = True
        running.container = container = self._tree.start_container(running.pod, running.job.argv)
        running.since_s = self._now()
        self._by_fd[container.pidfd] = running
        self._poll.register(container.pidfd, select.POLLIN)
        self._tell(EventKind.STARTED, running)

    def _on_exit(self, fd: int) -> None:
        running = self._by_fd.pop(fd)
        self._poll.unregister(fd)
        ran_s = self._count_run(running)
        container, running.container = running.container, None
        assert container is not None
        code, used_usec = self._tree.remove_container(running.pod, container)
        if code > 0 and code != TERMINATED:
            raise LabError(f"job {running.job.name} failed by itself, with exit code {code}")
        if code == 0:
            self._finished += 1
            self._last_finish_s = self._now()
            self._tell(EventKind.FINISHED, running)
            self._remove_pod(running, self._now() + _LINGER_S)
            return
        running.times.restarts += 1
        running.times.lost_cpu_s += used_usec / 1e6
        wait_s = running.backoff.after_kill(ran_s)
        running.times.waiting_s += wait_s
        self._tell(EventKind.KILLED, running)
        self._after(wait_s, lambda: self._start_container(running))

    def _remove_pod(self, running: _Running, patience_ends_s: float) -> None:
        settled = self._may_remove(running.pod)
        if not settled and self._now() < patience_ends_s:
            self._after(_LINGER_POLL_S, lambda: self._remove_pod(running, patience_ends_s))
            return
        self._tell(EventKind.REMOVED, running, settled=settled)
        self._tree.remove_pod(running.pod)
        del self._admitted[running.job.name]
        self._admit()
