"""How long a pod may be held: at most so long at a stretch, then at least `min_run_s` of running; pure.

The longest time is `max_pause_s` for a service, which may be probed, and `batch_max_pause_s` for batch.

A stretch begins with a pause and ends only when the pod has run for `min_run_s` without interruption. Short runs inside
it do not renew the budget, or a probe every 10 s could fall into a pause each time: with 9 s and 12 s at most one of
Kubernetes' default liveness probes in a row is missed, and three kill. (15 s would be two, and under pressure a service
misses one by itself: measured.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cgpause.config import HoldConfig
from cgpause.model import CgroupId, Owner, Pod, PodUsage, Result, Workload

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """One pod's current stretch; `resumed_ns` is None while it is paused."""

    start_ns: int
    resumed_ns: int | None = None
    released: bool = False
    """Whether we ordered the last resume; otherwise an operator did."""
    turn: bool = False
    """Whether that resume was its turn."""


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
            if old is None or old.released or old.resumed_ns is not None:
                # A predecessor's pause counts from its own beginning.
                old = Stretch(min(pod.paused.since_ns, at_ns) if old is None else old.start_ns)
            followed[pod.cgroup] = old
        elif old is not None:
            if old.resumed_ns is None:
                # Somebody else's resume is a wish: the budget counts as spent, so the pod runs for min_run_s.
                start_ns = old.start_ns if old.released else min(old.start_ns, at_ns - _ns(max_pause_s(pod, hold)))
                old = replace(old, start_ns=start_ns, resumed_ns=at_ns)
            if at_ns - (old.resumed_ns or 0) < _ns(hold.min_run_s):
                followed[pod.cgroup] = old
    return followed


def must_end(pod: Pod, at_ns: int) -> tuple[Result, str] | None:
    """Why a paused pod has to be resumed now, whatever the memory and however short the pause, or None."""
    if pod.paused is None:
        return None
    if pod.paused.expires_ns is not None and at_ns >= pod.paused.expires_ns:
        return Result.EXPIRED, "pause expired"
    if pod.paused.owner is Owner.MANUAL:
        return None
    if pod.distress is not None:
        return Result.DISTRESS, pod.distress
    if pod.protected is not None:
        return Result.PROTECTED, f"now protected: {pod.protected}"
    return None


def is_spent(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> bool:
    """Whether the daemon has held a pod for the longest time allowed."""
    return paused_by_daemon(pod) and stretch is not None and at_ns >= end_ns(pod, stretch, hold)


def spent_text(pod: Pod, hold: HoldConfig) -> str:
    """The same in words."""
    return f"held for the longest time allowed ({max_pause_s(pod, hold):g} s)"


def must_run(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> str | None:
    """Why a running pod may not be paused now, or None."""
    if pod.protected is not None:
        return f"protected: {pod.protected}"
    if pod.distress is not None:
        return pod.distress
    seconds = must_run_s(pod, stretch, at_ns, hold)
    if seconds is None:
        return None
    if at_ns < pod.settled_at_ns:
        return f"too new: left alone for {seconds:.1f} s more"
    return f"was held long enough: runs for {seconds:.1f} s more"


def must_run_s(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> float | None:
    """Seconds until a running pod may be paused: infinite if never, None if now."""
    if pod.protected is not None or pod.distress is not None:
        return math.inf
    if at_ns < pod.settled_at_ns:
        return (pod.settled_at_ns - at_ns) / NS_PER_S
    if stretch is not None and stretch.resumed_ns is not None and is_turn(pod, stretch, at_ns, hold):
        return (stretch.resumed_ns + _ns(hold.min_run_s) - at_ns) / NS_PER_S
    return None


def is_only_new(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> bool:
    """Whether nothing but its being new keeps a running pod from being paused, and that not at any price."""
    if pod.protected is not None or pod.distress is not None or at_ns < pod.spared_until_ns:
        return False
    return at_ns < pod.settled_at_ns and not is_turn(pod, stretch, at_ns, hold)


def is_turn(pod: Pod, stretch: Stretch | None, at_ns: int, hold: HoldConfig) -> bool:
    """Whether a running pod runs because it had been held for the longest time allowed."""
    if stretch is None or stretch.resumed_ns is None or at_ns < end_ns(pod, stretch, hold):
        return False
    # Batch whose stretches began together would all become unstoppable together: only its own turn counts.
    return pod.workload is Workload.SERVICE or stretch.turn or not stretch.released


def end_ns(pod: Pod, stretch: Stretch, hold: HoldConfig) -> int:
    """When the stretch's budget is spent."""
    return stretch.start_ns + _ns(max_pause_s(pod, hold))


def max_pause_s(pod: Pod, hold: HoldConfig) -> float:
    """Longest time a pod may be held at a stretch."""
    return hold.max_pause_s if pod.workload is Workload.SERVICE else hold.batch_max_pause_s


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)
