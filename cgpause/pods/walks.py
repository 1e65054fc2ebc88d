"""When to walk the pod tree next. inotify tells what comes and goes; everything else is seen by walking only."""

from __future__ import annotations

from dataclasses import dataclass

from cgpause.policy.hold import NS_PER_S

WALK_NS = 60 * NS_PER_S
"""Walk this often even when inotify is silent: also reads limits, names and marks again."""
CALM_WALK_NS = 10 * WALK_NS
"""Enough while memory is not close, when nobody asks for these facts: nearly all the CPU time of an idle daemon."""
UNNAMED_WALK_NS = 10 * NS_PER_S
"""Sooner while a pod has no name: kubelet makes its log folder some time after its cgroup."""
UNWATCHED_WALK_NS = NS_PER_S
"""Where nothing tells what comes."""
GONE_WALK_NS = NS_PER_S
"""What is gone asks for nothing: one walk sees to all that went meanwhile."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a walk found."""

    watched: bool
    """Whether inotify tells of all that comes."""
    pods: bool
    """Whether there are any. Without, it may be the wrong one of two trees, and the other one is not watched."""
    named: bool
    """Whether every pod has a name."""
    started: bool
    """Whether a pod has just started; it may take its time to listen."""
    rewatched: bool
    """Whether a directory is watched from now on: what came between the walk and the watch was not seen."""


class WalkTimes:
    """The time of the next walk, in ns of the clock that the caller uses; at first it is due at once."""

    def __init__(self) -> None:
        self.due_ns = 0
        self._not_before_ns = 0
        self._facts_due_ns = 0
        self._calm_from_ns = 0

    def is_due(self, at_ns: int) -> bool:
        """Whether to walk now."""
        return at_ns >= self.due_ns

    def facts_due(self, at_ns: int) -> bool:
        """Whether that walk is to read the facts of pods that are known already, too."""
        return at_ns >= self._facts_due_ns

    def expire_facts(self) -> None:
        """They follow from a configuration that is no longer the one."""
        self._facts_due_ns = 0

    def something_came(self, at_ns: int) -> None:
        """Pods come by the dozen, and are left alone at first: one walk sees to all of them."""
        self._not_later_than(max(at_ns, self._not_before_ns))

    def something_went(self, at_ns: int) -> None:
        """A pod, or a tier that was empty."""
        self._not_later_than(at_ns + GONE_WALK_NS)

    def memory_became_close(self, at_ns: int) -> None:
        """The facts are asked for now; those of the last minute will do."""
        self._not_later_than(max(at_ns, self._facts_due_ns))

    def failed(self, at_ns: int) -> None:
        """The tree could not be walked."""
        self.due_ns = at_ns + UNNAMED_WALK_NS

    def walked(self, at_ns: int, found: Found, *, close: bool) -> None:
        """After a walk; `close` is whether memory is close."""
        if self.facts_due(at_ns):
            self._facts_due_ns = at_ns + WALK_NS
        if found.started:
            self._calm_from_ns = at_ns + CALM_WALK_NS
        calm = found.pods and not close and at_ns >= self._calm_from_ns
        if found.rewatched:
            self.due_ns = at_ns
        elif not found.watched:
            self.due_ns = at_ns + UNWATCHED_WALK_NS
        elif not found.named:
            self.due_ns = at_ns + UNNAMED_WALK_NS
        else:
            self.due_ns = at_ns + (CALM_WALK_NS if calm else WALK_NS)

    def rest_until(self, at_ns: int) -> None:
        """Whatever comes until then has to wait; what a walk costs is to remain a small share of the time."""
        self._not_before_ns = at_ns

    def _not_later_than(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, due_ns)
