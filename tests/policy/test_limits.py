"""Limits on the length of a pause: boundaries of the stretch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.nodes import START_NS, S, pod, record

from cgpause.config.settings import HowPaused, PauseConfig
from cgpause.core.model import Mechanism, Owner, Pod, PodKind, PodUsage, Result
from cgpause.policy import limits
from cgpause.policy.limits import Stretch

LIMITS = PauseConfig(max_pause_s=15, min_run_s=12, settle_s=5)
NOW = START_NS
CGROUP = pod("a").cgroup


def followed(old: Stretch | None, made: Pod) -> Stretch | None:
    """Return a pod's stretch after a sample at NOW."""
    return limits.follow({} if old is None else {CGROUP: old}, (PodUsage(1, made),), NOW, LIMITS).get(CGROUP)


def resumed_after(ns: int, *, turn: bool = False, starting: bool = False) -> Stretch:
    """Return a stretch that began `ns` ago, of a pod that the policy has just resumed."""
    return Stretch(NOW - ns, NOW, resumed_by_policy=True, turn=turn, starting=starting)


RUNNING, PAUSED = pod("a"), pod("a", paused=record(NOW))
MANUAL = pod("a", paused=record(NOW, Owner.MANUAL))
NEW, SETTLED = pod("a", settled_at_ns=NOW + 1), pod("a", settled_at_ns=NOW)
TOO_NEW, ITS_TURN = "too new: left alone for", "was paused long enough: runs for"
RESUMED = Stretch(NOW - 10 * S, resumed_ns=NOW - 5 * S, resumed_by_policy=True)


@pytest.mark.parametrize(
    ("old", "made", "expected"),
    [
        pytest.param(None, RUNNING, None, id="no-past"),
        pytest.param(None, pod("a", paused=record(NOW - 10 * S)), Stretch(NOW - 10 * S), id="a-predecessors-pause"),
        pytest.param(None, pod("a", paused=record(NOW + 10 * S)), Stretch(NOW), id="a-record-from-the-future"),
        pytest.param(None, MANUAL, Stretch(NOW), id="a-manual-pause"),
        pytest.param(RESUMED, MANUAL, Stretch(NOW - 10 * S), id="a-manual-pause-soon-after-another"),
        pytest.param(Stretch(NOW - 5 * S), PAUSED, Stretch(NOW - 5 * S), id="kept-while-paused"),
        pytest.param(Stretch(NOW - 5 * S, resumed_by_policy=True), PAUSED, Stretch(NOW - 5 * S), id="resume-failed"),
        pytest.param(RESUMED, PAUSED, Stretch(NOW - 10 * S), id="a-short-run-does-not-renew-the-budget"),
        pytest.param(Stretch(NOW - 3 * S, resumed_by_policy=True), RUNNING, resumed_after(3 * S), id="our-own-resume"),
        # An operator resumes a pod so that it runs, not so that the daemon pauses it again in the next second.
        pytest.param(Stretch(NOW - 3 * S), RUNNING, Stretch(NOW - 15 * S, NOW), id="an-operators-spends-the-budget"),
        pytest.param(Stretch(NOW - 20 * S), RUNNING, Stretch(NOW - 20 * S, NOW), id="and-shortens-no-longer-stretch"),
        pytest.param(Stretch(NOW - 15 * S, NOW), RUNNING, Stretch(NOW - 15 * S, NOW), id="while-it-runs"),
        # The next container has missed no probe, so it does not have to run.
        pytest.param(Stretch(NOW - 15 * S, NOW), replace(RUNNING, no_program=True), None, id="its-container-ended"),
    ],
)
def test_a_stretch_follows_the_pod(old: Stretch | None, made: Pod, expected: Stretch | None) -> None:
    assert followed(old, made) == expected


def test_a_pod_that_vanished_is_forgotten() -> None:
    assert limits.follow({CGROUP: Stretch(NOW)}, (), NOW, LIMITS) == {}


