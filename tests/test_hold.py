"""How long a pod may be held: boundaries of the stretch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodes import START_NS, S, pod, record

from cgpause.config import HoldConfig
from cgpause.model import Owner, PodUsage, Result, Workload
from cgpause.policy.hold import Stretch, end_ns, follow, is_spent, must_end, must_run, spent_text

HOLD = HoldConfig(max_pause_s=15, min_run_s=12, settle_s=5)
NOW = START_NS
CGROUP = pod("a").cgroup


def followed(old: Stretch | None, *, paused: bool, at_ns: int = NOW) -> Stretch | None:
    now = pod("a", paused=record(at_ns) if paused else None)
    return follow({} if old is None else {CGROUP: old}, (PodUsage(1, now),), at_ns, HOLD).get(CGROUP)


def test_a_stretch_begins_with_the_pause_also_with_a_predecessors() -> None:
    adopted = pod("a", paused=record(NOW - 10 * S))
    assert follow({}, (PodUsage(1, adopted),), NOW, HOLD) == {CGROUP: Stretch(NOW - 10 * S)}


def test_a_running_pod_without_a_past_has_no_stretch() -> None:
    assert followed(None, paused=False) is None


def test_a_short_run_does_not_renew_the_budget() -> None:
    stretch = Stretch(NOW - 10 * S, resumed_ns=NOW - 5 * S, released=True)
    assert followed(stretch, paused=True) == Stretch(NOW - 10 * S)


@pytest.mark.parametrize(
    ("ran_ns", "kept"),
    [(12 * S - 1, True), (12 * S, False), (12 * S + 1, False)],
    ids=["just-below", "at", "just-above"],
)
def test_a_stretch_ends_after_the_shortest_run(ran_ns: int, kept: bool) -> None:  # noqa: FBT001 - a table
    old = Stretch(NOW - 100 * S, resumed_ns=NOW - ran_ns, released=True)
    assert followed(old, paused=False) == (old if kept else None)


def test_our_own_resume_starts_the_run() -> None:
    assert followed(Stretch(NOW - 3 * S, released=True), paused=False) == Stretch(NOW - 3 * S, NOW, released=True)


def test_an_operators_resume_spends_the_whole_budget() -> None:
    """Somebody who resumes a pod wants it to run, not to be paused again in the next second."""
    stretch = followed(Stretch(NOW - 3 * S), paused=False)
    assert stretch is not None
    assert stretch.resumed_ns == NOW
    assert must_run(pod("a"), stretch, NOW, HOLD) == "was held long enough: runs for 12.0 s more"


def test_an_operators_resume_does_not_shorten_a_longer_stretch() -> None:
    stretch = followed(Stretch(NOW - 20 * S), paused=False)
    assert stretch is not None
    assert stretch.start_ns == NOW - 20 * S


def test_a_pod_that_vanished_is_forgotten() -> None:
    assert follow({CGROUP: Stretch(NOW)}, (), NOW, HOLD) == {}


def test_a_manual_pause_has_no_stretch() -> None:
    manual = pod("a", paused=record(NOW, Owner.MANUAL))
    assert follow({}, (PodUsage(1, manual),), NOW, HOLD) == {}


@pytest.mark.parametrize(
    ("held_ns", "ends"), [(15 * S - 1, False), (15 * S, True), (15 * S + 1, True)], ids=["just-below", "at", "above"]
)
def test_a_pause_ends_after_the_longest_time(held_ns: int, ends: bool) -> None:  # noqa: FBT001 - a table
    stretch = Stretch(NOW - held_ns)
    held = pod("a", paused=record(NOW - held_ns))
    assert is_spent(held, stretch, NOW, HOLD) is ends
    assert (end_ns(held, stretch, HOLD) <= NOW) is ends
    assert spent_text(held, HOLD) == "held for the longest time allowed (15 s)"


@pytest.mark.parametrize(("held_ns", "ends"), [(600 * S - 1, False), (600 * S, True)], ids=["just-below", "at"])
def test_batch_is_held_longer(held_ns: int, ends: bool) -> None:  # noqa: FBT001 - a table
    held = pod("a", paused=record(NOW - held_ns), workload=Workload.BATCH)
    assert is_spent(held, Stretch(NOW - held_ns), NOW, HOLD) is ends
    assert spent_text(held, HOLD) == "held for the longest time allowed (600 s)"


def test_a_manual_pause_is_never_spent() -> None:
    assert not is_spent(pod("a", paused=record(0, Owner.MANUAL)), Stretch(0), NOW, HOLD)


@pytest.mark.parametrize(
    ("left_ns", "ends"), [(1, False), (0, True), (-1, True)], ids=["just-before", "at", "just-after"]
)
@pytest.mark.parametrize("owner", Owner)
def test_any_pause_ends_when_it_expires(owner: Owner, left_ns: int, ends: bool) -> None:  # noqa: FBT001 - a table
    held = pod("a", paused=record(NOW, owner, expires_ns=NOW + left_ns))
    assert (must_end(held, NOW) == (Result.EXPIRED, "pause expired")) is ends


def test_a_manual_pause_outlasts_everything_but_its_expiry() -> None:
    manual = pod("a", paused=record(NOW - 1000 * S, Owner.MANUAL), distress="dying", protected="static")
    assert must_end(manual, NOW) is None


def test_distress_and_new_protection_end_a_pause() -> None:
    held = pod("a", paused=record(NOW))
    terminated = Result.DISTRESS, "it is being terminated"
    assert must_end(replace(held, distress="it is being terminated"), NOW) == terminated
    assert must_end(replace(held, protected="rule 1"), NOW) == (Result.PROTECTED, "now protected: rule 1")
    assert must_end(held, NOW) is None
    assert must_end(pod("a", distress="dying"), NOW) is None


def test_protection_and_distress_forbid_a_pause() -> None:
    assert must_run(pod("a", protected="rule 1"), None, NOW, HOLD) == "protected: rule 1"
    assert must_run(pod("a", distress="dying"), None, NOW, HOLD) == "dying"
    assert must_run(pod("a"), None, NOW, HOLD) is None


@pytest.mark.parametrize(("left_ns", "new"), [(1, True), (0, False), (-1, False)], ids=["before", "at", "after"])
def test_a_new_pod_is_left_alone(left_ns: int, new: bool) -> None:  # noqa: FBT001 - a table
    found = must_run(pod("a", settled_at_ns=NOW + left_ns), None, NOW, HOLD)
    assert (found is not None and "too new" in found) is new


@pytest.mark.parametrize(
    ("age_ns", "blocked"), [(15 * S - 1, False), (15 * S, True)], ids=["budget-left", "budget-spent"]
)
def test_within_its_budget_a_pod_may_be_paused_again(age_ns: int, blocked: bool) -> None:  # noqa: FBT001 - a table
    stretch = Stretch(NOW - age_ns, resumed_ns=NOW - S, released=True)
    assert (must_run(pod("a"), stretch, NOW, HOLD) is not None) is blocked
