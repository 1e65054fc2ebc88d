"""Refreshes the pod tree, and sets inotify watches on the directories and pods that the last refresh found."""

from __future__ import annotations

import logging
import os
from functools import partial

from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.model import CgroupId, Pod
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.kernel.logfmt import fields
from cgpause.pods.refresh_times import CALM_REFRESH_NS, RefreshTimes
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree

log = logging.getLogger(__name__)


class Follower:
    """Keeps a pod tree and its inotify watches in step with kubelet's changes."""

    def __init__(self, tree: PodTree, root: Cgroup, watch: Watch) -> None:
        """Watch `tree` with `watch`; `root` is the cgroup root, in which kubepods appears."""
        self.times = RefreshTimes()
        self._tree = tree
        self._root = root
        self._watch = watch
        self._tiers: tuple[CgroupId, ...] = ()
        """Watched directories: the cgroup root, the kubepods root and its tiers; empty to watch them again."""
        self._logged: set[str] = set()
        """Warnings since the tree was last refreshed and watched."""

    def refresh(self, at_ns: int, *, tight: bool) -> tuple[list[TrackedPod], list[Pod]]:
        """Refresh the tree, watch what is new, and set the time of the next refresh.

        Return the pods that appeared and the pods that are gone; both are empty if the tree cannot be read, which is
        logged. If a watch failed before, all pods are watched anew once their facts are due. `tight` is whether memory
        is tight: then limits, names and marks must be at most a minute old.
        """
        again = self._watch.degraded and self.times.facts_due(at_ns)
        watch = partial(self._watch.add_pod, paused=False)  # the record of a new pod is not read yet
        try:
            appeared, gone = self._tree.refresh(at_ns, facts=self.times.facts_due(at_ns), watch=watch)
        except CgpauseError as e:
            self._warn(f"tree cannot be refreshed {fields(error=e)}")
            self.times.failed(at_ns)
            return [], []
        for pod in gone:
            self._watch.drop_pod(pod.cgroup)
        if again:
            self._watch.try_again()
            self._tiers = ()
        rewatched = self._watch_tiers()
        if self._logged and self._tiers and not self._watch.degraded:
            self._logged.clear()
            log.info("tree is refreshed and watched again")
        if again:
            for tracked in self._tree.pods.values():
                self._watch.add_pod(tracked.cgroup, paused=tracked.pod.paused is not None)
        self.times.refreshed(
            at_ns,
            tight=tight,
            watched=not self._watch.degraded and self._tree.kubepods is not None,
            in_use=self._tree.is_in_use(),
            named=not any(_awaits_name(tracked, at_ns) for tracked in self._tree.pods.values()),
            names_are_late=self._tree.names_are_late,
            started=any(tracked.pod.changed_at_ns for tracked in appeared),
            rewatched=rewatched,
        )
        return appeared, gone

    def _warn(self, text: str) -> None:
        """Log a warning once while it lasts: a refresh may follow each event in the tree."""
        if text not in self._logged:
            self._logged.add(text)
            log.warning("%s", text)

    def _watch_tiers(self) -> bool:
        """Watch the directories that the last refresh found; return whether any was not watched before."""
        kubepods = self._tree.kubepods
        tiers = (self._root.id, *(() if kubepods is None else (kubepods.id, *self._tree.tiers)))
        if tiers == self._tiers:
            return False
        self._tiers = tiers
        watch = self._watch
        new = watch.add_tier(self._root)
        if kubepods is not None:
            new = watch.add_tier(kubepods) or new
            names = [tier.path for tier in self._tree.tiers]
            if os.path.dirname(kubepods.id.path):  # a nested tree vanishes from its parent and comes back there
                names.append(os.path.dirname(kubepods.id.path))
            for name in names:
                try:
                    with Cgroup(self._tree.root, name) as tier:
                        new = watch.add_tier(tier) or new
                except CgroupGoneError:
                    self._tiers = ()
                except CgpauseError as e:
                    self._tiers = ()
                    self._warn(f"not watched {fields(cgroup=name, error=e)}")
                    watch.note_failure()
        return new


def _awaits_name(tracked: TrackedPod, at_ns: int) -> bool:
    """Return whether a pod's name may come soon; of a folder that kubelet has left behind it never comes.

    A container that starts later leads to a refresh anyway.
    """
    return tracked.pod.name is None and at_ns - tracked.signs.since_ns < CALM_REFRESH_NS
