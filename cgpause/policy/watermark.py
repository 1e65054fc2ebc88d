"""The paper's Algorithms 1 and 2 (Kang & Yu 2024, doi 10.3745/TKIPS.2024.13.3.91), as a pure function.

Algorithm 1 watches: when memory use reaches Mupper, it pauses the R containers that use the least. Algorithm 2 then
samples every interval. At or below Mlower it resumes all containers. After T intervals without improvement it pauses R
more; when none is left to pause, it removes the R paused last.

The paper leaves two points open. Here an interval is "without improvement" if use did not fall since the interval
before, and a removed container's pod is resumed, because a container cannot be restarted inside a paused pod. Four
points depart from the paper. The policy restores each pod's original quota, not a constant CPUd. It removes no
container while use is below Mupper, or if killing all paused pods would not bring use below it. `limits` bounds each
pause. And batch is frozen soon after it was throttled, unless `mechanism` is throttle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cgpause.config.settings import Config
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Action, Pause, PodUsage, Resume, Sacrifice, Sample


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """Algorithm 2's variables; meaningful only while a pod is paused."""

    checked_at_ns: int | None = None
    """Time of Algorithm 2's last sample; None while Algorithm 1 watches."""
    used_pct: float = 0.0
    """Memory use in that sample, in percent."""
    intervals: int = 0
    """Intervals without improvement so far."""


def step(
    state: WatermarkState,
    sample: Sample,
    *,
    candidates: Sequence[PodUsage],
    paused: Sequence[PodUsage],
    all_paused: bool,
    config: Config,
) -> tuple[WatermarkState, tuple[Action, ...]]:
    """Return the next state and the actions of one decision.

    `candidates` (the paper's C) may be paused now, least memory first; `paused` are the daemon's pauses, oldest first;
    `all_paused` is True if no pod is left that could be paused now or soon.
    """
    rules = config.watermark
    used_pct = sample.headroom.used_pct
    usage = f"memory use {used_pct:.1f} %"
    at_ns = sample.at_ns
    if not paused:  # Algorithm 1
        if used_pct < rules.upper_pct:
            return WatermarkState(), ()
        reason = f"{usage} >= upper {rules.upper_pct:g} %"
        return WatermarkState(at_ns, used_pct), _pause(candidates, config, reason)
    # Algorithm 2
    if state.checked_at_ns is None:  # an earlier daemon paused them: the first interval starts now
        return WatermarkState(at_ns, used_pct), ()
    if at_ns - state.checked_at_ns < rules.interval_s * NS_PER_S:
        return state, ()
    if used_pct <= rules.lower_pct:
        reason = f"{usage} <= lower {rules.lower_pct:g} %"
        return WatermarkState(), tuple(Resume(pod, reason) for _, pod in paused)
    intervals = 0 if used_pct < state.used_pct else state.intervals + 1
    if intervals < rules.patience:
        return WatermarkState(at_ns, used_pct, intervals), ()
    reason = f"{usage}, no improvement for {intervals} intervals of {rules.interval_s:g} s"
    if not candidates and all_paused and rules.sacrifice and _can_help(sample, paused, rules.upper_pct):
        last = paused[-rules.batch :]
        killed = tuple(Sacrifice(pod, current, f"{reason}, and every pod is paused") for current, pod in last)
        return WatermarkState(at_ns, used_pct), killed
    return WatermarkState(at_ns, used_pct), _pause(candidates, config, reason)


def _can_help(sample: Sample, paused: Sequence[PodUsage], upper_pct: float) -> bool:
    """Whether use is at or above Mupper, and killing all paused pods would bring it below."""
    return 0 <= -sample.headroom.bytes_until(upper_pct) < sum(current for current, _ in paused)


def _pause(candidates: Sequence[PodUsage], config: Config, reason: str) -> tuple[Action, ...]:
    chosen = candidates[: config.watermark.batch]
    return tuple(
        Pause(pod, current, config.mechanism.first, f"{reason}, rank {rank} of {len(candidates)} by memory.current")
        for rank, (current, pod) in enumerate(chosen, start=1)
    )


def why_it_runs(rank: int, sample: Sample, config: Config) -> str:
    """Return the reason, in words, why this policy does not pause the candidate at `rank`, from 1."""
    used_pct = sample.headroom.used_pct
    if used_pct < config.watermark.upper_pct:
        return f"memory use {used_pct:.1f} % is below upper {config.watermark.upper_pct:g} %"
    rules = config.watermark
    return (
        f"rank {rank}; {rules.batch} are paused at a time, and more after {rules.patience} intervals of "
        f"{rules.interval_s:g} s without improvement"
    )
