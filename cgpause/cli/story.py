"""The values of `cgpause explain REF`: one pod's facts, its place in a decision, and its past pauses."""

from __future__ import annotations

from typing import Any

from cgpause.cli.context import Globals
from cgpause.cli.explain import rule
from cgpause.cli.explaintext import place_values
from cgpause.cli.view import SCHEMA, pod_values
from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, CgroupGoneError
from cgpause.core.model import Sample
from cgpause.pods.tracked import TrackedPod
from cgpause.policy.explain import Verdict
from cgpause.telemetry.events import boot_id, iso
from cgpause.telemetry.history import read
from cgpause.telemetry.pauses import pauses, totals, with_active


def read_story(
    tracked: TrackedPod, sample: Sample, verdicts: tuple[Verdict, ...], config: Config, given: Globals
) -> dict[str, Any]:
    """Return everything about one pod, ready for JSON; `sample` and `verdicts` belong to one decision.

    Raises:
        CgroupGoneError: the pod has ended.
    """
    if not tracked.cgroup.exists():
        raise CgroupGoneError(tracked.cgroup.path)
    verdict = next((verdict for verdict in verdicts if verdict.usage.pod.cgroup == tracked.pod.cgroup), None)
    candidates = sum(verdict.rank is not None for verdict in verdicts)
    return {
        "schema": SCHEMA,
        "policy": config.policy,
        "used_pct": round(sample.headroom.used_pct, 2),
        "headroom_bytes": sample.headroom.available_bytes,
        "pod": pod_values(tracked),
        "decision": None
        if verdict is None
        else {
            "verdict": verdict.text,
            "what": verdict.what,
            "acts": verdict.acts,
            "rule": rule(verdict, sample, config),
            "rank": verdict.rank,
            "candidates": candidates,
            "reserve": None if verdict.place is None else place_values(verdict.place),
        },
        "history": _history(tracked.pod.uid, given),
    }


def _history(uid: str, given: Globals) -> dict[str, Any] | None:
    """Return number, durations and times of a pod's pauses; None if the tree has no history."""
    path = given.history_path
    if path is None:
        return None
    known: dict[str, Any] = {"file": path, "error": None, "pauses": 0, "paused_s": 0.0, "longest_s": 0.0, "unknown": 0}
    known |= {"first": None, "last": None}
    try:
        found = [pause for pause in pauses(read(path)) if pause.uid == uid]
    except CgpauseError as e:
        return known | {"error": str(e)}
    boot = boot_id()
    if any(pause.may_be_active(boot) for pause in found):
        found = with_active(found, given.held(), now_ns())
    for total in totals(found):  # at most one total, as all pauses are of one pod
        known |= {"pauses": total.pauses, "paused_s": total.paused_s, "longest_s": total.longest_s}
        known["unknown"] = total.unknown
    starts = [pause.start for pause in found if pause.start is not None]
    if starts:
        known |= {"first": iso(min(starts)), "last": iso(max(starts))}
    return known
