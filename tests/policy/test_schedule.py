"""The time of the next sample."""

from __future__ import annotations

from math import inf

import pytest
from helpers.nodes import START_NS, S

from cgpause.core.model import Headroom, Sample
from cgpause.policy.decide import Decision, State
from cgpause.policy.schedule import FAR_CHECK_NS, LINGER_NS, FillRate, Quiet, Schedule, fast_ns, interval_ns, learn

TOTAL = 10**10
"""Memory in bytes (10 GB); the prior fill rate is then 1 GB/s."""
FAST, SLOW = 50_000_000, 2 * S


def node(used_pct: float) -> Headroom:
    return Headroom(TOTAL, TOTAL - int(TOTAL * used_pct / 100), None, 0)


def sampled(headroom: Headroom, cost_ns: int = 0) -> Sample:
    return Sample(START_NS, headroom, (), cost_ns=cost_ns)


@pytest.mark.parametrize(
    ("cost_ns", "expected_ns"), [(0, FAST), (2_500_000, FAST), (2_500_001, FAST + 20), (10_000_000, 4 * FAST)]
)
def test_looking_takes_a_twentieth_of_a_cpu_at_most(cost_ns: int, expected_ns: int) -> None:
    assert fast_ns(sampled(node(99), cost_ns)) == expected_ns
    assert interval_ns(FillRate(), sampled(node(99), cost_ns), 0) == pytest.approx(expected_ns, abs=10)