@pytest.mark.parametrize(("more_ns", "ends"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize(("kind", "longest_s"), [(PodKind.SERVICE, 15), (PodKind.BATCH, 600)])
def test_a_pause_ends_after_the_longest_time(kind: PodKind, longest_s: int, more_ns: int, ends: bool) -> None:
    paused_ns = longest_s * S + more_ns
    stretch = Stretch(NOW - paused_ns)
    paused = pod("a", paused=record(NOW - paused_ns), kind=kind)
    assert limits.is_spent(paused, stretch, NOW, LIMITS) is ends
    assert (limits.end_ns(paused, stretch, LIMITS) <= NOW) is ends
    assert limits.spent_text(paused, LIMITS) == f"paused for the longest time allowed ({longest_s} s)"


@pytest.mark.parametrize(("left_ns", "ends"), [(1, False), (0, True), (-1, True)])
@pytest.mark.parametrize("owner", Owner)
def test_any_pause_ends_when_it_expires(owner: Owner, left_ns: int, ends: bool) -> None:
    paused = pod("a", paused=record(NOW, owner, expires_ns=NOW + left_ns))
    assert (limits.must_end(paused, NOW) == (Result.EXPIRED, "pause expired")) is ends


def test_a_manual_pause_outlasts_everything_but_its_expiry() -> None:
    manual = pod("a", paused=record(NOW - 1000 * S, Owner.MANUAL), distress="dying", protected="static")
    assert limits.must_end(manual, NOW) is None


def test_distress_and_new_protection_end_a_pause() -> None:
    assert limits.must_end(replace(PAUSED, distress="being terminated"), NOW) == (Result.DISTRESS, "being terminated")
    assert limits.must_end(replace(PAUSED, protected="rule 1"), NOW) == (Result.PROTECTED, "now protected: rule 1")
    assert limits.must_end(PAUSED, NOW) is None
    assert limits.must_end(pod("a", distress="dying"), NOW) is None


@pytest.mark.parametrize(("batch_s", "seconds"), [(17, 17), (19, 18), (600, 18)])
def test_a_starting_pod_is_paused_for_no_longer_than_batch(batch_s: float, seconds: float) -> None:
    assert limits.max_pause_s(pod("a", kind=PodKind.STARTING), replace(LIMITS, batch_max_pause_s=batch_s)) == seconds


def test_only_a_pause_by_the_daemon_with_a_stretch_is_ever_spent() -> None:
    assert not limits.is_spent(pod("a", paused=record(0)), None, NOW, LIMITS)
    assert not limits.is_spent(pod("a"), Stretch(0), NOW, LIMITS)
    assert not limits.is_spent(pod("a", paused=record(0, Owner.MANUAL)), Stretch(0), NOW, LIMITS)


@pytest.mark.parametrize(
    ("made", "stretch", "seconds", "said"),
    [
        pytest.param(pod("a", protected="rule 1"), None, math.inf, "protected: rule 1", id="protected"),
        pytest.param(pod("a", distress="dying"), None, math.inf, "dying", id="distress"),
        pytest.param(replace(RUNNING, no_program=True), None, 0, "no program runs in it", id="no-program"),
        pytest.param(replace(NEW, settled_at_ns=NOW + 3 * S // 2), None, 1.5, f"{TOO_NEW} 1.5 s more", id="new"),
        pytest.param(SETTLED, None, None, None, id="settled"),
        pytest.param(RUNNING, Stretch(NOW - 20 * S, NOW - 5 * S), 7, f"{ITS_TURN} 7.0 s more", id="runs-for-min-run"),
        pytest.param(SETTLED, Stretch(NOW - 15 * S, NOW), 12, f"{ITS_TURN} 12.0 s more", id="not-new"),
        pytest.param(RUNNING, Stretch(NOW - 14 * S, NOW - 5 * S), None, None, id="budget-left"),
        pytest.param(RUNNING, Stretch(NOW - 20 * S), None, None, id="never-resumed"),
    ],
)
def test_how_long_a_pod_has_to_run_and_why(
    made: Pod, stretch: Stretch | None, seconds: float | None, said: str | None
) -> None:
    assert limits.must_run_s(made, stretch, NOW, LIMITS) == seconds
    assert limits.must_run(made, stretch, NOW, LIMITS) == said


@pytest.mark.parametrize(
    ("kind", "stretch", "turn"),
    [
        pytest.param(PodKind.SERVICE, Stretch(NOW - 15 * S), False, id="paused"),
        pytest.param(PodKind.SERVICE, resumed_after(15 * S), True, id="service"),
        pytest.param(PodKind.SERVICE, resumed_after(15 * S - 1), False, id="service-before"),
        pytest.param(PodKind.STARTING, resumed_after(18 * S), True, id="starting"),
        pytest.param(PodKind.STARTING, resumed_after(18 * S - 1), False, id="starting-before"),
        pytest.param(PodKind.BATCH, resumed_after(600 * S), False, id="batch-resumed-for-memory"),
        pytest.param(PodKind.BATCH, resumed_after(600 * S, turn=True), True, id="batch-in-turn"),
        pytest.param(PodKind.BATCH, Stretch(NOW - 600 * S, NOW), True, id="batch-by-an-operator"),
        pytest.param(PodKind.BATCH, Stretch(NOW - 600 * S + 1, NOW), False, id="batch-before"),
        # It was starting, and became batch in this run.
        pytest.param(PodKind.BATCH, resumed_after(18 * S, turn=True), True, id="batch-by-now-in-turn"),
        pytest.param(PodKind.BATCH, resumed_after(18 * S, starting=True), False, id="batch-by-now"),
    ],
)
def test_a_pod_whose_budget_is_spent_runs_in_its_turn(kind: PodKind, stretch: Stretch | None, turn: bool) -> None:
    assert limits.must_keep_running(pod("a", kind=kind), stretch, NOW, LIMITS) is turn


@pytest.mark.parametrize(
    ("made", "stretch", "only_new"),
    [
        pytest.param(NEW, None, True, id="new"),
        pytest.param(SETTLED, None, False, id="settled"),
        pytest.param(replace(NEW, spared_until_ns=NOW), None, True, id="no-longer-spared"),
        pytest.param(replace(NEW, spared_until_ns=NOW + 1), None, False, id="spared"),
        pytest.param(replace(NEW, protected="rule 1"), None, False, id="protected"),
        pytest.param(replace(NEW, distress="dying"), None, False, id="distress"),
        pytest.param(replace(NEW, no_program=True), None, False, id="no_program"),
        pytest.param(NEW, resumed_after(15 * S), False, id="its-turn"),
        pytest.param(NEW, resumed_after(14 * S), True, id="budget-left"),
    ],
)
def test_pods_that_are_only_new_may_be_paused_where_nothing_else_helps(
    made: Pod, stretch: Stretch | None, only_new: bool
) -> None:
    assert limits.is_only_new(made, stretch, NOW, LIMITS) is only_new


def test_a_stretch_remembers_that_the_kind_was_not_known() -> None:
    starting = replace(PAUSED, kind=PodKind.STARTING)
    assert followed(None, starting) == Stretch(NOW, starting=True)
    known = Stretch(NOW - S, starting=True)
    for kind in PodKind:
        assert followed(known, replace(PAUSED, kind=kind)) == known
    assert followed(Stretch(NOW - S), starting) == known
    assert followed(None, replace(PAUSED, kind=PodKind.BATCH)) == Stretch(NOW)
    assert followed(None, replace(MANUAL, kind=PodKind.STARTING)) == Stretch(NOW), "that is not a pause by the daemon"
    assert followed(None, replace(RUNNING, kind=PodKind.STARTING)) is None


@pytest.mark.parametrize(
    ("starting", "min_run_s", "run_s"),
    [(False, 12, 12), (True, 12, 42), (True, 43, 43), (True, 41, 42)],
    ids=["known", "time-to-start", "longer-anyway", "just-less"],
)
def test_a_pod_that_could_not_start_gets_time_to(starting: bool, min_run_s: float, run_s: int) -> None:
    config = replace(LIMITS, min_run_s=min_run_s)
    old = resumed_after(100 * S, starting=starting)
    made = (PodUsage(1, RUNNING),)

    assert limits.must_run_s(RUNNING, old, NOW, config) == run_s
    assert limits.follow({CGROUP: old}, made, NOW + run_s * S - 1, config) == {CGROUP: old}
    assert limits.follow({CGROUP: old}, made, NOW + run_s * S, config) == {}


THROTTLED = replace(PAUSED, kind=PodKind.BATCH)


def test_throttled_batch_is_frozen_one_and_a_half_seconds_after_the_pause_began() -> None:
    assert limits.freeze_ns(THROTTLED, HowPaused.AUTO) == NOW + 3 * S // 2


@pytest.mark.parametrize(
    ("one", "how"),
    [
        (replace(THROTTLED, paused=None), HowPaused.AUTO),
        (replace(THROTTLED, kind=PodKind.SERVICE), HowPaused.AUTO),
        (replace(THROTTLED, kind=PodKind.STARTING), HowPaused.AUTO),
        (replace(THROTTLED, paused=record(NOW, Owner.MANUAL)), HowPaused.AUTO),
        (replace(THROTTLED, paused=replace(record(NOW), mechanism=Mechanism.FREEZE)), HowPaused.AUTO),
        (THROTTLED, HowPaused.THROTTLE),
        (THROTTLED, HowPaused.FREEZE),
    ],
    ids=["running", "service", "starting", "by hand", "frozen already", "always throttle", "frozen at once"],
)
def test_no_other_pod_is_frozen_later(one: Pod, how: HowPaused) -> None:
    assert limits.freeze_ns(one, how) is None
