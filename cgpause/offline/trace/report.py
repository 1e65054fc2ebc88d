"""A replay as values for JSON, and as texts and tables; pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from cgpause import __version__
from cgpause.config.settings import Config
from cgpause.core import durations
from cgpause.core.errors import printable
from cgpause.core.memory_units import mib
from cgpause.core.model import Owner
from cgpause.offline.trace.estimate import Estimate
from cgpause.offline.trace.keeper import ReplayPause
from cgpause.offline.trace.replay import Kill, Replayed
from cgpause.telemetry.events import iso
from cgpause.telemetry.trace.read import Trace

UNKNOWN: Final = (
    (
        "All figures but the estimate come from the record as it is: no pause has changed it. It has memory that pods "
        "took after their first pause, and that they would not have taken. So look at the first pause before each "
        "kill; the decisions after it are about a node on which no pod was paused."
    ),
    (
        "In the estimate the record of a paused pod stands still, and those of all others go on. It does not know "
        "whether the pod would have done the same later, what other pods would have done with the free CPU and "
        "memory, which jobs would have started sooner, or whether a probe would have failed. It ends with the first "
        "OOM kill for lack of headroom."
    ),
    "Between two samples nothing is known. While memory is short, the daemon takes up to 20 samples a second.",
)
"""The limits of a replay, as text."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """A trace under one policy."""

    config: Config
    outcome: Replayed
    estimate: Estimate


def summary(trace: Trace) -> dict[str, Any]:
    """The facts of a trace, without policies."""
    lowest, gaps, times = None, 0, []
    paused: set[object] = set()
    free: set[object] = set()
    protected: dict[object, str] = {}
    for number, moment in enumerate(trace.moments()):
        headroom = moment.sample.headroom
        lowest = headroom.available_bytes if lowest is None else min(lowest, headroom.available_bytes)
        gaps += moment.begins and number > 0
        times.append(moment.time_s)
        paused |= {
            pod.cgroup for _, pod in moment.sample.pods if pod.paused is not None and pod.paused.owner is Owner.DAEMON
        }
        free |= {pod.cgroup for _, pod in moment.sample.pods if pod.protected is None}
        protected |= {pod.cgroup: pod.protected for _, pod in moment.sample.pods if pod.protected is not None}
    last = trace.headers[-1]
    return {
        "file": os.path.basename(trace.path),
        "from": iso(trace.from_s),
        "to": iso(trace.to_s),
        "seconds": round(trace.to_s - trace.from_s, 3),
        "samples": trace.samples,
        "longest_step_s": round(max((after - before for before, after in pairwise(times)), default=0.0), 3),
        "gaps": gaps,
        "torn_lines": trace.torn,
        "pods": trace.pods,
        "version": last.version,
        "names": "hashed" if last.hashed else "as they were",
        "capacity_bytes": headroom.capacity_bytes,
        "lowest_headroom_bytes": lowest,
        "pods_paused_by_a_daemon": len(paused),
        "pods_protected": dict(Counter(why for cgroup, why in protected.items() if cgroup not in free)),
    }


def values(trace: Trace, results: Sequence[PolicyReport]) -> dict[str, Any]:
    """Return the replay as values for JSON; the same trace, configuration and version give the same values."""
    kills = results[0].outcome.kills if results else ()
    return {
        "schema": 1,
        "cgpause": __version__,
        "trace": summary(trace),
        "oom_kills": sum(kill.count for kill in kills if not kill.own_limit),
        "oom_kills_at_own_limits": sum(kill.count for kill in kills if kill.own_limit),
        "policies": [_policy(trace, result) for result in results],
        "unknown": list(UNKNOWN),
    }


def _policy(trace: Trace, result: PolicyReport) -> dict[str, Any]:
    outcome, guess = result.outcome, result.estimate
    lengths = [_length(pause, trace) for pause in outcome.pauses]
    return {
        "policy": result.config.policy,
        "mechanism": result.config.mechanism,
        "decisions": outcome.decisions,
        "pauses": len(outcome.pauses),
        "pods_paused": len({pause.pod for pause in outcome.pauses}),
        "paused_s": round(sum(lengths), 3),
        "longest_pause_s": round(max(lengths, default=0.0), 3),
        "first_pause": iso(outcome.pauses[0].start_s) if outcome.pauses else None,
        "sacrifices": len(outcome.sacrifices),
        "kills_forewarned": outcome.forewarned,
        "kills": [_kill(kill) for kill in outcome.kills],
        "each_pause": [_pause(pause, trace) for pause in outcome.pauses],
        "estimate": {
            "until": iso(guess.until_s),
            "ends_with_oom_kill": guess.ends_with_kill,
            "pauses": len(guess.pauses),
            "paused_s": round(sum(min(_length(one, trace), guess.until_s - one.start_s) for one in guess.pauses), 3),
            "lowest_headroom_bytes": guess.lowest_bytes,
            "recorded_lowest_headroom_bytes": guess.recorded_lowest_bytes,
            "last_headroom_bytes": guess.last_bytes,
            "recorded_last_headroom_bytes": guess.recorded_last_bytes,
        },
    }


def _length(pause: ReplayPause, trace: Trace) -> float:
    return (trace.to_s if pause.end_s is None else pause.end_s) - pause.start_s


def _pause(pause: ReplayPause, trace: Trace) -> dict[str, Any]:
    return {
        "pod": pause.pod,
        "start": iso(pause.start_s),
        "end": None if pause.end_s is None else iso(pause.end_s),
        "paused_s": round(_length(pause, trace), 3),
        "mechanism": pause.mechanism,
        "reason": pause.reason,
        "end_reason": pause.end_reason,
    }


def _kill(kill: Kill) -> dict[str, Any]:
    return {
        "time": iso(kill.at_s),
        "pod": kill.pod,
        "processes": kill.count,
        "at_own_limit": kill.own_limit,
        "first_pause_before_s": _rounded(kill.lead_s),
        "pods_paused": kill.paused,
        "paused_s": _rounded(kill.paused_s),
        "grew_most": kill.grew,
        "grew_bytes": kill.grew_bytes,
        "grew_most_paused_s": _rounded(kill.grew_paused_s),
        "not_taken_bytes": kill.spared_bytes,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


# --- words -----------------------------------------------------------------------------------------------------------


def about(found: dict[str, Any]) -> list[str]:
    """Return a few lines about the trace; `found` is the result of `values`."""
    trace = found["trace"]
    took, capacity = durations.shown(trace["seconds"]), mib(trace["capacity_bytes"])
    kills, own = _many(found["oom_kills"], "OOM kill"), found["oom_kills_at_own_limits"]
    lowest = mib(trace["lowest_headroom_bytes"])
    samples = f"{trace['samples']} samples in {took} from {trace['from']}"
    lines = [
        f"{printable(trace['file'])}: {trace['pods']} pods, {capacity}, {samples}",
        f"recorded: {kills} for lack of headroom, {own} at limits of pods; headroom at the least {lowest}",
    ]
    if trace["pods_paused_by_a_daemon"]:
        many = _many(trace["pods_paused_by_a_daemon"], "pod")
        lines.append(f"cgpause paused {many} while this was recorded: what they would have taken is not in it")
    if trace["pods_protected"]:
        lines.append(_never_paused(trace["pods_protected"], trace["pods"]))
    if trace["gaps"] or trace["torn_lines"]:
        lines.append(f"{_many(trace['gaps'], 'gap')}; {_many(trace['torn_lines'], 'line')} cut off, and passed over")
    return lines


def _never_paused(protected: Mapping[str, int], pods: int) -> str:
    """Return a sentence about the protected pods, with their number for each reason."""
    reasons = ", ".join(f"{printable(why)}: {count}" for why, count in sorted(protected.items()))
    return f"{sum(protected.values())} of {_many(pods, 'pod')} are protected, so no policy pauses them ({reasons})"


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a table: headings, then a row for each policy."""
    lines: list[tuple[str, ...]] = [
        ("POLICY", "PAUSES", "PODS", "PAUSED", "LONGEST", "FIRST", "KILLS BEFORE WHICH", "SOONEST", "LATEST")
    ]
    for policy in found["policies"]:
        leads = [
            kill["first_pause_before_s"]
            for kill in policy["kills"]
            if kill["first_pause_before_s"] is not None and not kill["at_own_limit"]
        ]
        lines.append(
            (
                policy["policy"],
                str(policy["pauses"]),
                str(policy["pods_paused"]),
                durations.shown(policy["paused_s"]),
                durations.shown(policy["longest_pause_s"], tenths=True),
                "-" if policy["first_pause"] is None else policy["first_pause"][11:19],
                f"{policy['kills_forewarned']} of {found['oom_kills']}",
                durations.shown(max(leads), tenths=True) if leads else "-",
                durations.shown(min(leads), tenths=True) if leads else "-",
            )
        )
    return lines


