"""What is known of workloads: which are services, and which are batch; no files, no clock.

A pod in which nothing listens on a TCP port is batch, or a service that has not started yet. A workload tells them
apart: once a pod of it has listened it is a service; once one has ended by itself, or was silent for FIRM_S, it is
batch for certain. Until then silence counts, but a young pod of a workload that is not certain is paused with care
(`Workload.STARTING`) while pods of other workloads, which are certain, can be paused instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from cgpause.core.model import Workload

FIRM_S = 60.0
"""A service listens within this time of its start; Kubernetes' probes with their defaults allow for half of it."""
KEPT = 1000
"""Workloads remembered."""


class Kinds:
    """The kinds of the workloads of one node."""

    def __init__(self, known: Mapping[str, bool | None] | None = None) -> None:
        """Begin with `known`, as `known()` returned it, of at most KEPT workloads."""
        self._known: dict[str, bool | None] = dict(known or {})
        """Workloads, oldest first: True for a service, False for batch, None for one that was silent so far."""
        self._batch = sum(kind is False for kind in self._known.values())
        """How many are certainly batch."""
        self.version = 0
        """Changes so far."""

    def known(self) -> dict[str, bool | None]:
        """Return a copy of all workloads, oldest first: True for a service, False for batch, None for silent so far."""
        return dict(self._known)

    def listened(self, controller: str | None) -> None:
        """Remember a workload as a service."""
        self._set(controller, known=True)

    def was_silent(self, controller: str | None, seconds: float) -> None:
        """Remember that a pod of a workload has run for so long without listening."""
        if seconds >= FIRM_S:
            self.ended(controller)
        elif controller not in self._known:
            self._set(controller, known=None)

    def ended(self, controller: str | None) -> None:
        """Remember that a pod of a workload has ended by itself without ever listening."""
        if controller is not None and not self._known.get(controller):
            self._set(controller, known=False)

    def is_silent(self, controller: str | None) -> bool:
        """Return True if a pod of this workload that starts need not be waited for."""
        return controller is not None and controller in self._known and not self._known[controller]

    def of_silent(self, controller: str | None, age_s: float) -> Workload:
        """Return what a pod counts as in which nothing listens, `age_s` after its containers changed."""
        is_certain = controller is not None and self._known.get(controller) is False
        if is_certain or age_s >= FIRM_S or not self._batch:
            return Workload.BATCH
        return Workload.STARTING

    def _set(self, controller: str | None, *, known: bool | None) -> None:
        if controller is None or (controller in self._known and self._known[controller] is known):
            return
        self.version += 1
        self._batch += (known is False) - (self._known.get(controller) is False)
        self._known[controller] = known
        if len(self._known) > KEPT:
            oldest = next(iter(self._known))
            self._batch -= self._known.pop(oldest) is False
