"""The pods of a node as they are now: follows the kubepods tree, and keeps each pod's cgroup open.

Trees appear, vanish and come back, and pods are made and removed at any moment, so a walk compares what is there (by
inode, see `findpods`) with what is held.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from cgpause.config.settings import Config, HoldConfig, PodClass
from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.kubepods import CgroupDriver
from cgpause.core.model import CgroupId, Pod, PodUsage, Workload
from cgpause.core.names import Names, controller, read_names
from cgpause.core.parse import parse_cpu_usage, parse_flat_keyed, parse_limit, parse_reclaimable, parse_shmem
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import is_being_made, listens
from cgpause.kernel.logfmt import fields
from cgpause.kernel.processes import Processes
from cgpause.pods.containers import descendants
from cgpause.pods.discover import Found, find_kubepods, is_populated, paused_elsewhere, walk
from cgpause.pods.own import holds_us, own_pod_uid
from cgpause.policy.drifts import Drifts
from cgpause.policy.kinds import Kinds
from cgpause.policy.protect import OPT_OUT_XATTRS, pod_class, priority, protection

log = logging.getLogger(__name__)

SPARED_S = 0.1
"""A pod is not paused for so long after its containers changed, nor while a runtime still makes one of them: a
container cannot be made in a paused pod."""
_MAKING_S = 10.0
"""But no longer than this: a program may call itself what it likes."""
_NS_PER_S = 1_000_000_000
_ASK_INTERVAL_S = 10
_ASK_AGAIN_S = 1
"""Where nobody could answer: in a new pod no process may have been started yet."""
_ASKED_AT_ONCE = 16
"""An answer can take 5 ms (see `workload`), and nothing else happens meanwhile."""
_LIST_INTERVAL_S = 10
"""Listing a cgroup's children means to read the names of its 60 files as well, which takes longer than all the rest."""
_LEFT_BEHIND = "kubelet uses another kubepods tree now"
_LEFT_BEHIND_NS = 60 * _NS_PER_S
"""A pod found again in the tree that is in use is protected for so long at most."""
_STAT_INTERVAL_S = 10
"""How long memory.stat is believed at most while memory.current stands still."""