def kill_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a table of the OOM kills at the shared limits under each policy: headings, then rows."""
    lines: list[tuple[str, ...]] = [
        ("OOM KILL", "POD", "POLICY", "FIRST PAUSE", "PAUSED", "ITSELF", "NOT TAKEN", "GREW MOST", "THAT ONE")
    ]
    kills = [
        (kill["time"], number, policy["policy"], kill)
        for policy in found["policies"]
        for number, kill in enumerate(policy["kills"])
        if not kill["at_own_limit"]
    ]
    for time, _, policy, kill in sorted(kills, key=lambda one: one[:2]):
        lines.append(
            (
                time[11:19],
                kill["pod"],
                policy,
                _before(kill["first_pause_before_s"]),
                str(kill["pods_paused"]),
                _paused(kill["paused_s"]),
                mib(kill["not_taken_bytes"]),
                f"{kill['grew_most']} +{mib(kill['grew_bytes'])}" if kill["grew_most"] else "-",
                _paused(kill["grew_most_paused_s"]) if kill["grew_most"] else "-",
            )
        )
    return lines


def estimates(found: dict[str, Any]) -> list[str]:
    """Return the estimates, a sentence each."""
    lines = []
    for policy in found["policies"]:
        guess = policy["estimate"]
        which = "last" if guess["ends_with_oom_kill"] else "lowest"
        when = f"before the first OOM kill ({guess['until'][11:19]})" if which == "last" else "at the least"
        free, recorded = guess[f"{which}_headroom_bytes"], guess[f"recorded_{which}_headroom_bytes"]
        pauses = f"{_many(guess['pauses'], 'pause')}, {durations.shown(guess['paused_s'])} in all"
        lines.append(f"{policy['policy']}: {mib(free)} of headroom {when}, where there were {mib(recorded)}; {pauses}")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _before(seconds: float | None) -> str:
    return "none" if seconds is None else f"{durations.shown(seconds, tenths=True)} before"


def _paused(seconds: float | None) -> str:
    return "ran" if seconds is None else f"paused {durations.shown(seconds, tenths=True)}"
