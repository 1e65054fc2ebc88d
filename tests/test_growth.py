"""Learned growth rates: boundaries and forgetting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes import MS, START_NS, S, pod, record

from cgpause.model import Headroom, Pod, PodUsage, Sample
from cgpause.policy.growth import PRIOR_LASTS_S, Growth, Growths, expected_bytes, learn, prior_rate

MIB = 1 << 20
CAPACITY = 1000 * MIB
POD = pod("a")


def look(ms: int, *pods: PodUsage, read_ms: int | None = None) -> Sample:
    read_at_ns = 0 if read_ms is None else START_NS + read_ms * MS
    return Sample(START_NS + ms * MS, Headroom(CAPACITY, CAPACITY, None, 0), pods, read_at_ns)


def history(*looks: tuple[int, int, Pod]) -> Growth:
    """Growth after looks at (ms, MiB, pod)."""
    growths = Growths()
    for ms, used_mib, seen in looks:
        growths = learn(growths, look(ms, PodUsage(used_mib * MIB, seen)))
    return growths.pods[POD.cgroup]


def readings(*looks: tuple[int, int, int | None]) -> Growth:
    """Growth after looks at (ms, MiB, MiB of it page cache where that is read then)."""
    growths, read_ms, cached_mib = Growths(), None, 0
    for ms, current_mib, read_mib in looks:
        if read_mib is not None:
            read_ms, cached_mib = ms, read_mib
        seen = replace(POD, reclaimable_bytes=cached_mib * MIB)
        growths = learn(growths, look(ms, PodUsage(current_mib * MIB, seen), read_ms=read_ms))
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
    assert readings((0, 100, 90), (1000, 200, 190)).rate == 0


def test_growth_between_readings_is_believed_until_a_reading_says_that_it_was_cache() -> None:
    looks = [(0, 100, 0), (50, 150, None), (100, 200, None)]
    assert readings(*looks).rate > 990 * MIB
    assert readings(*looks, (1000, 200, 100)).rate == 0
    assert readings(*looks, (1000, 200, 0)).rate > 900 * MIB, "it was not"
    assert readings(*looks, (1000, 200, 10)).rate > 900 * MIB, "hardly any of it was"


def test_what_was_known_at_the_last_reading_is_kept_when_all_since_was_cache() -> None:
    looks = [(0, 100, 0), (1000, 110, 0), (1050, 160, None), (2000, 160, 50)]
    assert readings(*looks).rate == pytest.approx(10 * MIB * 0.5**0.1, rel=0.01)


def test_what_grew_beside_the_cache_is_seen_at_the_reading() -> None:
    assert readings((0, 100, 0), (1000, 400, 280)).rate == 20 * MIB


def test_what_was_never_read_before_and_is_mostly_cache_has_shown_nothing() -> None:
    assert readings((0, 100, None), (50, 150, None), (100, 200, 150)).rate == 0
    assert readings((0, 100, None), (50, 150, None), (100, 200, 1)).rate > 900 * MIB


def test_of_a_pod_with_much_cache_the_growth_is_known_when_the_cache_is() -> None:
    assert readings((0, 100, 90), (50, 150, None), (5000, 150, None)).rate == 0
    assert readings((0, 100, 90), (50, 150, None), (500, 200, 190)).rate == 0
    assert readings((0, 100, 90), (50, 150, None), (500, 200, 140)).rate == 100 * MIB


def test_a_reading_of_a_pod_that_stands_still_changes_nothing() -> None:
    assert readings((0, 100, 0), (1000, 100, 0)) == readings((0, 100, 0))


def test_who_is_gone_is_forgotten() -> None:
    known = learn(Growths(), look(0, PodUsage(MIB, POD)))
    assert learn(known, look(1000)).pods == {}


def expected(growth: Growth, at_ns: int, seconds: float) -> float:
    return expected_bytes(growth.rate, prior_rate(growth.seen_at_ns, at_ns, CAPACITY), seconds)


def test_of_what_was_there_before_us_nothing_is_expected_until_it_is_seen() -> None:
    assert expected(history((0, 10, POD)), START_NS, 10) == 0


def test_of_a_new_pod_growth_is_expected() -> None:
    growths = learn(learn(Growths(), look(0)), look(1000, PodUsage(MIB, POD)))
    assert expected(growths.pods[POD.cgroup], START_NS + S, 0.1) == pytest.approx(2 * MIB)


def test_of_a_pod_that_was_held_before_we_came_growth_is_expected() -> None:
    """Else a new daemon would let all of them go at its first look."""
    held = history((0, 10, replace(POD, paused=record(START_NS))))
    assert expected(held, START_NS, 0.1) == pytest.approx(2 * MIB)


def new(rate: float = 0.0) -> Growth:
    return Growth(0, 0, rate, START_NS, None, 0, rate)


@pytest.mark.parametrize(
    ("age_ms", "mib"),
    [(0, 2), (500, 1), (1000, 0.5), (60_000, 0)],
)
def test_the_prior_fades_while_a_pod_is_watched(age_ms: int, mib: float) -> None:
    assert expected(new(), START_NS + age_ms * MS, 0.1) == pytest.approx(mib * MIB, abs=1)


def test_the_prior_expects_no_more_in_the_end_than_while_it_lasts() -> None:
    """It halves twice a second: 2 % of the capacity a second come to 1.4 %, not to 20 % in ten seconds."""
    assert expected(new(), START_NS, 10) == pytest.approx(20 * MIB * PRIOR_LASTS_S)
    assert pytest.approx(0.72, abs=0.01) == PRIOR_LASTS_S


@pytest.mark.parametrize(("rate_mib", "seconds", "mib"), [(30, 1, 30), (3, 0.1, 2), (3, 10, 30)])
def test_the_prior_or_what_was_seen_whichever_comes_to_more(rate_mib: int, seconds: float, mib: float) -> None:
    assert expected(new(rate_mib * MIB), START_NS, seconds) == pytest.approx(mib * MIB)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 1000), st.booleans(), st.booleans()), max_size=20))
def test_a_rate_is_never_negative_and_never_more_than_was_seen(looks: list[tuple[int, int, bool, bool]]) -> None:
    growths, at_ms, fastest, last, read_ms = Growths(), 0, 0.0, None, None
    for after_ms, used_mib, held, is_read in looks:
        at_ms += after_ms
        read_ms = at_ms if is_read else read_ms
        seen = replace(POD, paused=record(START_NS) if held else None)
        growths = learn(growths, look(at_ms, PodUsage(used_mib * MIB, seen), read_ms=read_ms))
        if last is not None:
            fastest = max(fastest, (used_mib - last) * MIB * 100)  # at most once in 10 ms
        last = used_mib
        assert 0 <= growths.pods[POD.cgroup].rate <= max(fastest, 1000 * MIB * 100)
