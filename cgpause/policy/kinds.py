"""The kinds of workloads, learned from their pods: service or batch; no files, no clock.

A pod that listens on a TCP port is a service, and its workload is one from then on. A *silent* pod does not listen: it
is batch, or a service that has not started yet. A workload is certainly batch once a silent pod of it has ended, or was
silent for FIRM_S. Other silent pods count as batch, except in three cases, in which they are `PodKind.STARTING` and the
daemon pauses them with care. First, a pod of their workload has listened since the daemon started. Second, they are
younger than FIRM_S and their workload is a known service. Third, they are younger than FIRM_S, their workload is not
certainly batch, and another one is: then the daemon can pause pods of the other workload.
"""

from __future__ import annotations

from collections.abc import Mapping

from cgpause.core.model import PodKind

FIRM_S = 60.0
"""A pod that has not listened for this long is certainly batch. Kubernetes' default probes give a service half of this
time to listen."""
KEPT = 1000
"""Number of workloads remembered."""


class Kinds:
    """The kinds of the workloads of one node."""

    def __init__(self, known: Mapping[str, bool | None] | None = None) -> None:
        """Begin with `known`, an earlier result of `known()` with at most KEPT workloads."""
        self._known: dict[str, bool | None] = dict(known or {})
        """Workloads, the one met longest ago first: True for a service, False for batch, None for one silent so far."""
        self._heard: set[str] = set()
        """Workloads with a pod that has listened while this object existed: services for certain."""
        self._batch = sum(kind is False for kind in self._known.values())
        """Number of workloads that are certainly batch."""

    def known(self) -> dict[str, bool | None]:
        """Return a copy of all workloads, oldest first: True for a service, False for batch, None for silent so far."""
        return dict(self._known)

    def note_listening(self, workload: str | None) -> None:
        """Remember a workload as a service, because a pod of it listens."""
        self._set(workload, known=True)
        if workload is not None:
            self._heard.add(workload)

    def note_probed(self, workload: str | None) -> None:
        """Remember a workload as a service, because a pod of it was probed; that can be `kubectl exec` in batch."""
        self._set(workload, known=True)

    def note_silent(self, workload: str | None, seconds: float) -> bool:
        """Note that a pod ran for `seconds` s without listening: from FIRM_S on its workload is certainly batch.

        Before that a new workload becomes silent so far. A service stays one. Return whether anything changed.
        """
        if seconds >= FIRM_S:
            return self.note_batch(workload)
        return workload not in self._known and self._set(workload, known=None)

    def note_batch(self, workload: str | None) -> bool:
        """Make a workload certainly batch, unless it is known as a service; return whether that is new.

        For the end of a pod that was found not to listen, and for one that did not listen for FIRM_S.
        """
        return workload is not None and not self._known.get(workload) and self._set(workload, known=False)

    def is_silent(self, workload: str | None) -> bool:
        """Return True if the workload is known and has not listened: the daemon need not wait for a new pod of it."""
        return workload is not None and workload in self._known and not self._known[workload]

    def is_service(self, workload: str | None) -> bool:
        """Return True if the workload is known as a service, perhaps from before the daemon's start."""
        return workload is not None and self._known.get(workload) is True

    def is_batch(self, workload: str | None) -> bool:
        """Return True if the workload is certainly batch."""
        return workload is not None and self._known.get(workload) is False

    def forget(self, workload: str | None) -> None:
        """Forget a workload, as if no pod of it had ever run."""
        if workload is not None and workload in self._known:
            self._batch -= self._known.pop(workload) is False
            self._heard.discard(workload)

    def of_silent(self, workload: str | None, age_s: float) -> PodKind:
        """Return STARTING or BATCH for a pod that has run for `age_s` since its containers changed and does not listen.

        STARTING is a pod of a workload that has listened since the daemon started, or a pod younger than FIRM_S whose
        workload is a known service, or is not certainly batch while another workload is.
        """
        if workload in self._heard or (self.is_service(workload) and age_s < FIRM_S):
            return PodKind.STARTING
        if self.is_batch(workload) or age_s >= FIRM_S or not self._batch:
            return PodKind.BATCH
        return PodKind.STARTING

    def _set(self, workload: str | None, *, known: bool | None) -> bool:
        """Set what is known of a workload; return whether that is new."""
        if workload is None:
            return False
        is_new = workload not in self._known or self._known[workload] is not known
        before = self._known.pop(workload, None)
        self._batch += (known is False) - (before is False)
        self._known[workload] = known  # the newest now
        if len(self._known) > KEPT:
            self.forget(next(iter(self._known)))
        return is_new
