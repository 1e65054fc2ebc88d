"""Learned growth rates: boundaries and forgetting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes import MS, START_NS, S, pod, record

from cgpause.model import Pod, PodUsage
from cgpause.policy.growth import Growth, Growths, expected_rate, learn

MIB = 1 << 20
CAPACITY = 1000 * MIB
POD = pod("a")


def history(*looks: tuple[int, int, Pod]) -> Growth:
    """Growth after looks at (ms, MiB, pod)."""
    growths = Growths()
    for ms, used_mib, seen in looks:
        growths = learn(growths, (PodUsage(used_mib * MIB, seen),), START_NS + ms * MS)
    return growths.pods[POD.cgroup]


def test_growth_is_a_rate() -> None:
    assert history((0, 10, POD), (500, 15, POD)).rate == 10 * MIB


def test_shrinking_is_none() -> None:
    assert history((0, 10, POD), (500, 5, POD)).rate == 0


def test_a_burst_is_expected_again_and_forgotten_by_halves() -> None:
    looks = [(0, 10, POD), (500, 15, POD), (10_500, 15, POD)]
    assert history(*looks).rate == pytest.approx(5 * MIB)


def test_the_largest_rate_counts_not_the_last() -> None:
    assert history((0, 10, POD), (500, 15, POD), (600, 15, POD), (700, 15, POD)).rate > 9 * MIB


@pytest.mark.parametrize(("ms", "rate"), [(9, 0), (10, 500 * MIB)], ids=["too-short", "long-enough"])
def test_the_shortest_time_to_learn_from(ms: int, rate: float) -> None:
    assert history((0, 10, POD), (ms, 15, POD)).rate == rate


def test_what_was_too_short_is_not_lost() -> None:
    assert history((0, 10, POD), (5, 12, POD), (500, 15, POD)).rate == 10 * MIB


def test_a_held_pod_keeps_its_rate_and_what_it_grows_counts_from_the_pause() -> None:
    held = replace(POD, paused=record(START_NS))
    growth = history((0, 10, POD), (500, 15, POD), (600, 15, held), (60_000, 18, held))
    assert growth.rate == 10 * MIB
    assert growth.held_bytes == 15 * MIB
    assert growth.used_bytes - growth.held_bytes == 3 * MIB


def test_after_a_pause_growth_starts_anew() -> None:
    held = replace(POD, paused=record(START_NS))
    growth = history((0, 10, POD), (500, 10, held), (1000, 30, POD), (1100, 31, POD))
    assert growth.held_bytes is None
    assert growth.rate == pytest.approx(10 * MIB)


def test_page_cache_is_no_growth() -> None:
    looks = [(0, 100, replace(POD, reclaimable_bytes=90 * MIB)), (1000, 200, replace(POD, reclaimable_bytes=190 * MIB))]
    assert history(*looks).rate == 0


def test_of_a_pod_that_is_mostly_cache_the_growth_is_known_when_the_cache_is() -> None:
    cached = replace(POD, reclaimable_bytes=90 * MIB)
    assert history((0, 100, cached), (50, 150, cached)).rate == 0
    assert history((0, 100, cached), (50, 150, cached), (500, 200, replace(POD, reclaimable_bytes=190 * MIB))).rate == 0
    grown = history((0, 100, cached), (50, 150, cached), (500, 200, replace(POD, reclaimable_bytes=140 * MIB)))
    assert grown.rate == 100 * MIB


def test_who_is_gone_is_forgotten() -> None:
    known = learn(Growths(), (PodUsage(MIB, POD),), START_NS)
    assert learn(known, (), START_NS + S).pods == {}


@pytest.mark.parametrize(
    ("age_ms", "rate"),
    [(0, 20 * MIB), (500, 10 * MIB), (1000, 5 * MIB), (60_000, 0)],
)
def test_the_prior_fades_while_a_pod_is_watched(age_ms: int, rate: float) -> None:
    growth = Growth(START_NS, 0, 0, 0.0, START_NS, None)
    assert expected_rate(growth, START_NS + age_ms * MS, CAPACITY) == pytest.approx(rate, abs=1)


def test_what_was_seen_outweighs_the_prior() -> None:
    growth = Growth(START_NS, 0, 0, 30.0 * MIB, START_NS, None)
    assert expected_rate(growth, START_NS, CAPACITY) == 30 * MIB


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 1000), st.booleans()), max_size=20))
def test_a_rate_is_never_negative_and_never_more_than_was_seen(looks: list[tuple[int, int, bool]]) -> None:
    growths, at_ms, fastest, last = Growths(), 0, 0.0, None
    for after_ms, used_mib, held in looks:
        at_ms += after_ms
        seen = replace(POD, paused=record(START_NS) if held else None)
        growths = learn(growths, (PodUsage(used_mib * MIB, seen),), START_NS + at_ms * MS)
        if last is not None:
            fastest = max(fastest, (used_mib - last) * MIB * 100)  # at most once in 10 ms
        last = used_mib
        assert 0 <= growths.pods[POD.cgroup].rate <= max(fastest, 1000 * MIB * 100)
