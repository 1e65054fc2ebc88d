"""How long a pod may be held: at most `max_pause_s` at a stretch, then at least `min_run_s` of running; pure.

A stretch begins with a pause and ends only when the pod has run for `min_run_s` without interruption. Short runs inside
it do not renew the budget, or a probe every 10 s could fall into a pause each time: with 15 s and 12 s at most two of
Kubernetes' default liveness probes in a row are missed, and three kill (design: services and batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cgpause.config import HoldConfig
from cgpause.model import CgroupId, Owner, Pod, PodUsage

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """One pod's current stretch; `resumed_ns` is None while it is paused."""

    start_ns: int
    resumed_ns: int | None = None
    released: bool = False
    """Whether we ordered the last resume; otherwise an operator did."""


Stretches = Mapping[CgroupId, Stretch]


def paused_by_daemon(pod: Pod) -> bool:
    """Whether the pod is held, and by the daemon."""
    return pod.paused is not None and pod.paused.owner is Owner.DAEMON


def follow(stretches: Stretches, pods: tuple[PodUsage, ...], at_ns: int, hold: HoldConfig) -> dict[CgroupId, Stretch]:
    """Bring the stretches up to date with a sample; pods that vanished or ran long enough leave it."""
    followed = {}
    for _, pod in pods:
        old = stretches.get(pod.cgroup)
        if pod.paused is not None and paused_by_daemon(pod):
            # A predecessor's pause counts from its own beginning.
            followed[pod.cgroup] = Stretch(min(pod.paused.since_ns, at_ns) if old is None else old.start_ns)
        elif old is not None:
            if old.resumed_ns is None:
                # Somebody else's resume is a wish: the budget counts as spent, so the pod runs for min_run_s.
                start_ns = old.start_ns if old.released else min(old.start_ns, at_ns - _ns(hold.max_pause_s))
                old = replace(old, start_ns=start_ns, resumed_ns=at_ns)
            if at_ns - (old.resumed_ns or 0) < _ns(hold.min_run_s):
                followed[pod.cgroup] = old
    return followed


def must_end(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> str | None:
    """Why a paused pod has to be resumed now, whatever the memory, or None."""
    if pod.paused is None:
        return None
    if pod.paused.expires_ns is not None and at_ns >= pod.paused.expires_ns:
        return "pause expired"
    if pod.paused.owner is Owner.MANUAL:
        return None
    if pod.distress is not None:
        return pod.distress
    if pod.protected is not None:
        return f"now protected: {pod.protected}"
    if stretch is not None and at_ns >= end_ns(stretch, hold):
        return f"held for the longest time allowed ({hold.max_pause_s:g} s)"
    return None


def must_run(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> str | None:
    """Why a running pod may not be paused now, or None."""
    if pod.protected is not None:
        return f"protected: {pod.protected}"
    if pod.distress is not None:
        return pod.distress
    if at_ns < pod.settled_at_ns:
        return f"too new: left alone for {(pod.settled_at_ns - at_ns) / NS_PER_S:.1f} s more"
    if stretch is not None and stretch.resumed_ns is not None and at_ns >= end_ns(stretch, hold):
        left_ns = stretch.resumed_ns + _ns(hold.min_run_s) - at_ns
        return f"was held long enough: runs for {left_ns / NS_PER_S:.1f} s more"
    return None


def end_ns(stretch: Stretch, hold: HoldConfig) -> int:
    """When the stretch's budget is spent."""
    return stretch.start_ns + _ns(hold.max_pause_s)


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)