@pytest.mark.parametrize(
    ("used_pct", "expected_ns"),
    [
        pytest.param(50, SLOW, id="4-s-away-at-the-prior-rate"),
        pytest.param(70, S, id="2-s-away"),
        pytest.param(80, S // 2, id="1-s-away"),
        pytest.param(89, FAST, id="a-tenth-of-a-second-away"),
        pytest.param(90, FAST, id="at-the-threshold"),
        pytest.param(150, FAST, id="over-the-limit"),
    ],
)
def test_interval_is_half_the_time_to_the_threshold(used_pct: float, expected_ns: int) -> None:
    found_ns = interval_ns(FillRate(), sampled(node(used_pct)), node(used_pct).bytes_until(90))
    assert found_ns == pytest.approx(expected_ns, rel=0.01)


def test_a_faster_fill_shortens_the_interval_and_is_forgotten_by_halves() -> None:
    rate = learn(FillRate(), START_NS, node(50))
    rate = learn(rate, START_NS + S, node(70))  # 2 GB in a second, twice the prior
    assert rate.bytes_per_s == pytest.approx(2e9)
    assert interval_ns(rate, sampled(node(70)), node(70).bytes_until(90)) == pytest.approx(S // 2, rel=0.01)
    rate = learn(rate, START_NS + 11 * S, node(70))
    assert rate.bytes_per_s == pytest.approx(1e9)


def test_a_decision_between_two_samples_gives_no_rate() -> None:
    """In a few milliseconds the charge batches of many CPUs look like gigabytes a second."""
    before = learn(FillRate(), START_NS, node(50))
    assert learn(before, START_NS + FAST // 2 - 1, node(51)) == before
    assert learn(before, START_NS + FAST // 2, node(51)).bytes_per_s > 0


@pytest.mark.parametrize(
    ("at_ns", "before_pct", "used_pct"),
    [(START_NS + S, 70, 10), (START_NS, 10, 90), (START_NS - S, 10, 90)],
    ids=["shrinking-use", "the-same-instant", "an-earlier-one"],
)
def test_what_gives_no_rate(at_ns: int, before_pct: float, used_pct: float) -> None:
    rate = learn(learn(FillRate(), START_NS, node(before_pct)), at_ns, node(used_pct))
    assert rate == FillRate(at_ns, node(used_pct).available_bytes, 0.0)


def test_a_limit_of_nothing_is_looked_at_often() -> None:
    assert interval_ns(FillRate(), sampled(Headroom(TOTAL, TOTAL, 0, 0)), 0) == FAST


# Between two decisions

TIGHT_BELOW = TOTAL // 4
"""Headroom in bytes below which memory is tight."""
SLEEP = 30 * S
QUIET = Quiet(low_bytes=TOTAL // 2, high_bytes=TOTAL, until_ns=START_NS + 5 * S, next_sample_ns=S // 4)


def decided(next_ns: int, quiet: Quiet | None = None, *, tight: bool = False) -> Decision:
    return Decision(State(), (), next_ns, tight, TIGHT_BELOW, quiet)


@pytest.mark.parametrize(
    ("next_ns", "sleep_ns", "lingers", "expected_ns", "asleep"),
    [
        pytest.param(S, None, False, S, False, id="as-the-policy-says"),
        pytest.param(S, SLEEP, False, SLEEP, True, id="sleeps-where-the-kernel-wakes-it"),
        pytest.param(S, SLEEP, True, FAST, False, id="stays-awake-and-samples-fast-after-pressure"),
        pytest.param(SLOW, None, True, SLOW, False, id="pressure-far-from-the-limit-changes-nothing"),
    ],
)
def test_the_next_sample_after_a_decision(
    next_ns: int, sleep_ns: int | None, lingers: bool, expected_ns: int, asleep: bool
) -> None:
    before = Schedule().after_pressure(START_NS - (0 if lingers else LINGER_NS))
    after = before.after_decision(decided(next_ns, QUIET, tight=True), sampled(node(50)), sleep_ns)
    assert after.sample_at_ns == START_NS + expected_ns
    quiet = Quiet(QUIET.low_bytes, inf, START_NS + FAR_CHECK_NS, SLEEP) if asleep else QUIET
    assert (after.asleep, after.tight, after.tight_below_bytes, after.quiet) == (asleep, True, TIGHT_BELOW, quiet)
    assert after.linger_until_ns == before.linger_until_ns


def asleep(quiet: Quiet | None = None, used_pct: float = 50) -> Schedule:
    return Schedule().after_decision(decided(S, quiet), sampled(node(used_pct)), SLEEP)


RESTED = Schedule(sample_at_ns=START_NS + S // 4, quiet=QUIET)


@pytest.mark.parametrize(
    ("schedule", "available", "expected"),
    [
        pytest.param(asleep(), TOTAL, asleep(), id="sleeps-on-with-any-headroom"),
        pytest.param(asleep(), TOTAL * 2 // 5 + 1, asleep(), id="sleeps-on-beside-a-little-growth"),
        pytest.param(asleep(), TOTAL * 2 // 5, None, id="a-tenth-of-the-memory-was-taken"),
        pytest.param(asleep(QUIET), TOTAL // 2, None, id="half-of-what-was-left-was-taken"),
        pytest.param(asleep(used_pct=70), TIGHT_BELOW, None, id="memory-is-tight"),
        pytest.param(asleep()._replace(quiet=None), TOTAL, None, id="a-new-decision-is-needed-also-while-asleep"),
        pytest.param(Schedule(quiet=QUIET), TOTAL - 1, RESTED, id="awake"),
        pytest.param(Schedule(quiet=QUIET), TOTAL // 2, None, id="headroom-at-the-lower-bound"),
        pytest.param(Schedule(quiet=QUIET), TOTAL, None, id="headroom-at-the-upper-bound"),
        pytest.param(Schedule(), TOTAL - 1, None, id="no-decision-to-keep"),
    ],
)
def test_the_next_sample_without_a_decision(schedule: Schedule, available: int, expected: Schedule | None) -> None:
    assert schedule.after_kept(available, START_NS) == expected


def test_a_sleeping_daemon_reads_the_pods_once_a_minute() -> None:
    """One pod may grow by the bytes that another one frees."""
    assert asleep().after_kept(TOTAL // 2, START_NS + FAR_CHECK_NS - 1) is not None
    assert asleep().after_kept(TOTAL // 2, START_NS + FAR_CHECK_NS) is None


def test_a_rest_ends_with_the_time_for_which_the_decision_holds() -> None:
    """The next decision looks for stop signals to paused pods: they are promised an answer within a second."""
    schedule = Schedule(quiet=QUIET._replace(next_sample_ns=QUIET.until_ns))
    rested = schedule.after_kept(TOTAL - 1, START_NS)
    assert rested is not None
    assert rested.sample_at_ns == QUIET.until_ns


def test_a_sample_can_only_be_brought_forward() -> None:
    assert asleep().by(START_NS + S).sample_at_ns == START_NS + S
    assert asleep().by(START_NS + 2 * SLEEP) == asleep()


def test_after_a_failed_sample_nothing_of_the_last_decision_is_relied_on() -> None:
    after = asleep(QUIET).after_failure(START_NS)
    assert after.sample_at_ns == START_NS + S
    assert after.after_kept(TOTAL - 1, START_NS) is None
