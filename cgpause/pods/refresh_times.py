"""Schedules the refreshes of the pod tree. inotify reports pods that come and go; only a refresh sees other changes."""

from __future__ import annotations

from cgpause.core.clock import NS_PER_S

REFRESH_NS = 60 * NS_PER_S
"""Interval of refreshes even without inotify events; each also reads the pods' limits, names and marks again."""
CALM_REFRESH_NS = 10 * REFRESH_NS
"""Interval while memory is not tight: no decision needs limits, names and marks then, and refreshes take nearly all the
CPU time of an idle daemon."""
UNNAMED_REFRESH_NS = 10 * NS_PER_S
"""Interval while a pod has no name: kubelet makes the pod's log folder some time after its cgroup."""
LATE_NAMES_REFRESH_NS = NS_PER_S
"""The same while names are being read from a slow disk. Without a name, hardly any pod may be paused."""
_LATE_NS = 5 * NS_PER_S
"""Longest time for which it stays so short: the disk may hang, and each refresh may wait for it."""
FAILED_REFRESH_NS = 10 * NS_PER_S
"""Delay of the next attempt after a failed refresh."""
UNWATCHED_REFRESH_NS = NS_PER_S
"""Interval while inotify does not report new pods."""
GONE_REFRESH_NS = NS_PER_S
"""Delay of the refresh after a pod is gone: it is not urgent, and one refresh handles all pods that went meanwhile."""


class RefreshTimes:
    """The time of the next refresh, in ns of the caller's clock; the first refresh is due at once."""

    def __init__(self) -> None:
        self.due_ns = 0
        self._not_before_ns = 0
        self._facts_due_ns = 0
        self._calm_from_ns = 0
        self._late_from_ns: int | None = None
        """Time since which each refresh found names being read; None if the last one did not."""

    def is_due(self, at_ns: int) -> bool:
        """Whether a refresh is due."""
        return at_ns >= self.due_ns

    def facts_due(self, at_ns: int) -> bool:
        """Whether a refresh at this time also reads the facts of known pods again."""
        return at_ns >= self._facts_due_ns

    def expire_facts(self) -> None:
        """Make a refresh and the facts of known pods due now: the configuration has changed, and may protect others."""
        self._facts_due_ns = self.due_ns = 0

    def changed(self, at_ns: int, *, came: bool, gone: bool) -> None:
        """Make a refresh due: at once for a new pod or tier (`came`), in GONE_REFRESH_NS for a removed one (`gone`).

        Pods come by the dozen, and a new pod is not paused at first. So after a refresh the next one waits for a while
        (`rest_until`) and then handles all of them.
        """
        if came:
            self._not_later_than(max(at_ns, self._not_before_ns))
        elif gone:
            self._not_later_than(at_ns + GONE_REFRESH_NS)

    def memory_became_tight(self, at_ns: int) -> None:
        """Make a refresh due as soon as the facts are a minute old: decisions need them while memory is tight."""
        self._not_later_than(max(at_ns, self._facts_due_ns))

    def failed(self, at_ns: int) -> None:
        """Schedule the next attempt after a failed refresh."""
        self.due_ns = at_ns + FAILED_REFRESH_NS

    def refreshed(
        self,
        at_ns: int,
        *,
        tight: bool,
        watched: bool,
        in_use: bool,
        named: bool,
        names_are_late: bool,
        started: bool,
        rewatched: bool,
    ) -> None:
        """Schedule the next refresh after a successful one.

        `tight`: memory is tight. `watched`: inotify reports all new pods. `in_use`: there are pods, and processes in
        them. A tree without them may be one that kubelet no longer uses; only a refresh finds the new one, so it comes
        each minute. `named`: no pod waits for its name. `names_are_late`: names are still being read. `started`: a pod
        has just started, and may take some time until it listens. `rewatched`: a new directory is watched, and the
        refresh missed pods that appeared in it before the watch.
        """
        if self.facts_due(at_ns):
            self._facts_due_ns = at_ns + REFRESH_NS
        self._late_from_ns = (self._late_from_ns or at_ns) if names_are_late else None
        if started:
            self._calm_from_ns = at_ns + CALM_REFRESH_NS
        calm = in_use and not tight and at_ns >= self._calm_from_ns
        if rewatched:
            self.due_ns = at_ns
        elif not watched:
            self.due_ns = at_ns + UNWATCHED_REFRESH_NS
        elif not named:
            is_short = self._late_from_ns is not None and at_ns - self._late_from_ns < _LATE_NS
            self.due_ns = at_ns + (LATE_NAMES_REFRESH_NS if is_short else UNNAMED_REFRESH_NS)
        else:
            self.due_ns = at_ns + (CALM_REFRESH_NS if calm else REFRESH_NS)

    def rest_until(self, at_ns: int) -> None:
        """Let new pods wait for a refresh until `at_ns`, so that refreshes take only a small share of CPU time."""
        self._not_before_ns = at_ns

    def _not_later_than(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, due_ns)
