"""The pods of a node: discovers them in the kubepods tree, and keeps each pod's cgroup open.

Trees appear, vanish and come back, and pods are made and removed at any moment. So each refresh compares the cgroups
that exist (by inode, see `CgroupId`) with the tracked pods.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from cgpause.config.settings import Config, PodClass
from cgpause.core.cgroup_names import CgroupDriver
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.model import CgroupId, Ended, Pod
from cgpause.core.parse import parse_cpu_usage
from cgpause.core.pod_names import Names, workload_of
from cgpause.kernel.background import BackgroundReader
from cgpause.kernel.cgroupfs import Cgroup, DryCgroup
from cgpause.kernel.environment import strongest
from cgpause.kernel.logfmt import fields
from cgpause.pods.discover import PodCgroup, find_kubepods, is_populated, list_pods, paused_cgroups
from cgpause.pods.names import read_names
from cgpause.pods.own_pod import holds_us, own_pod_uid
from cgpause.pods.own_words import OwnWords
from cgpause.pods.programs import Programs
from cgpause.pods.tracked import TrackedPod
from cgpause.policy.classify import Classifier
from cgpause.policy.growth import LITTLE_PCT
from cgpause.policy.kinds import Kinds
from cgpause.policy.rules import OPT_OUT_XATTRS, heeds_word, pod_class, priority, protection, ruled_class

log = logging.getLogger(__name__)

_LEFT_BEHIND = "kubelet uses another kubepods tree now"
_LEFT_BEHIND_NS = 60 * NS_PER_S
"""Longest time for which a pod of an old tree stays protected after kubelet uses that tree again."""


class PodTree:
    """The pods below one cgroup root."""

    def __init__(
        self,
        root: str,
        log_dir: str,
        config: Config,
        kinds: Kinds | None = None,
        words: OwnWords | None = None,
        names: Callable[[], Names] | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        """Begin without pods.

        `kinds` has the known kinds of workloads; `words` reads the pods' own words, and `names` the names in `log_dir`.
        """
        self.root = root
        self.dry_run = dry_run
        self.read_names = names or partial(read_names, log_dir)
        self.config = config
        self.kubepods: Cgroup | None = None
        self.driver: CgroupDriver | None = None
        self.tiers: list[CgroupId] = []
        self.names = Names({}, {})
        self.pods: dict[CgroupId, TrackedPod] = {}
        self.ended: list[Ended] = []
        """The ends of pods and killed containers for the next decision; the loop clears them after it."""
        self.read_at_ns = 0
        """Time of the last `read_details`; 0: never."""
        self.read_fully_at_ns = 0
        """The same without `only_stat`."""
        self.classifier = Classifier(self.pods, kinds or Kinds())
        self.programs = Programs(self.pods, self.classifier, self.is_word_unread, self.request_word_again)
        self.words = words or OwnWords(root)
        self._refreshed = False
        self._complained: set[CgroupId] = set()
        self._own_uid = own_pod_uid()

    def open(self, path: str) -> Cgroup:
        """Open a cgroup of this tree for writing; in a dry run, all writes stay in this process."""
        return (DryCgroup if self.dry_run else Cgroup)(self.root, path)

    def is_in_use(self) -> bool:
        """Return whether there are pods and processes in them; a tree without may be the wrong one of two."""
        return self.kubepods is not None and bool(self.pods) and is_populated(self.kubepods) is True

    def close(self) -> None:
        """Forget all pods and close all descriptors."""
        for tracked in self.pods.values():
            tracked.close()
        self.pods.clear()
        if self.kubepods is not None:
            self.kubepods.close()
            self.kubepods = None

    def refresh(
        self, at_ns: int, *, facts: bool = True, watch: Callable[[Cgroup], None] = lambda _: None
    ) -> tuple[list[TrackedPod], list[Pod]]:
        """Discover the pods once; return the pods that appeared and the pods that are gone.

        `watch` is called for each pod that appears, before it is read: no event reports what was there before a watch.
        Without `facts`, read only the facts of pods without a name: refreshes are frequent when many pods come and go.
        Pods that appear after the first refresh are spared from pauses at first (`TrackedPod.settle`): their cpu.max is
        not set yet when their cgroup appears (measured: systemd writes it up to seconds later).
        A pod that is paused in a tree that is not in use (kubelet's cgroup driver was changed) stays tracked until it
        is resumed or gone. It is protected, so the next decision ends a pause by the daemon.
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
            self.classifier.learn_from_end(left, at_ns)
            if left.ends.pending is not None:
                self.ended.append(left.ends.pending)
            left.close()
        new = [pod for key, pod in found.items() if key not in self.pods]
        if new or any(tracked.pod.name is None for tracked in self.pods.values()):
            self.names = self._with_known_names(self.read_names())
        appeared = list(filter(None, (self._track(pod) for pod in new)))
        for tracked in appeared:
            tracked.signs.seen_ns = at_ns
            watch(tracked.cgroup)
        for key, tracked in self.pods.items():
            if key in left_behind:
                tracked.failure, tracked.failure_until_ns = _LEFT_BEHIND, at_ns + _LEFT_BEHIND_NS
                tracked.pod = replace(tracked.pod, protected=tracked.pod.protected or _LEFT_BEHIND)
            if facts or tracked.pod.name is None:
                self.update_facts(tracked, at_ns)
                if tracked.signs.starting:  # a name that came late says which workload it is
                    self.classifier.heed_kinds(tracked, at_ns)
        for tracked in appeared:
            if self._refreshed:
                tracked.settle(at_ns, self.config.pause)
                self.note_container_change(tracked, at_ns)
            else:
                with suppress(CgpauseError):  # kills from before the daemon's start do not count
                    tracked.ends.count_kills(tracked.cgroup)
        self.take_words(at_ns)
        self.classifier.check_listening(appeared, at_ns, at_once=len(appeared))
        self.classifier.check_listening(self.pods.values(), at_ns)
        self._refreshed = True
        return appeared, gone

    def _with_known_names(self, names: Names) -> Names:
        """Return the names with those that were known before of pods that have no log folder now.

        An unmounted or broken disk must not take the pods their names: where rules name pods, all pauses would end.
        """
        uids = {tracked.pod.uid for tracked in self.pods.values()} - names.ambiguous
        return replace(names, pods={**{u: name for u, name in self.names.pods.items() if u in uids}, **names.pods})

    @property
    def names_are_late(self) -> bool:
        """Whether names were still being read at the end of the last refresh, from a slow disk."""
        return isinstance(self.read_names, BackgroundReader) and self.read_names.is_late

    @property
    def own_pod(self) -> TrackedPod | None:
        """The pod that this process runs in; None if there is none."""
        return next((tracked for tracked in self.pods.values() if tracked.holds_us), None)

    def update_facts(self, tracked: TrackedPod, at_ns: int) -> None:
        """Read name, limits and marks, which seldom change, apply the rules, and protect a pod that cannot be read."""
        if at_ns >= tracked.failure_until_ns:
            tracked.failure = None
        pod, cgroup = tracked.pod, tracked.cgroup
        name = self.names.pods.get(pod.uid)
        memory_max_bytes, error = None, None
        try:
            if tracked.holds_us is None:
                # Once the own pod is found, no other pod is checked. Before that, it may still be discovered late.
                tracked.holds_us = self.own_pod is None and holds_us(cgroup, pod.uid, self._own_uid)
            if tracked.current_fd < 0:
                tracked.current_fd = cgroup.open("memory.current")
            memory_max_bytes = tracked.read_limit(at_ns)
            tracked.marks = _read_marks(cgroup)
        except CgroupGoneError:
            error = "its cgroup is gone"  # the next refresh drops it
        except CgpauseError as e:
            error = f"its cgroup cannot be read: {e}"
            if tracked.error != error:
                log.warning("pod left alone %s", fields(uid=pod.uid, error=e))
        tracked.error = error
        self._request_word(tracked)
        word = tracked.word if heeds_word(pod.qos, name, self.config) else None
        reason = protection(
            uid=pod.uid,
            qos=pod.qos,
            name=name,
            opt_outs=sorted(tracked.marks),
            holds_us=bool(tracked.holds_us),
            node_critical=tracked.node_critical,
            config=self.config,
            word=word,
        )
        ruled = ruled_class(pod.qos, name, self.config)
        tracked.signs.given_class, tracked.signs.is_class_own = pod_class(ruled, word), ruled is PodClass.AUTO
        namespace, pod_name = (None, None) if name is None else (name.namespace, name.name)
        protected, rank = reason or error or tracked.failure, priority(pod.qos, name, self.config)
        known = pod.namespace, pod.name, pod.memory_max_bytes, pod.protected, pod.priority
        if known != (namespace, pod_name, memory_max_bytes, protected, rank):  # they seldom change
            tracked.pod = replace(
                pod,
                namespace=namespace,
                name=pod_name,
                memory_max_bytes=memory_max_bytes,
                protected=protected,
                priority=rank,
                workload=None if name is None else workload_of(name.namespace, name.name),
            )
        self.classifier.classify(tracked, at_ns)

    def _request_word(self, tracked: TrackedPod) -> None:
        """Request the pod's own word, once for its present containers. Do nothing if the configuration ignores it."""
        name = self.names.pods.get(tracked.pod.uid)
        if not tracked.word_requested and heeds_word(tracked.pod.qos, name, self.config):
            tracked.word_requested = self.words.request(tracked.cgroup)

    def is_word_unread(self, tracked: TrackedPod) -> bool:
        """Return True if the pod's own word counts, and could not be read so far."""
        return tracked.word_requested and not self.words.is_answered(tracked.pod.cgroup)

    def take_words(self, at_ns: int) -> None:
        """Take in the pods' own words that were read since the last call."""
        for key, word in self.words.take().items():
            tracked = self.pods.get(key)
            if tracked is not None:
                tracked.word = strongest(tracked.word, word)
                self.update_facts(tracked, at_ns)

    def containers_changed(self, tracked: TrackedPod, at_ns: int, *, removed: bool) -> None:
        """Take in the start or end of a container; `removed` is whether one has ended. Spare the pod for a while."""
        if not removed:
            tracked.ends.note_start()
        elif (ended := tracked.note_end(at_ns)) is not None:
            self.ended.append(ended)
        tracked.settle(at_ns, self.config.pause)
        tracked.below, tracked.list_at_ns = (), 0
        self.note_container_change(tracked, at_ns)

    def note_container_change(self, tracked: TrackedPod, at_ns: int) -> None:
        """Take in a container's start or end: the pod's word is read again, and the pod may begin to listen."""
        self.request_word_again(tracked)
        self.programs.note_container_change(tracked, at_ns)
        self.classifier.note_container_change(tracked, at_ns)

    def request_word_again(self, tracked: TrackedPod) -> None:
        """Have the pod's own word read, because a container of it may have started since the last reading."""
        tracked.word_requested = False
        self._request_word(tracked)

    def check_programs(self, at_ns: int, *, watched: bool = False) -> None:
        """Check whether programs run in the pods, and whether the node needs them; call it before a sample.

        `watched`: inotify reports new containers, so `note_container_change` is called for each.
        """
        for tracked in self.programs.check(at_ns, watched=watched):
            self.update_facts(tracked, at_ns)
        self.take_words(at_ns)  # after the check: a word that was no longer unread in it counts in this sample

    def is_marked_otherwise(self, tracked: TrackedPod) -> bool:
        """Return True if a pod's opt-out marks have changed since its facts were read, or cannot be read."""
        try:
            return _read_marks(tracked.cgroup) != tracked.marks
        except CgpauseError:
            return True

    def read_details(self, at_ns: int, *, only_stat: bool = False) -> None:
        """Read the facts that a decision needs while memory is tight, or where `is_use_unknown`.

        They are reclaimable memory, tmpfs and, but not with `only_stat`, which pods listen and, if sacrifices are
        configured, CPU time. The loop calls it once a second, and with `only_stat` more often while headroom goes.
        `TrackedPod.is_stat_due` avoids most readings of memory.stat, the slowest of them. A pod that cannot be read
        keeps its last values.
        """
        self.read_at_ns = at_ns
        if not only_stat:
            self.read_fully_at_ns = at_ns
        has_cpu = self.config.reserve.sacrifice  # only sacrifices use the CPU time
        wants_cpu = has_cpu and not only_stat
        for tracked in self.pods.values():
            usage = tracked.usage
            if usage is tracked.calm_usage and usage is not None and at_ns < tracked.stat_at_ns and not wants_cpu:
                continue  # most pods of a node: nothing has changed
            tracked.calm_usage = usage
            if tracked.exceeds_limit():
                # The limit was raised. With the old limit the pod would seem to need no more memory.
                self.update_facts(tracked, at_ns)
                tracked.calm_usage = None
            is_due = tracked.is_stat_due(at_ns)
            if not is_due and not wants_cpu:
                continue
            cgroup, pod = tracked.cgroup, tracked.pod
            reclaimable_bytes, shmem_bytes = pod.reclaimable_bytes, pod.shmem_bytes
            cpu_usage_usec = pod.cpu_usage_usec if has_cpu else None
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
        if not only_stat:
            self.classifier.check_listening(self.pods.values(), at_ns)

    def is_use_unknown(self, capacity_bytes: int) -> bool:
        """Return whether `read_details` has to say how much a pod uses, or may use, in a sample far from the limit.

        Either much of its memory is page cache, and its use has changed by more than LITTLE_PCT of `capacity_bytes`; or
        its use is above its limit, so the limit was raised.
        """
        little = capacity_bytes * LITTLE_PCT / 100
        for tracked in self.pods.values():
            if tracked.usage is None:
                continue
            current = tracked.usage[0]
            if tracked.pod.reclaimable_bytes > current >> 3 and abs(current - tracked.stat_bytes) > little:
                return True
            limit = tracked.pod.memory_max_bytes
            if limit is not None and current > limit and tracked.exceeds_limit():
                return True
        return False

    def _paused_elsewhere(self) -> list[PodCgroup]:
        """Return the pods with a record in kubepods trees that are not in use; skip what cannot be read."""
        in_use = None if self.kubepods is None else self.kubepods.id.path
        return [pod for pod, _ in paused_cgroups(self.root, lambda *_: None, but=in_use)]

    def _discover(self) -> list[PodCgroup]:
        if self.kubepods is not None and not self.kubepods.exists():
            self.kubepods.close()
            self.kubepods = None
        # An unused tree was perhaps made before the other one was used, or kubelet has left it.
        if not self.is_in_use():
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
            cgroup = self.open(found.cgroup.path)
        except CgpauseError as e:
            if not isinstance(e, CgroupGoneError) and found.cgroup not in self._complained:
                self._complained.add(found.cgroup)
                log.warning("pod left alone %s", fields(uid=found.uid, error=e))
            return None
        # Track the pod even if its files turn out to be unreadable: it may carry a record, and `status` must show it.
        pod = Pod(cgroup.id, found.uid, found.qos, None, None, None, None)
        tracked = TrackedPod(cgroup, pod)
        self.pods[pod.cgroup] = tracked
        return tracked


def _read_marks(cgroup: Cgroup) -> frozenset[str]:
    """Return the opt-out xattrs that root has set to any value but 0."""
    # One call for the names: most pods have none, and three failed reads would take three exceptions.
    found = set(OPT_OUT_XATTRS).intersection(cgroup.list_xattrs())
    if not found or not cgroup.owned_by_root():
        return frozenset()
    return frozenset(xattr for xattr in found if cgroup.get_xattr(xattr) not in (None, b"0"))
