"""Learned growth of pods with page cache, whose use is known only when memory.stat is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.growths import NOISE, POD, look, readings, taught
from helpers.nodes import MIB, MS, START_NS, record

from cgpause.core.model import PodUsage
from cgpause.policy.demand import grown_bytes
from cgpause.policy.growth import Growths
from cgpause.policy.learn import learn


def test_page_cache_is_no_use() -> None:
    found = readings((0, 100, 90))
    assert (found.used, found.reclaimable) == (10 * MIB, 90 * MIB)
    assert readings((0, 80, 90)).used == 0, "more was reclaimable when it was read"
    assert readings((0, 100, 90), (1000, 80, 90)).used == 0


@pytest.mark.parametrize("step", [0.1, 1], ids=["by-noise", "by-more"])
@pytest.mark.parametrize("cache", [5, 40], ids=["little-cache", "much-cache"])
def test_a_pod_that_only_fluctuates_does_not_grow(cache: float, step: float) -> None:
    """Its page cache grows by `step` MiB a second."""
    looks = [
        (1000 * second + 100 * tenth, used + cache + step * second, None if tenth else cache + step * second)
        for second, used in enumerate((100, 99.1, 99.9, 99.2, 100, 99.2, 100, 99.5, 100))
        for tenth in range(10)
    ]
    assert readings(*looks).rate == 0


@pytest.mark.parametrize("cache", [5, 40], ids=["little-cache", "much-cache"])
def test_growth_after_a_slow_decline_counts(cache: float) -> None:
    looks = [(1000 * second, 100 - 0.4 * second + cache + second, cache + second) for second in range(20)]
    assert readings(*looks).rate == 0
    looks.append((20_000, 98 + cache + 20, cache + 20))
    assert readings(*looks).rate > 4 * MIB


BELIEVED = [(0, 100, 0), (50, 150, None), (100, 200, None)]
"""Growth between readings of the page cache."""


@pytest.mark.parametrize(
    ("looks", "least", "most"),
    [
        pytest.param([(0, 100, 90), (1000, 200, 190)], 0, 0, id="page-cache-is-no-growth"),
        pytest.param(BELIEVED, 1000, 1000, id="believed-without-a-reading"),
        pytest.param([*BELIEVED, (1000, 200, 100)], 0, 0, id="until-a-reading-says-that-it-was-cache"),
        pytest.param([*BELIEVED, (1000, 200, 0)], 900, 1000, id="it-was-not"),
        pytest.param([*BELIEVED, (1000, 200, 0.5)], 900, 1000, id="hardly-any-of-it-was"),
        pytest.param([(0, 100, None), (50, 150, None), (100, 200, 150)], 0, 0, id="mostly-cache-and-never-read-before"),
        pytest.param([(0, 100, None), (50, 150, None), (1000, 200, 60)], 0, 0, id="40-MiB-since-an-unknown-time"),
        pytest.param([(0, 100, None), (50, 150, None), (100, 200, 0.5)], 900, 1000, id="hardly-any-cache"),
        pytest.param([(0, 100, 90), (50, 150, None), (5000, 150, None)], 0, 0, id="much-cache-and-not-read-again"),
        pytest.param([(0, 100, 90), (50, 150, None), (500, 200, 190)], 0, 0, id="much-cache-and-more-of-it"),
        pytest.param([(0, 100, 90), (50, 150, None), (500, 200, 140)], 90, 100, id="much-cache-and-growth-beside-it"),
        pytest.param([(0, 100, 90), (500, 200, 140)], 100, 100, id="known-at-the-next-reading"),
        pytest.param([(0, 100, 0), (1000, 300, 100)], 100, 100, id="as-much-use-as-cache"),
        pytest.param([(0, 100, 0), (500, 300, None), (1000, 300, 100.001)], 99, 100, id="a-little-more-cache-than-use"),
        pytest.param([(0, 100, 50), (1000, 60, 10)], 0, 0, id="the-kernel-reclaimed-cache-for-others"),
        pytest.param([(0, 200, 100), (1950, 150, None), (2000, 150, 50)], 0, 0, id="between-two-readings"),
        pytest.param([(0, 100, 0), (50, 200, None), (1000, 200, 10)], 90, 2000, id="some-of-the-growth-was-cache"),
        pytest.param([(0, 70, 10), (500, 80, None)], 20, 20, id="up-to-an-eighth-is-cache"),
        pytest.param([(0, 70, 10 + 2**-20), (500, 80, None)], 0, 0, id="more-than-an-eighth-is-cache"),
    ],
)
def test_rates(looks: list[tuple[float, float, float | None]], least: float, most: float) -> None:
    """The rate lies between these bounds, in MiB/s, and nothing counts as a drop."""
    found = readings(*looks)
    assert least * MIB <= found.rate <= most * MIB
    assert found.base is None


def test_growth_that_was_unknown_since_a_reading_has_taken_the_time_since() -> None:
    """At 800 MiB, 200 MiB of page cache are more than an eighth; at 1610 MiB they are not, and the use is known."""
    found = readings((0, 800, 200), *((50 * step, 800 + 45 * step, None) for step in range(1, 21)))
    assert found.rate == pytest.approx(900 * MIB)
    assert found.step() < 60 * MIB


@pytest.mark.parametrize(("paused_ms", "since_pause"), [(400, 0), (-100, 72)], ids=["before-the-pause", "in-the-pause"])
def test_growth_that_was_unknown_at_a_pause_is_none_of_the_pause(paused_ms: float, since_pause: int) -> None:
    running = replace(POD, reclaimable_bytes=100 * MIB)
    paused = replace(running, paused=record(START_NS + int(paused_ms * MS)))
    first = running if paused_ms > 0 else paused
    growths = taught((0, 300, first, 0), (450, 372, paused, 0), (1000, 372, paused, 1000), (1050, 372, paused, 1000))
    assert grown_bytes(growths.pods[POD.cgroup]) == since_pause * MIB


def test_growth_before_a_pause_is_none_of_it_though_it_has_pushed_the_cache_out() -> None:
    running = replace(POD, reclaimable_bytes=200 * MIB)
    paused = replace(running, paused=record(START_NS + 750 * MS))
    pushed_out = replace(paused, reclaimable_bytes=50 * MIB)
    growths = taught((0, 1000, running, 0), (800, 1200, paused, 0), (1000, 1200, pushed_out, 1000))
    assert grown_bytes(growths.pods[POD.cgroup]) == 0


def test_what_was_known_at_the_last_reading_is_kept_when_all_since_was_cache() -> None:
    looks = [(0, 100, 0), (1000, 110, 0), (1050, 160, None), (2000, 160, 50)]
    found = readings(*looks)
    assert found.rate == pytest.approx(10 * MIB * 0.5**0.1)
    assert (found.top, found.low, found.read_used) == (110 * MIB, 100 * MIB, 110 * MIB)
    assert found.read_rate == found.rate


def test_where_most_was_cache_the_rest_is_growth_since_the_last_reading() -> None:
    found = readings((0, 100, 0), (50, 300, None), (2000, 300, 120))
    assert found.rate == 40 * MIB
    assert found.top == 180 * MIB


@pytest.mark.parametrize(("grown", "rate"), [(NOISE, 0), (NOISE + 1, NOISE + 1)], ids=["noise", "more"])
def test_noise_beside_page_cache_is_no_growth(grown: int, rate: int) -> None:
    found = readings((0, 100, 0), (50, 120, None), (1000, 120 + grown / MIB, 20))
    assert found.rate == rate


def test_the_growth_of_a_newcomer_is_measured_from_its_start() -> None:
    growths = learn(Growths(), look(0, read_ms=0))
    growths = learn(growths, look(1000, PodUsage(MIB, POD), read_ms=0))
    growths = learn(growths, look(1500, PodUsage(121 * MIB, POD), read_ms=0))
    cached = replace(POD, reclaimable_bytes=80 * MIB)
    growths = learn(growths, look(2000, PodUsage(121 * MIB, cached), read_ms=2000))
    assert growths.pods[POD.cgroup].rate == 40 * MIB


def test_a_reading_of_a_pod_that_stands_still_changes_nothing() -> None:
    assert readings((0, 100, 0), (1000, 100, 0)) == readings((0, 100, 0))
