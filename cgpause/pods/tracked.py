"""A tracked pod: its open cgroup, and the state that the daemon keeps of it between two refreshes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from cgpause.config.settings import PauseConfig
from cgpause.core.clock import NEVER_NS, NS_PER_S
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Ended, Owner, OwnWord, Pod, PodUsage, QosClass
from cgpause.core.parse import parse_flat_keyed, parse_limit, parse_reclaimable, parse_shmem
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.listening import listens
from cgpause.kernel.processes import Processes
from cgpause.ledger.ledger import read_record
from cgpause.pods.containers import limit_bytes
from cgpause.pods.ends import Ends
from cgpause.pods.refresh_times import CALM_REFRESH_NS
from cgpause.policy.classify import KindSigns
from cgpause.policy.drifts import Drifts
from cgpause.policy.growth import CHARGE_BATCH_BYTES

SPARED_S = 0.1
"""Longest time for which a pod is spared from pauses after its containers changed, extended while a runtime is still
creating one of them: no container can be created in a paused pod. `Programs.look` ends it once all are made."""
_LIST_INTERVAL_S = 10
"""Interval of listing a pod's child cgroups: that also reads the names of its 60 files, and is the slowest step."""
_STAT_INTERVAL_S = 10
"""Longest time for which one reading of memory.stat is used while memory.current stands still."""
_LITTLE_STAT_INTERVAL_S = 60
"""The same for a pod with next to no page cache: even if all of it turns into anonymous memory, that is noise."""

_LARGE_CHANGE_BYTES = 4 << 20
"""Change of a large pod's use after which memory.stat is read: less than a large drop on a node of 4 GiB or more."""


@dataclass(slots=True)
class SeenInPause:
    """The daemon's findings about a pod in one pause, or while it runs (`since_ns` is 0)."""

    since_ns: int
    """Start of the pause."""
    children: frozenset[str] | None = None
    """Names of the pod's containers at the last scan without inotify."""
    refused: int | None = None
    """Number of refused connections when last read."""
    read_refused_at_ns: int = 0
    """Earliest time to read `refused` again."""
    frozen_ns: int | None = None
    """A time at which all processes were frozen."""