@dataclass(slots=True)
class TrackedPod:
    """A pod with its open cgroup."""

    cgroup: Cgroup
    pod: Pod
    holds_us: bool | None = None
    """Whether this process runs in it; None while that cannot be told, and then it is protected too."""
    current_fd: int = -1
    """Held open on memory.current; -1 while that cannot be opened."""
    usage: PodUsage | None = None
    """As sampled last; None before the first sample, and after one that could not read it."""
    oom_kills: int = 0
    """Count in memory.events when the pod was paused."""
    drifts: Drifts = field(default_factory=Drifts)
    """Foreign writes to cpu.max answered during this pause."""
    failure: str | None = None
    """Why the kernel refused to pause it; it is left alone until `retry_at_ns`."""
    retry_at_ns: int = 0
    children: frozenset[str] | None = None
    """Child cgroups at the last look, where inotify does not tell of them."""
    processes: Processes = field(default_factory=Processes)
    damaged: bool = False
    """Its record is damaged or was taken away, and it could not be resumed without."""
    trouble: str | None = None
    """What could not be read at the last look, said once."""
    marks: frozenset[str] = frozenset()
    """Its opt-out xattrs."""
    refused: tuple[int, int | None] = (0, None)
    """When the pause began in which refused connections were counted, and their number."""
    frozen: tuple[int, int | None] = (0, None)
    """When a pause began, and a time in it at which all its processes were frozen."""
    starting: bool = False
    """Whether its containers are so new that it may yet begin to listen."""
    seen_ns: int = 0
    """When it was seen first."""
    started_ns: int = 0
    """When its containers changed last; 0 where that was before the first walk."""
    listens: bool | None = None
    """Whether anything in it listens on TCP; None while nobody could answer. Once true it stays: a service that starts
    again will listen again."""
    visited: bool = False
    """Whether a process was started in it from outside while it was held: it may have exec probes."""
    ask_at_ns: int = 0
    """Not asked again before."""
    below: tuple[str, ...] = ()
    """Cgroups below it, the sandbox among them, when they were last listed."""
    list_at_ns: int = 0
    """Not listed again before."""
    stat_bytes: int = 0
    """memory.current when memory.stat was last read."""
    stat_at_ns: int = 0
    """When memory.stat is read again in any case."""

    def descendants(self, at_ns: int) -> tuple[str, ...]:
        """Cgroups below it; listed again every 10 s, and when `list_at_ns` was set back.

        Raises:
            CgroupGoneError, KernelReadError: it cannot be listed.
        """
        if at_ns >= self.list_at_ns:
            self.below = descendants(self.cgroup)
            self.list_at_ns = at_ns + _LIST_INTERVAL_S * _NS_PER_S
        return self.below

    def read_stat(self, at_ns: int) -> tuple[int, int]:
        """Bytes of it that reclaim can take back, and of tmpfs; where hardly anything has changed, as at most 10 s ago.

        The kernel sums memory.stat up over the CPUs and prints sixty lines, ten times as dear as memory.current; most
        pods of a node do nothing. Page cache can turn into anonymous memory while memory.current stays about the same
        (a pod at its own limit), so a pod that holds much of it has to be as still as can be.

        Raises:
            CgroupGoneError, KernelReadError, MalformedError: it cannot be read.
        """
        try:
            current = int(os.pread(self.current_fd, 32, 0))
        except (OSError, ValueError):
            return _parse_stat(self.cgroup)
        known = self.pod.reclaimable_bytes, self.pod.shmem_bytes
        change = 0 if known[0] > current >> 3 else current >> 6
        if at_ns >= self.stat_at_ns or abs(current - self.stat_bytes) > change:
            known = _parse_stat(self.cgroup)
            self.stat_bytes, self.stat_at_ns = current, at_ns + _STAT_INTERVAL_S * _NS_PER_S
        return known

    def settle(self, at_ns: int, hold: HoldConfig) -> None:
        """It is new, or its containers are: leave it alone for a while."""
        spared_s = min(hold.settle_s, SPARED_S)
        self.spare(at_ns + int(spared_s * _NS_PER_S))
        self._settle_until(at_ns + int(hold.settle_s * _NS_PER_S))

    def spare(self, until_ns: int) -> None:
        """Leave it alone until then, or until later if that was to be, whatever happens."""
        self._settle_until(until_ns)
        self.pod = replace(self.pod, spared_until_ns=max(self.pod.spared_until_ns, until_ns))

    def _settle_until(self, until_ns: int) -> None:
        self.pod = replace(self.pod, settled_at_ns=max(self.pod.settled_at_ns, until_ns))

    def close(self) -> None:
        """Give the descriptors back."""
        if self.current_fd >= 0:
            os.close(self.current_fd)
        self.cgroup.close()


