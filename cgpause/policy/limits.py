"""The limits on pauses: how long a pod may be paused, and how long it then runs; pure.

A *stretch* begins with a pause. It ends when the pod has run for `min_run_s` without a pause (STARTING_RUN_S after a
pause during its start, if that is longer). It also ends when no program runs in the pod: the next container has missed
no probe. The *budget* of a stretch is the longest time from its start, short runs included: `max_pause_s` for a
service, which may be probed, STARTING_PAUSE_S for a starting pod, `batch_max_pause_s` for batch. When the budget is
spent, the pod must run. A service runs at once, and so does a starting pod whose claim fits. Of all other pods one at a
time runs: it has its *turn*. If a short run renewed the budget, a probe every 10 s could meet a pause each time.

With 9 s (`max_pause_s`) and 12 s (`min_run_s`) a service misses at most one of Kubernetes' default liveness probes in a
row, and three in a row kill. (With 15 s it would miss two. Under pressure it misses one even without a pause:
measured.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cgpause.config.settings import HowPaused, PauseConfig
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, Mechanism, Owner, Pod, PodKind, PodUsage, Result

STARTING_PAUSE_S = 18.0
"""Longest pause of a pod while its kind is unknown. A service has to answer when its probe's initial delay is over.
With Kubernetes' defaults it may be 20 s late: two probes, 10 s apart, may fail before the third kills. If the claims of
such pods do not fit the headroom together, some wait longer, for their turn (`decide`)."""
STARTING_RUN_S = 42.0
"""Shortest run after such a pause: 30 s to start, and 12 s to answer a probe. The answer resets kubelet's count of
failures."""

FREEZE_AFTER_S = 1.5
"""Time from the throttle to the freeze of a batch pod. At 1 % of a CPU, an idle process takes a signal and then cannot
finish its handler. In a frozen process the signal stays pending, and the daemon sees it within a second. A short pause
ends before the freeze and so stays cheap; to the pod, a freeze is a full stop."""
CONTAINERS_CHANGED = "its containers changed"
"""`Pod.distress` of a paused pod in which a container has come or gone."""
# As globals: the lookup of an enum's member takes ten times as long, and these run for each paused pod.
_BATCH, _STARTING = PodKind.BATCH, PodKind.STARTING
_DAEMON, _MANUAL = Owner.DAEMON, Owner.MANUAL
_AUTO, _THROTTLE = HowPaused.AUTO, Mechanism.THROTTLE


@dataclass(frozen=True, slots=True)
class Stretch:
    """One pod's current stretch; `resumed_ns` is None while it is paused."""

    start_ns: int
    resumed_ns: int | None = None
    resumed_by_policy: bool = False
    """Whether a decision ordered the last resume, and not for distress. Otherwise the budget counts as spent."""
    turn: bool = False
    """Whether that resume began the pod's turn."""
    starting: bool = False
    """Whether the pod was `PodKind.STARTING` in the daemon's last pause of this stretch."""


Stretches = Mapping[CgroupId, Stretch]


def paused_by_daemon(pod: Pod) -> bool:
    """Whether the pod is paused, and by the daemon."""
    return pod.paused is not None and pod.paused.owner is _DAEMON


def follow(
    stretches: Stretches, pods: tuple[PodUsage, ...], at_ns: int, config: PauseConfig
) -> dict[CgroupId, Stretch]:
    """Return the stretches after a sample, without pods that vanished, have run for long enough or are `no_program`."""
    followed = {}
    for usage in pods:
        pod = usage.pod
        old = stretches.get(pod.cgroup)
        if pod.paused is not None and paused_by_daemon(pod):
            if old is None or old.resumed_by_policy or old.resumed_ns is not None:
                # A pause by an earlier daemon counts from the beginning of that pause.
                old = Stretch(min(pod.paused.since_ns, at_ns) if old is None else old.start_ns)
            if pod.kind is _STARTING and not old.starting:
                old = replace(old, starting=True)
            followed[pod.cgroup] = old
        elif pod.paused is not None:  # by an operator: it has missed probes, so afterwards it has to run
            start_ns = min(pod.paused.since_ns, at_ns) if old is None else old.start_ns
            followed[pod.cgroup] = Stretch(start_ns, starting=old is not None and old.starting)
        elif old is not None and not pod.no_program:  # a new container has missed no probe yet
            if old.resumed_ns is None:
                # After a resume by an operator or for distress the budget counts as spent: the pod runs for min_run_s.
                start_ns = old.start_ns
                if not old.resumed_by_policy:
                    start_ns = min(start_ns, at_ns - _ns(max_pause_s(pod, config)))
                old = replace(old, start_ns=start_ns, resumed_ns=at_ns)
            if at_ns - (old.resumed_ns or 0) < _run_ns(old, config):
                followed[pod.cgroup] = old
    return followed