@dataclass(slots=True)
class TrackedPod:
    """A discovered pod with its open cgroup and the state that the daemon keeps of it."""

    cgroup: Cgroup
    pod: Pod
    holds_us: bool | None = None
    """Whether this process runs in the pod; None while unknown. A pod in which it runs, or may run, is protected."""
    current_fd: int = -1
    """Descriptor on memory.current; -1 while the file cannot be opened."""
    own_limit_bytes: int | None = None
    """The pod's own memory.max when last read; None: no limit."""
    sums_limits: bool = False
    """Whether `pod.memory_max_bytes` is what the present containers may use, because the pod's own limit is higher."""
    limit_due: bool = False
    """Whether the containers' limits are unknown: one has started or ended since, or has none."""
    limits_at_ns: int = 0
    """Earliest time to read the containers' limits again, if no sum of them counts and the pod's own limit stays the
    same; a change of containers resets it. Listing the containers takes longer than reading all other facts."""
    usage: PodUsage | None = None
    """The usage in the last sample; None before the first one, and after a failed read. The sampler replaces it only if
    memory.current or `pod` has changed."""
    calm_usage: PodUsage | None = None
    """The usage for which no detail was due before `stat_at_ns` (`PodTree.read_details`, right after a sample)."""
    oom_kills: int | None = None
    """Count in memory.events when the pod was paused, or at the last OOM kill after that; None if it is unknown."""
    events_fd: int = -1
    """Descriptor on memory.events during a pause. Without it the kernel may drop the file's inode, and then sends no
    inotify event for a kill (kernfs_notify_workfn in fs/kernfs/file.c). -1 while the pod runs."""
    drifts: Drifts = field(default_factory=Drifts)
    """Foreign writes to cpu.max answered in this hour."""
    failure: str | None = None
    """Reason why the pod is protected until `failure_until_ns`, such as the kernel's refusal to pause it."""
    failure_until_ns: int = 0
    retry_at_ns: int = NEVER_NS
    """Time from which its record and cpu.max are read again, because one could not be read or replaced; or NEVER_NS."""
    seen: SeenInPause = field(default_factory=lambda: SeenInPause(0))
    """Observations in the last pause; `seen_since` begins them anew."""
    processes: Processes = field(default_factory=Processes)
    damaged: bool = False
    """Whether the record is damaged or was removed, and the pod could not be resumed without it."""
    error: str | None = None
    """Error of the last read of the pod's facts, logged once; None after a success."""
    marks: frozenset[str] = frozenset()
    """Opt-out xattrs of the pod."""
    signs: KindSigns = field(default_factory=KindSigns)
    word: OwnWord | None = None
    """The pod's own word; None while none is known. The strongest of its containers stays: a manifest never changes."""
    word_requested: bool = False
    """Whether the word of the present containers was requested."""
    check_at_ns: int = 0
    """Earliest time of the next check for programs in the pod."""
    expects_program: bool = False
    """Whether a program may start in the pod without an event: none ran at the last check, and its containers were new
    or a runtime was at work; for CREATING_S at most."""
    node_critical: bool = False
    """Whether a container of it is critical for the node, by its oom_score_adj."""
    below: tuple[str, ...] = ()
    """Cgroups below the pod, the sandbox among them, when last listed; empty after a change of containers."""
    list_at_ns: int = 0
    """Earliest time at which they are listed again."""
    stat_bytes: int = 0
    """memory.current in bytes when memory.stat was last read."""
    stat_at_ns: int = 0
    """Time at which memory.stat is read again in any case."""
    ends: Ends = field(default_factory=Ends)

    @property
    def needs_limit(self) -> bool:
        """Whether the pod has no limit of its own, and the limits of its present containers are not known yet."""
        return self.limit_due and self.own_limit_bytes is None

    def descendants(self, at_ns: int) -> tuple[str, ...]:
        """Return the cgroups below the pod; they are listed again every 10 s, and when `list_at_ns` was reset.

        Raises:
            CgroupGoneError, KernelReadError: the pod cannot be listed.
        """
        if at_ns >= self.list_at_ns:
            self.below = tuple(self.cgroup.descendants())
            self.list_at_ns = at_ns + _LIST_INTERVAL_S * NS_PER_S
        return self.below

    def listens(self) -> bool | None:
        """Check whether a process in the pod listens on TCP (`kernel.listening.listens`)."""
        return listens(self.cgroup)

    def may_have_been_killed(self) -> bool:
        """Return False if the kernel has certainly not OOM-killed in the pod."""
        try:
            return count_oom_kills(self.cgroup) > 0
        except CgpauseError:
            return True

    def see_record(self) -> None:
        """Read the pod's record, for a process that writes nothing; protect the pod if it cannot be read."""
        try:
            self.pod = replace(self.pod, paused=read_record(self.cgroup))
        except CgpauseError as e:
            self.pod = replace(self.pod, protected=f"its record cannot be read: {e}")

    def clear_pause(self, at_ns: int) -> None:
        """Clear the state of a pause that is over, and note its length."""
        paused = self.pod.paused
        if paused is not None:
            self.signs.note_pause_end(paused, at_ns)
        self.pod = replace(self.pod, paused=None, distress=None)
        self.damaged = False
        if paused is not None and paused.owner is Owner.MANUAL:
            self.drifts = Drifts()  # an operator who pauses the pod again has stopped the other writer
        self._close_events()

    def count_oom_kills(self) -> int | None:
        """Return the number of OOM kills in a paused pod so far, None if it cannot be read; open `events_fd`, too."""
        try:
            if self.events_fd < 0:
                self.events_fd = self.cgroup.open("memory.events")
            return count_oom_kills(self.cgroup)
        except CgpauseError:
            return None

    def seen_since(self, since_ns: int) -> SeenInPause:
        """Return the observations in the pause that began at `since_ns`; none of an earlier pause."""
        if self.seen.since_ns != since_ns:
            self.seen = SeenInPause(since_ns)
        return self.seen

    def read_limit(self, at_ns: int) -> int | None:
        """Return how many bytes of memory the pod may use: its own limit, or less if its containers' limits allow less.

        None: it has no limit.

        Raises:
            CgroupGoneError, KernelReadError, MalformedError: memory.max cannot be read.
        """
        before, own = self.own_limit_bytes, parse_limit(self.cgroup.read("memory.max"), "memory.max")
        self.own_limit_bytes = own
        if self.pod.qos is QosClass.BEST_EFFORT:  # none of its containers has a limit
            return own
        if not self.sums_limits and own == before and at_ns < self.limits_at_ns:
            return own
        present = limit_bytes(self.cgroup)
        self.limits_at_ns, self.limit_due = at_ns + CALM_REFRESH_NS, present is None
        self.sums_limits = present is not None and (own is None or present < own)
        self.calm_usage = None  # `exceeds_limit` may be another now
        return present if self.sums_limits else own

    def forget_containers_limits(self) -> None:
        """Let the pod's own limit count, if it has one, until a program is seen in the container that comes next."""
        self.limit_due, self.limits_at_ns = self.pod.qos is not QosClass.BEST_EFFORT, 0
        if self.sums_limits and self.own_limit_bytes is not None:
            self.sums_limits = False
            self.pod = replace(self.pod, memory_max_bytes=self.own_limit_bytes)

    def exceeds_limit(self) -> bool:
        """Return True if the last sample has more use than the pod's limit, which then was raised since it was read."""
        usage, limit = self.usage, self.pod.memory_max_bytes
        if usage is None or limit is None:
            return False
        # Beside its containers, the pod may have any amount of page cache.
        return (usage.used_bytes if self.sums_limits else usage[0]) > limit

    def is_stat_due(self, at_ns: int) -> bool:
        """Return True if memory.stat has to be read: after 10 or 60 s, after a change of the use, or without a sample.

        A change is 1/64 of the use in the last sample, but of a large pod _LARGE_CHANGE_BYTES or 1/1024: else its page
        cache would count as growth until the next reading, and then as a drop. Any change counts if more than 1/8 of
        the use can be reclaimed: page cache can turn into anonymous memory while memory.current stays about the same (a
        pod at its own limit). A reading costs ten times as much as one of memory.current: sixty sums over all CPUs.
        """
        usage = self.usage
        if at_ns >= self.stat_at_ns or usage is None:
            return True
        current = usage[0]
        if self.pod.reclaimable_bytes > current >> 3:
            change = 0
        else:
            change = min(current >> 6, max(_LARGE_CHANGE_BYTES, current >> 10))
        return abs(current - self.stat_bytes) > change

    def read_stat(self, at_ns: int) -> tuple[int, int]:
        """Read memory.stat; return the pod's reclaimable bytes and its bytes of tmpfs.

        Raises:
            CgroupGoneError, KernelReadError, MalformedError: memory.stat cannot be read.
        """
        stat = self.cgroup.read("memory.stat")
        reclaimable_bytes, current = parse_reclaimable(stat), 0 if self.usage is None else self.usage[0]
        is_little = reclaimable_bytes <= max(current >> 6, CHARGE_BATCH_BYTES)
        wait_s = _LITTLE_STAT_INTERVAL_S if is_little else _STAT_INTERVAL_S
        self.stat_bytes, self.stat_at_ns = current, at_ns + wait_s * NS_PER_S
        return reclaimable_bytes, parse_shmem(stat)

    def note_end(self, at_ns: int) -> Ended | None:
        """Take in that a container has ended; return what the policy has to know at once (`Ends.note_end`)."""
        exact = None if self.usage is None or self.is_stat_due(at_ns) else self.usage.used_bytes
        return self.ends.note_end(self.cgroup, self.pod.workload, exact, self.pod.memory_max_bytes)

    def settle(self, at_ns: int, config: PauseConfig) -> None:
        """Note that the pod is new or its containers changed, and spare it for SPARED_S, or `settle_s` if that is less.

        Until then the daemon does not pause it. The watermark policy leaves it alone for all of `settle_s`.
        """
        settled_at_ns = max(self.pod.settled_at_ns, at_ns + int(config.settle_s * NS_PER_S))
        self.pod = replace(self.pod, changed_at_ns=at_ns, settled_at_ns=settled_at_ns)
        self.spare(at_ns + int(min(config.settle_s, SPARED_S) * NS_PER_S))

    def spare(self, until_ns: int) -> None:
        """Spare the pod: the daemon does not pause it until `until_ns`; a later time that is already set stays."""
        pod = self.pod
        self.pod = replace(
            pod, settled_at_ns=max(pod.settled_at_ns, until_ns), spared_until_ns=max(pod.spared_until_ns, until_ns)
        )

    def end_sparing(self, at_ns: int) -> None:
        """End what `settle` began: all its containers are made. The watermark policy still leaves the pod alone.

        If it is spared for longer, there is another reason, such as a stop signal: then nothing changes.
        """
        if self.pod.spared_until_ns <= self.pod.changed_at_ns + int(SPARED_S * NS_PER_S):
            self.pod = replace(self.pod, spared_until_ns=min(self.pod.spared_until_ns, at_ns))

    def close(self) -> None:
        """Close the pod's descriptors."""
        if self.current_fd >= 0:
            os.close(self.current_fd)
        self._close_events()
        self.cgroup.close()

    def _close_events(self) -> None:
        if self.events_fd >= 0:
            os.close(self.events_fd)
            self.events_fd = -1


def count_oom_kills(cgroup: Cgroup) -> int:
    """Return the number of OOM kills in a pod so far."""
    return parse_flat_keyed(cgroup.read("memory.events"), "memory.events").get("oom_kill", 0)
