"""The pods of a node: discovers them in the kubepods tree, and keeps each pod's cgroup open.

Trees appear, vanish and come back, and pods are made and removed at any moment. So each refresh compares the cgroups
that exist (by inode, see `discover`) with the tracked pods.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from cgpause.config.settings import Config, PodClass
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.kubepods import CgroupDriver
from cgpause.core.model import CgroupId, Mechanism, OwnWord, Pod, Workload
from cgpause.core.names import Names, controller
from cgpause.core.parse import parse_cpu_usage, parse_limit
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.environment import strongest
from cgpause.kernel.listening import listens
from cgpause.kernel.logfmt import fields
from cgpause.pods.discover import PodCgroup, find_kubepods, is_populated, list_pods, paused_cgroups
from cgpause.pods.names import read_names
from cgpause.pods.own import holds_us, own_pod_uid
from cgpause.pods.programs import look_for_program
from cgpause.pods.tracked import TrackedPod, count_oom_kills
from cgpause.pods.words import Words
from cgpause.policy.kinds import Kinds
from cgpause.policy.protect import OPT_OUT_XATTRS, heeds_word, pod_class, priority, protection

log = logging.getLogger(__name__)

STARTING_S = 10.0
"""Time from the start of a container in which the pod may yet begin to listen: most servers do within seconds."""
_ENDING_S = 600.0
"""Time for which a pod that got a stop signal needs the CPU to end. Not for ever: SIGHUP and the like can also mean
something else."""
_ASK_INTERVAL_S = 10
"""Interval of checks of a pod that does not listen: it may become a service later."""
_ASKED_AT_ONCE = 16
"""Most pods checked in a row: one check can take 5 ms (see `listening`), and the loop waits for it."""
_LEFT_BEHIND = "kubelet uses another kubepods tree now"
_LEFT_BEHIND_NS = 60 * NS_PER_S
"""Longest time for which such a pod stays protected after it appears in the tree in use."""


class PodTree:
    """The pods below one cgroup root."""

    def __init__(
        self,
        root: str,
        log_dir: str,
        config: Config,
        kinds: Kinds | None = None,
        words: Words | None = None,
        names: Callable[[], Names] | None = None,
    ) -> None:
        """Begin without pods.

        `kinds` has the known kinds of workloads; `words` reads the pods' own words, and `names` the names in `log_dir`.
        """
        self.root = root
        self.read_names = names or partial(read_names, log_dir)
        self.config = config
        self.kubepods: Cgroup | None = None
        self.driver: CgroupDriver | None = None
        self.tiers: list[CgroupId] = []
        self.names = Names({}, {})
        self.pods: dict[CgroupId, TrackedPod] = {}
        self.read_at_ns = 0
        """Time of the last `read_details`; 0: never."""
        self.kinds = kinds or Kinds()
        self._words = words or Words(root)
        self._look_at_ns = 0
        """Earliest time of the next look for programs in any pod."""
        self._refreshed = False
        self._complained: set[CgroupId] = set()
        self._own_uid = own_pod_uid()

    def close(self) -> None:
        """Forget all pods and close all descriptors."""
        for tracked in self.pods.values():
            tracked.close()
        self.pods.clear()
        if self.kubepods is not None:
            self.kubepods.close()
            self.kubepods = None

    def refresh(self, at_ns: int, *, facts: bool = True) -> tuple[list[TrackedPod], list[Pod]]:
        """Discover the pods once; return the pods that appeared and the pods that are gone.

        Without `facts`, the facts of pods with a known name are not read again: pods come and go by the dozen.
        Pods that appear after the first refresh are spared from pauses at first (`TrackedPod.settle`): their cpu.max is
        not set yet when their cgroup appears (measured: systemd writes it up to seconds later).
        A pod that is paused in a tree that is not in use (kubelet's cgroup driver was changed) stays tracked and
        protected until it is resumed or gone.
        """
        # Sorted, so that pods with equal use are ranked the same way in every run.
        found = {pod.cgroup: pod for pod in sorted(self._discover(), key=lambda pod: pod.cgroup)}
        self._complained &= found.keys()
        elsewhere = [] if self._refreshed else self._paused_elsewhere()
        left_behind = {pod.cgroup for pod in elsewhere} | {
            key
            for key, tracked in self.pods.items()
            if key not in found and (tracked.pod.paused is not None or tracked.damaged) and tracked.cgroup.exists()
        }
        found.update((pod.cgroup, pod) for pod in elsewhere)
        gone = [tracked.pod for key, tracked in self.pods.items() if key not in found and key not in left_behind]
        for pod in gone:
            left = self.pods.pop(pod.cgroup)
            self._learn_from_end(left, at_ns)
            left.close()
        new = [pod for key, pod in found.items() if key not in self.pods]
        if new or any(tracked.pod.name is None for tracked in self.pods.values()):
            self.names = self.read_names()
        appeared = list(filter(None, (self._track(pod) for pod in new)))
        for tracked in appeared:
            tracked.kind.seen_ns = at_ns
        for key, tracked in self.pods.items():
            if key in left_behind:
                tracked.failure, tracked.retry_at_ns = _LEFT_BEHIND, at_ns + _LEFT_BEHIND_NS
                tracked.pod = replace(tracked.pod, protected=tracked.pod.protected or _LEFT_BEHIND)
            if facts or tracked.pod.name is None:
                self.update_facts(tracked, at_ns)
                if tracked.kind.starting:  # a name that came late says which workload it is
                    self._heed_kinds(tracked, at_ns)
        if self._refreshed:
            for tracked in appeared:
                tracked.settle(at_ns, self.config.hold)
                self.starts(tracked, at_ns)
        self.take_words(at_ns)
        self._ask_who_listens(appeared, at_ns, at_once=len(appeared))
        self._ask_who_listens(self.pods.values(), at_ns)
        self._refreshed = True
        return appeared, gone

    @property
    def own_pod(self) -> TrackedPod | None:
        """The pod that this process runs in; None if there is none."""
        return next((tracked for tracked in self.pods.values() if tracked.holds_us), None)

    def update_facts(self, tracked: TrackedPod, at_ns: int) -> None:
        """Read a pod's slow facts again: name, memory.max, marks, rules; if they cannot be read, protect the pod."""
        if at_ns >= tracked.retry_at_ns:
            tracked.failure = None
        pod, cgroup = tracked.pod, tracked.cgroup
        name = self.names.pods.get(pod.uid)
        memory_max_bytes, trouble = None, None
        try:
            if tracked.holds_us is None:
                # Once the own pod is found, no other pod is checked. Before that, it may still be discovered late.
                tracked.holds_us = self.own_pod is None and holds_us(cgroup, pod.uid, self._own_uid)
            if tracked.current_fd < 0:
                tracked.current_fd = cgroup.open("memory.current")
            memory_max_bytes = parse_limit(cgroup.read("memory.max"), "memory.max")
            tracked.marks = _read_marks(cgroup)
        except CgroupGoneError:
            trouble = "its cgroup is gone"  # the next refresh drops it
        except CgpauseError as e:
            trouble = f"its cgroup cannot be read: {e}"
            if tracked.trouble != trouble:
                log.warning("pod left alone %s", fields(uid=pod.uid, error=e))
        tracked.trouble = trouble
        self._ask_word(tracked)
        reason = protection(
            uid=pod.uid,
            qos=pod.qos,
            name=name,
            opt_outs=sorted(tracked.marks),
            holds_us=bool(tracked.holds_us),
            config=self.config,
            word=self._word(tracked),
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

    def _ask_word(self, tracked: TrackedPod) -> None:
        """Have the pod's own word read, once for its present containers, unless the operator heeds none."""
        name = self.names.pods.get(tracked.pod.uid)
        if not tracked.kind.word_asked and heeds_word(tracked.pod.qos, name, self.config):
            tracked.kind.word_asked = True
            self._words.ask(tracked.cgroup)

    def take_words(self, at_ns: int) -> None:
        """Take in the pods' own words that were read since the last call."""
        for key, word in self._words.take().items():
            tracked = self.pods.get(key)
            if tracked is not None:
                tracked.kind.word = strongest(tracked.kind.word, word)
                self.update_facts(tracked, at_ns)

    def _word(self, tracked: TrackedPod) -> OwnWord | None:
        """Return the pod's own word, or None where it does not count."""
        name = self.names.pods.get(tracked.pod.uid)
        return tracked.kind.word if heeds_word(tracked.pod.qos, name, self.config) else None

    def starts(self, tracked: TrackedPod, at_ns: int) -> None:
        """Treat a pod as starting after a container's start or end: it may begin to listen within STARTING_S.

        A pod that listens stays a service. A pod of a workload that is known not to listen is not treated as starting.
        """
        tracked.kind.started_ns, tracked.kind.paused_ns = at_ns, 0
        tracked.kind.look_at_ns = self._look_at_ns = 0
        if tracked.pod.unmade:  # until the next look: there may be none while memory is not tight
            tracked.pod = replace(tracked.pod, unmade=False)
        tracked.kind.word_asked = False
        self._ask_word(tracked)
        self._may_listen(tracked, at_ns)

    def _may_listen(self, tracked: TrackedPod, at_ns: int) -> None:
        """Classify a pod by what is known of its workload, as one that starts."""
        if tracked.kind.listens:
            return
        tracked.kind.starting = not self.kinds.is_silent(tracked.pod.controller)
        tracked.kind.listens = None if tracked.kind.starting else False
        tracked.kind.ask_at_ns = tracked.kind.started_ns + int(STARTING_S * NS_PER_S)
        self._classify(tracked, at_ns)

    def _classify(self, tracked: TrackedPod, at_ns: int) -> None:
        workload = self._workload(tracked, at_ns)
        if workload is not tracked.pod.workload:
            tracked.pod = replace(tracked.pod, workload=workload)

    def _learn_kind(self, tracked: TrackedPod, at_ns: int) -> None:
        """Learn the kind of a pod's workload: a service if the pod listens, silent if it has not after STARTING_S."""
        controller = tracked.pod.controller
        if tracked.kind.listens:
            tracked.kind.made_batch_ns = 0
            self.kinds.listened(controller)
            return
        if tracked.kind.visited:
            self.kinds.probed(controller)
            return
        silent_s = tracked.ran_s(at_ns)
        if silent_s < STARTING_S:
            return
        tracked.kind.was_silent = True
        if self.kinds.was_silent(controller, silent_s):
            if self.kinds.is_batch(controller):
                tracked.kind.made_batch_ns = at_ns
            self._classify_silent(at_ns)

    def _doubt_silence(self, tracked: TrackedPod, at_ns: int) -> None:
        """Forget that a pod's workload is batch, because a further container has started in it.

        The container that did not listen may have been an init container of a service. Not after an OOM kill: then the
        same container has started again.
        """
        tracked.kind.made_batch_ns = 0
        controller = tracked.pod.controller
        try:
            if count_oom_kills(tracked.cgroup) or not self.kinds.is_batch(controller):
                return
        except CgpauseError:
            return
        self.kinds.forget(controller)
        for one in self.pods.values():
            if one.pod.controller == controller:
                one.kind.was_silent = False
                if one.kind.started_ns and one.ran_s(at_ns) < STARTING_S:
                    self._may_listen(one, at_ns)
        self._classify_silent(at_ns)

    def _learn_from_end(self, left: TrackedPod, at_ns: int) -> None:
        """Learn the kind of a workload from a pod of it that is gone.

        It is certainly batch if a program of the pod did not listen. If a program ran and was not asked, the pod is a
        short job, or a service whose rollout was undone: its workload has been silent so far. Of any other pod nothing
        is known: memory was not tight, a rule names its class, or it ended while its image was pulled.
        """
        kind, name = left.kind, left.pod.controller
        if kind.listens or kind.visited or self._class(left) is not PodClass.AUTO:
            return
        is_new = self.kinds.ended(name) if kind.was_silent else kind.has_program and self.kinds.was_silent(name, 0.0)
        if is_new:
            self._classify_silent(at_ns)

    def _classify_silent(self, at_ns: int) -> None:
        """Classify all pods that do not listen again, because more is known of the workloads. Each meets all rules."""
        for tracked in self.pods.values():
            self._heed_kinds(tracked, at_ns)

    def _heed_kinds(self, tracked: TrackedPod, at_ns: int) -> None:
        """Classify a pod that does not listen: it no longer counts as starting if its workload is known as silent."""
        if tracked.kind.starting and self.kinds.is_silent(tracked.pod.controller):
            tracked.kind.starting = tracked.kind.listens = False
        if not tracked.kind.listens:
            self._classify(tracked, at_ns)

    def look_for_programs(self, at_ns: int, *, watched: bool = False) -> None:
        """Look whether programs run in the pods; call it before a sample (`look_for_program`).

        `watched` is whether a new container is an event, so that `starts` is called for it.
        """
        if at_ns >= self._look_at_ns:
            for tracked in self.pods.values():
                runs = look_for_program(tracked, at_ns, watched=watched)
                if runs and 0 < tracked.kind.made_batch_ns < tracked.kind.started_ns:
                    self._doubt_silence(tracked, at_ns)
            self._look_at_ns = min((tracked.kind.look_at_ns for tracked in self.pods.values()), default=0)

    def was_visited(self, tracked: TrackedPod, at_ns: int) -> None:
        """Treat a pod as a service from now on: a process was started in it from outside, perhaps by an exec probe."""
        tracked.kind.visited = True
        self.kinds.probed(tracked.pod.controller)
        self._classify(tracked, at_ns)

    def was_told_to_end(self, tracked: TrackedPod, at_ns: int) -> None:
        """Treat a pod that was told to end as a service for _ENDING_S: its grace period may outlast the spared time."""
        tracked.kind.ending_until_ns = at_ns + int(_ENDING_S * NS_PER_S)
        self._classify(tracked, at_ns)

    def was_not_visited(self, tracked: TrackedPod, at_ns: int) -> None:
        """Stop treating a pod as a service because of processes started in it: it may start so many itself.

        Its workload stays known as a service.
        """
        if tracked.kind.visited:
            tracked.kind.visited = False
            self._classify(tracked, at_ns)
            log.info(
                "not resumed again for processes started in it, until it is frozen %s", fields(pod=tracked.pod.label)
            )

    def is_marked_otherwise(self, tracked: TrackedPod) -> bool:
        """Return True if a pod's opt-out marks have changed since its facts were read, or cannot be read."""
        try:
            return _read_marks(tracked.cgroup) != tracked.marks
        except CgpauseError:
            return True

    def read_details(self, at_ns: int) -> None:
        """Read the facts that a decision needs while memory is tight.

        They are reclaimable memory, tmpfs, which of the running pods listen and, if sacrifices are
        configured, CPU time. The loop calls it once a second; `TrackedPod.is_stat_due` avoids most readings of
        memory.stat, the slowest of them. A pod that cannot be read keeps its last values.
        """
        self.read_at_ns = at_ns
        wants_cpu = self.config.reserve.sacrifice  # only sacrifices use the CPU time
        for tracked in self.pods.values():
            usage, limit = tracked.usage, tracked.pod.memory_max_bytes
            if limit is not None and usage is not None and usage[0] > limit:
                self.update_facts(tracked, at_ns)  # the limit was raised: until then the pod seems to have no claim
            is_due = tracked.is_stat_due(at_ns)
            if not is_due and not wants_cpu:  # most pods of a node
                continue
            cgroup, pod = tracked.cgroup, tracked.pod
            reclaimable_bytes, shmem_bytes, cpu_usage_usec = pod.reclaimable_bytes, pod.shmem_bytes, None
            try:
                if is_due:
                    reclaimable_bytes, shmem_bytes = tracked.read_stat(at_ns)
                if wants_cpu:
                    # Not the pod's own cpu.stat: it includes ended containers, and their work is lost already.
                    names = [name for name in tracked.descendants(at_ns) if "/" not in name]
                    stats = [cgroup.read(os.path.join(name, "cpu.stat")) for name in names]
                    cpu_usage_usec = sum(map(parse_cpu_usage, stats))
            except CgpauseError:
                tracked.list_at_ns = tracked.stat_at_ns = 0  # probably a container has ended
                continue
            read = reclaimable_bytes, shmem_bytes, cpu_usage_usec
            if read != (pod.reclaimable_bytes, pod.shmem_bytes, pod.cpu_usage_usec):
                tracked.pod = replace(
                    pod, reclaimable_bytes=reclaimable_bytes, shmem_bytes=shmem_bytes, cpu_usage_usec=cpu_usage_usec
                )
        self._ask_who_listens(self.pods.values(), at_ns)

    def _ask_who_listens(self, pods: Collection[TrackedPod], at_ns: int, at_once: int = _ASKED_AT_ONCE) -> None:
        """Check which of the due pods listen; at most `at_once`, paused pods first, then the longest due.

        Pods that listen already, or have a class from a rule, are never due. A pod that was paused while it started is
        not due before it has run for STARTING_S. A frozen pod is due once: it may have begun to listen since the last
        check, but it cannot begin now.
        """
        due = [tracked for tracked in pods if self._is_due(tracked, at_ns)]
        # A paused pod is soon frozen for minutes, if it does not listen.
        due.sort(key=lambda tracked: (tracked.pod.paused is None, tracked.kind.ask_at_ns))
        for tracked in due[:at_once]:
            tracked.kind.listens, tracked.kind.starting = listens(tracked.cgroup), False
            tracked.kind.asked_ns, tracked.kind.ask_at_ns = at_ns, at_ns + _ASK_INTERVAL_S * NS_PER_S
            self._classify(tracked, at_ns)
            if tracked.kind.listens is not None:
                self._learn_kind(tracked, at_ns)

    def _is_due(self, tracked: TrackedPod, at_ns: int) -> bool:
        kind, paused = tracked.kind, tracked.pod.paused
        if kind.listens:
            return False
        is_due = at_ns >= kind.ask_at_ns and (paused is None or paused.mechanism is Mechanism.THROTTLE)
        is_due = is_due or (paused is not None and kind.asked_ns < paused.since_ns)
        if not is_due or self._class(tracked) is not PodClass.AUTO:
            return False
        return not kind.starting or tracked.ran_s(at_ns) >= STARTING_S

    def _class(self, tracked: TrackedPod) -> PodClass:
        name = self.names.pods.get(tracked.pod.uid)
        return pod_class(tracked.pod.qos, name, self.config, self._word(tracked))

    def _workload(self, tracked: TrackedPod, at_ns: int) -> Workload:
        ruled = self._class(tracked)
        if ruled is not PodClass.AUTO:
            return Workload(ruled)
        if tracked.kind.visited or tracked.kind.listens or at_ns < tracked.kind.ending_until_ns:
            return Workload.SERVICE
        if tracked.kind.starting:
            return Workload.STARTING
        if tracked.kind.listens is None:
            return Workload.SERVICE  # unknown: the careful guess, because services are paused least
        age_s = tracked.ran_s(at_ns) if tracked.kind.started_ns else math.inf
        return self.kinds.of_silent(tracked.pod.controller, age_s)

    def _paused_elsewhere(self) -> list[PodCgroup]:
        """Return the pods with a record in kubepods trees that are not in use; skip what cannot be read."""
        in_use = None if self.kubepods is None else self.kubepods.id.path
        return [pod for pod, _ in paused_cgroups(self.root, lambda *_: None, but=in_use)]

    def _discover(self) -> list[PodCgroup]:
        if self.kubepods is not None and not self.kubepods.exists():
            self.kubepods.close()
            self.kubepods = None
        # Search again also while the tree is empty: it may be the wrong one of two, made before the other was used.
        if self.kubepods is None or not self.pods or not is_populated(self.kubepods):
            before = self.kubepods
            self.kubepods, self.driver = find_kubepods(self.root, before) or (None, None)
            if before is not None and self.kubepods is not before:
                before.close()
        if self.kubepods is None:
            self.tiers = []
            return []
        try:
            pods, self.tiers = list_pods(self.kubepods)
        except CgroupGoneError:
            return []
        return pods

    def _track(self, found: PodCgroup) -> TrackedPod | None:
        try:
            cgroup = Cgroup(self.root, found.cgroup.path)
        except CgpauseError as e:
            if not isinstance(e, CgroupGoneError) and found.cgroup not in self._complained:
                self._complained.add(found.cgroup)
                log.warning("pod left alone %s", fields(uid=found.uid, error=e))
            return None
        # Track the pod even if its files turn out to be unreadable: it may carry a record, and `status` must show it.
        pod = Pod(cgroup.id, found.uid, found.qos, None, None, None, None)
        tracked = TrackedPod(cgroup, pod)
        self.pods[pod.cgroup] = tracked
        self._look_at_ns = 0
        return tracked


def _read_marks(cgroup: Cgroup) -> frozenset[str]:
    """Return the opt-out xattrs that root has set to any value but 0."""
    if not cgroup.owned_by_root():
        return frozenset()
    return frozenset(xattr for xattr in OPT_OUT_XATTRS if cgroup.get_xattr(xattr) not in (None, b"0"))