def must_end(pod: Pod, at_ns: int) -> tuple[Result, str] | None:
    """Return why a paused pod must be resumed now, regardless of headroom and length of the pause, or None."""
    if pod.paused is None:
        return None
    if pod.paused.expires_ns is not None and at_ns >= pod.paused.expires_ns:
        return Result.EXPIRED, "pause expired"
    if pod.paused.owner is _MANUAL:
        return None
    if pod.distress is not None:
        return Result.DISTRESS, pod.distress
    if pod.protected is not None:
        return Result.PROTECTED, f"now protected: {pod.protected}"
    return None


def freeze_ns(pod: Pod, how: HowPaused) -> int | None:
    """Return the time at which a throttled batch pod is frozen: FREEZE_AFTER_S after the throttle; None for any other.

    A service, and a pod that may become one, can still answer probes while it is throttled. It is frozen only if it
    grows (`outgrows`).
    """
    paused = pod.paused
    if how is not _AUTO or pod.kind is not _BATCH or paused is None:
        return None
    if paused.owner is not _DAEMON or paused.mechanism is not _THROTTLE:
        return None
    return paused.since_ns + _ns(FREEZE_AFTER_S)


def is_spent(pod: Pod, stretch: Stretch | None, at_ns: int, config: PauseConfig) -> bool:
    """Whether a pod is paused by the daemon and the budget of its stretch is spent."""
    return paused_by_daemon(pod) and stretch is not None and at_ns >= end_ns(pod, stretch, config)


def spent_text(pod: Pod, config: PauseConfig) -> str:
    """Return the phrase that a pod was paused for the longest time allowed."""
    return f"paused for the longest time allowed ({max_pause_s(pod, config):g} s)"


def must_run(pod: Pod, stretch: Stretch | None, at_ns: int, config: PauseConfig) -> str | None:
    """Return the reason why a running pod may not be paused now, or None if it may."""
    if pod.protected is not None:
        return f"protected: {pod.protected}"
    if pod.distress is not None:
        return pod.distress
    seconds = must_run_s(pod, stretch, at_ns, config)
    if seconds is None:
        return None
    if pod.no_program:
        return "no program runs in it"
    if at_ns < pod.settled_at_ns:
        return f"too new: left alone for {seconds:.1f} s more"
    return f"was paused long enough: runs for {seconds:.1f} s more"


def must_run_s(pod: Pod, stretch: Stretch | None, at_ns: int, config: PauseConfig) -> float | None:
    """Return the seconds until a running pod may be paused: infinite if never, None if now.

    It is 0 while no program runs in the pod: not now, but perhaps at the next sample.
    """
    if pod.protected is not None or pod.distress is not None:
        return math.inf
    if pod.no_program:
        return 0.0
    if at_ns < pod.settled_at_ns:
        return (pod.settled_at_ns - at_ns) / NS_PER_S
    if stretch is not None and stretch.resumed_ns is not None and must_keep_running(pod, stretch, at_ns, config):
        return (stretch.resumed_ns + _run_ns(stretch, config) - at_ns) / NS_PER_S
    return None


def is_only_new(pod: Pod, stretch: Stretch | None, at_ns: int, config: PauseConfig) -> bool:
    """Whether a running pod is left alone only because it is new, and its `spared_until_ns` is already over."""
    if pod.protected is not None or pod.distress is not None or pod.no_program or at_ns < pod.spared_until_ns:
        return False
    return at_ns < pod.settled_at_ns and not must_keep_running(pod, stretch, at_ns, config)


def must_keep_running(pod: Pod, stretch: Stretch | None, at_ns: int, config: PauseConfig) -> bool:
    """Return True if a running pod's pause budget is spent and it may not be paused before its run is over.

    For a batch pod this holds only if it was resumed by an operator or for distress. A turn always lasts for the whole
    run: the pod may have begun it as a starting one, whose budget is smaller.
    """
    if stretch is None or stretch.resumed_ns is None:
        return False
    # If stretches of batch pods began together, all would become unstoppable together: only a pod's own turn counts.
    # Nor does a run count that a pod began as a starting one, with other ones: of 678 kills of the simulated load
    # `priorities` that left 5 instead of 1. If it is a service after all, its first refused probe resumes it.
    is_spent = at_ns >= end_ns(pod, stretch, config)
    return stretch.turn or (is_spent and (pod.kind is not _BATCH or not stretch.resumed_by_policy))


def end_ns(pod: Pod, stretch: Stretch, config: PauseConfig) -> int:
    """Return the time at which the stretch's budget is spent, in ns."""
    return stretch.start_ns + _ns(max_pause_s(pod, config))


def max_pause_s(pod: Pod, config: PauseConfig) -> float:
    """Return the budget of a pod's stretch in s; short runs between two pauses count, too."""
    match pod.kind:
        case PodKind.BATCH:
            return config.batch_max_pause_s
        case PodKind.STARTING:
            return min(STARTING_PAUSE_S, config.batch_max_pause_s)
        case PodKind.SERVICE:
            return config.max_pause_s


def _run_ns(stretch: Stretch, config: PauseConfig) -> int:
    """Return the running time in ns that ends a stretch; an earlier pause continues it."""
    return _ns(max(config.min_run_s, STARTING_RUN_S) if stretch.starting else config.min_run_s)


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)