class PodTree:
    """The pods below one cgroup root."""

    def __init__(self, root: str, log_dir: str, config: Config, kinds: Kinds | None = None) -> None:
        """`kinds` is what is known of workloads already."""
        self.root = root
        self.log_dir = log_dir
        self.config = config
        self.kubepods: Cgroup | None = None
        self.driver: CgroupDriver | None = None
        self.tiers: list[CgroupId] = []
        self.names = Names({}, {})
        self.pods: dict[CgroupId, TrackedPod] = {}
        self.read_at_ns = 0
        """When `read_details` read last; 0: never."""
        self.kinds = kinds or Kinds()
        self._refreshed = False
        self._complained: set[CgroupId] = set()
        self._own_uid = own_pod_uid()

    def close(self) -> None:
        """Give every descriptor back."""
        for tracked in self.pods.values():
            tracked.close()
        self.pods.clear()
        if self.kubepods is not None:
            self.kubepods.close()
            self.kubepods = None

    def refresh(self, at_ns: int, *, facts: bool = True) -> tuple[list[TrackedPod], list[Pod]]:
        """Walk the tree once; returns the pods that appeared and those that are gone.

        Without `facts`, those of pods that are known by name are not read again: pods come and go by the dozen.
        Pods that appear after the first walk are left alone for `settle_s`: their own cpu.max is not there yet when
        their cgroup appears (measured: systemd writes it up to seconds later).
        A pod that is paused in a tree that is not in use (kubelet's cgroup driver was changed) stays known, protected,
        until it is resumed or gone.
        """
        # Sorted, so that pods that use the same are ranked the same way in every run.
        found = {pod.cgroup: pod for pod in sorted(self._walk(), key=lambda pod: pod.cgroup)}
        self._complained &= found.keys()
        elsewhere = [] if self._refreshed else paused_elsewhere(self.root, self.kubepods)
        left_behind = {pod.cgroup for pod in elsewhere} | {
            key
            for key, tracked in self.pods.items()
            if key not in found and (tracked.pod.paused is not None or tracked.damaged) and tracked.cgroup.exists()
        }
        found.update((pod.cgroup, pod) for pod in elsewhere)
        gone = [tracked.pod for key, tracked in self.pods.items() if key not in found and key not in left_behind]
        for pod in gone:
            left = self.pods.pop(pod.cgroup)
            if not left.listens and not left.visited:
                self.kinds.ended(pod.controller)
                self._tell_siblings(pod.controller, at_ns)
            left.close()
        new = [pod for key, pod in found.items() if key not in self.pods]
        if new or any(tracked.pod.name is None for tracked in self.pods.values()):
            self.names = read_names(self.log_dir)
        appeared = list(filter(None, (self._track(pod) for pod in new)))
        for tracked in appeared:
            tracked.seen_ns = at_ns
        for key, tracked in self.pods.items():
            if key in left_behind:
                tracked.failure, tracked.retry_at_ns = _LEFT_BEHIND, at_ns + _LEFT_BEHIND_NS
                tracked.pod = replace(tracked.pod, protected=tracked.pod.protected or _LEFT_BEHIND)
            if facts or tracked.pod.name is None:
                self.update_facts(tracked, at_ns)
        if self._refreshed:
            for tracked in appeared:
                tracked.settle(at_ns, self.config.hold)
                self.starts(tracked, at_ns)
        self._ask_who_listens(appeared, at_ns, at_once=len(appeared))
        self._ask_who_listens(self.pods.values(), at_ns)
        self._refreshed = True
        return appeared, gone

    @property
    def own_pod(self) -> TrackedPod | None:
        """The pod this process runs in; None where it is in none of them."""
        return next((tracked for tracked in self.pods.values() if tracked.holds_us), None)

    def update_facts(self, tracked: TrackedPod, at_ns: int) -> None:
        """Read a pod's slow facts again: name, memory.max, what the rules say; one that cannot be read is protected."""
        if at_ns >= tracked.retry_at_ns:
            tracked.failure = None
        pod, cgroup = tracked.pod, tracked.cgroup
        name = self.names.pods.get(pod.uid)
        memory_max_bytes, trouble = None, None
        try:
            if tracked.holds_us is None:
                # Once found it is that one; before, a pod may turn up late that was there before us.
                tracked.holds_us = self.own_pod is None and holds_us(cgroup, pod.uid, self._own_uid)
            if tracked.current_fd < 0:
                tracked.current_fd = cgroup.open("memory.current")
            memory_max_bytes = parse_limit(cgroup.read("memory.max"), "memory.max")
            tracked.marks = _read_marks(cgroup)
        except CgroupGoneError:
            trouble = "its cgroup is gone"  # the next walk drops it
        except CgpauseError as e:
            trouble = f"its cgroup cannot be read: {e}"
            if tracked.trouble != trouble:
                log.warning("pod left alone %s", fields(uid=pod.uid, error=e))
        tracked.trouble = trouble
        reason = protection(
            uid=pod.uid,
            qos=pod.qos,
            name=name,
            opt_outs=sorted(tracked.marks),
            holds_us=bool(tracked.holds_us),
            config=self.config,
        )
        tracked.pod = replace(
            pod,
            namespace=None if name is None else name.namespace,
            name=None if name is None else name.name,
            memory_max_bytes=memory_max_bytes,
            protected=reason or trouble or tracked.failure,
            workload=self._workload(tracked, at_ns),
            priority=priority(pod.qos, name, self.config),
            controller=None if name is None else controller(name.namespace, name.name),
        )

    def starts(self, tracked: TrackedPod, at_ns: int) -> None:
        """A container of it starts (or has ended): until `starting_s` have passed it may yet begin to listen.

        Unless its workload is known: a pod of it has run for so long, or has ended, without listening.
        """
        tracked.started_ns = at_ns
        if tracked.listens:
            return
        tracked.starting = not self.kinds.is_silent(tracked.pod.controller)
        tracked.listens = None if tracked.starting else False
        tracked.ask_at_ns = at_ns + int(self.config.hold.starting_s * _NS_PER_S)
        self._classify(tracked, at_ns)

    def _classify(self, tracked: TrackedPod, at_ns: int) -> None:
        workload = self._workload(tracked, at_ns)
        if workload is not tracked.pod.workload:
            tracked.pod = replace(tracked.pod, workload=workload)

    def _learn_kind(self, tracked: TrackedPod, at_ns: int) -> None:
        """Remember what a pod shows of its workload: that it listens, or that it has not after `starting_s`."""
        controller = tracked.pod.controller
        if tracked.listens or tracked.visited:
            self.kinds.listened(controller)
            return
        silent_s = (at_ns - max(tracked.seen_ns, tracked.started_ns)) / _NS_PER_S
        if silent_s >= self.config.hold.starting_s:
            self.kinds.was_silent(controller, silent_s)
            self._tell_siblings(controller, at_ns)

    def _tell_siblings(self, controller: str | None, at_ns: int) -> None:
        """Let no pod of a workload wait to be known that has turned out to be silent."""
        for tracked in self.pods.values():
            if tracked.starting and self.kinds.is_silent(controller) and tracked.pod.controller == controller:
                tracked.starting, tracked.listens = False, False
            if not tracked.listens:
                self._classify(tracked, at_ns)

    def spare_unmade(self, at_ns: int) -> None:
        """Leave those pods alone a little longer of which a runtime still makes a container.

        Docs/runtimes.md has how long that takes: 20 to 60 ms on an idle machine, and seconds on a busy one.
        """
        for tracked in self.pods.values():
            is_new = tracked.started_ns and at_ns - tracked.started_ns < _MAKING_S * _NS_PER_S
            if is_new and at_ns >= tracked.pod.spared_until_ns and is_being_made(tracked.cgroup):
                tracked.spare(at_ns + int(SPARED_S * _NS_PER_S))

    def was_visited(self, tracked: TrackedPod, at_ns: int) -> None:
        """A process was started in it from outside, such as an exec probe's: from now on it counts as a service."""
        tracked.visited = True
        self.kinds.listened(tracked.pod.controller)
        self._classify(tracked, at_ns)

    def was_not_visited(self, tracked: TrackedPod, at_ns: int) -> None:
        """Processes were started in it too often to be believed: it counts as what it is without them."""
        if tracked.visited:
            tracked.visited = False
            self._classify(tracked, at_ns)
            log.info(
                "not resumed again for processes started in it, until it is frozen %s", fields(pod=tracked.pod.label)
            )

    def is_marked_otherwise(self, tracked: TrackedPod) -> bool:
        """Whether an operator has marked or unmarked it since its facts were read; True if that cannot be told."""
        try:
            return _read_marks(tracked.cgroup) != tracked.marks
        except CgpauseError:
            return True

    def read_details(self, at_ns: int) -> None:
        """Read what a decision wants to know once memory is short: reclaimable memory, who listens, CPU time if asked.

        For once a second; most of it would be memory.stat, which `read_stat` spares where it can. A pod
        that cannot be read keeps what was read last.
        """
        self.read_at_ns = at_ns
        for tracked in self.pods.values():
            cgroup = tracked.cgroup
            try:
                reclaimable_bytes, shmem_bytes = tracked.read_stat(at_ns)
                cpu_usage_usec = None
                if self.config.reserve.sacrifice:  # nobody else asks
                    # Not the pod's own cpu.stat: it counts containers that have ended too, whose work is lost already.
                    names = [name for name in tracked.descendants(at_ns) if "/" not in name]
                    stats = [cgroup.read(os.path.join(name, "cpu.stat")) for name in names]
                    cpu_usage_usec = sum(map(parse_cpu_usage, stats))
            except CgpauseError:
                tracked.list_at_ns = tracked.stat_at_ns = 0  # probably a container has ended
                continue
            pod = tracked.pod
            read = reclaimable_bytes, shmem_bytes, cpu_usage_usec
            if read != (pod.reclaimable_bytes, pod.shmem_bytes, pod.cpu_usage_usec):
                tracked.pod = replace(
                    pod, reclaimable_bytes=reclaimable_bytes, shmem_bytes=shmem_bytes, cpu_usage_usec=cpu_usage_usec
                )
        # Not of a pod that is held: frozen it cannot begin to listen.
        self._ask_who_listens([tracked for tracked in self.pods.values() if tracked.pod.paused is None], at_ns)

    def _ask_who_listens(self, pods: Collection[TrackedPod], at_ns: int, at_once: int = _ASKED_AT_ONCE) -> None:
        """Tell services from batch anew where that is due, longest ago first."""
        due = [
            tracked
            for tracked in pods
            if not tracked.listens and at_ns >= tracked.ask_at_ns and self._class(tracked.pod) is PodClass.AUTO
        ]
        due.sort(key=lambda tracked: tracked.ask_at_ns)
        for tracked in due[:at_once]:
            tracked.listens, tracked.starting = listens(tracked.cgroup), False
            wait_s = _ASK_AGAIN_S if tracked.listens is None else _ASK_INTERVAL_S
            tracked.ask_at_ns = at_ns + wait_s * _NS_PER_S
            self._classify(tracked, at_ns)
            if tracked.listens is not None:
                self._learn_kind(tracked, at_ns)

    def _class(self, pod: Pod) -> PodClass:
        return pod_class(pod.qos, self.names.pods.get(pod.uid), self.config)

    def _workload(self, tracked: TrackedPod, at_ns: int) -> Workload:
        ruled = self._class(tracked.pod)
        if ruled is not PodClass.AUTO:
            return Workload(ruled)
        if tracked.visited or tracked.listens:
            return Workload.SERVICE
        if tracked.starting:
            return Workload.STARTING
        if tracked.listens is None:
            return Workload.SERVICE  # none of its processes could be asked: the careful guess is the one paused least
        age_s = (at_ns - tracked.started_ns) / _NS_PER_S if tracked.started_ns else math.inf
        return self.kinds.of_silent(tracked.pod.controller, age_s)

    def _walk(self) -> list[Found]:
        if self.kubepods is not None and not self.kubepods.exists():
            self.kubepods.close()
            self.kubepods = None
        # Also while it is empty: it may be the wrong one of two, made before the other came into use.
        if self.kubepods is None or not self.pods or not is_populated(self.kubepods):
            before = self.kubepods
            self.kubepods, self.driver = find_kubepods(self.root, before) or (None, None)
            if before is not None and self.kubepods is not before:
                before.close()
        if self.kubepods is None:
            self.tiers = []
            return []
        try:
            pods, self.tiers = walk(self.kubepods)
        except CgroupGoneError:
            return []
        return pods

    def _track(self, found: Found) -> TrackedPod | None:
        try:
            cgroup = Cgroup(self.root, found.cgroup.path)
        except CgpauseError as e:
            if not isinstance(e, CgroupGoneError) and found.cgroup not in self._complained:
                self._complained.add(found.cgroup)
                log.warning("pod left alone %s", fields(uid=found.uid, error=e))
            return None
        # Tracked also when its files turn out to be unreadable: it may carry a record, and `status` has to show it.
        pod = Pod(cgroup.id, found.uid, found.qos, None, None, None, None)
        tracked = TrackedPod(cgroup, pod)
        self.pods[pod.cgroup] = tracked
        return tracked


def count_oom_kills(cgroup: Cgroup) -> int:
    """OOM kills in a pod so far."""
    return parse_flat_keyed(cgroup.read("memory.events"), "memory.events").get("oom_kill", 0)


def _parse_stat(cgroup: Cgroup) -> tuple[int, int]:
    stat = cgroup.read("memory.stat")
    return parse_reclaimable(stat), parse_shmem(stat)


def _read_marks(cgroup: Cgroup) -> frozenset[str]:
    """Opt-out xattrs that root has set to anything but 0."""
    if not cgroup.owned_by_root():
        return frozenset()
    return frozenset(xattr for xattr in OPT_OUT_XATTRS if cgroup.get_xattr(xattr) not in (None, b"0"))
