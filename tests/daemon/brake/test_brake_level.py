"""The level of memory.high: a tripwire while the daemon sleeps, an airbag while it is awake."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.headrooms import GIB, LITTLE, PAGE, limited, unlimited

from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Headroom
from cgpause.policy.level import HighLevel, Stall, choose


def level(
    headroom: Headroom,
    *,
    tight: bool = False,
    cache_gib: float = 0,
    care_gib: float = 25,
    now: HighLevel | None = None,
    lifted: bool = False,
) -> HighLevel:
    current = headroom.kubepods_used_bytes + int(cache_gib * GIB)
    return choose(headroom, current, tight=tight, tight_below_bytes=int(care_gib * GIB), now=now, lifted=lifted)


@pytest.mark.parametrize(
    ("headroom", "care_gib", "high_gib"),
    [
        pytest.param(limited(10), 25, 75, id="below-the-limit"),
        pytest.param(limited(10), 40, 60, id="as-early-as-the-policy-cares"),
        pytest.param(unlimited(10, beside_gib=20), 25, 55, id="without-a-limit-where-the-node-has-no-more"),
        pytest.param(replace(limited(10), node_available_bytes=50 * GIB), 25, 35, id="a-node-tighter-than-the-limit"),
    ],
)
def test_asleep_it_is_the_use_at_which_the_policy_cares(headroom: Headroom, care_gib: float, high_gib: int) -> None:
    assert level(headroom, care_gib=care_gib) == HighLevel(high_gib * GIB, tripwire=True)


@pytest.mark.parametrize(
    ("headroom", "now", "high_gib"),
    [
        pytest.param(limited(80), None, 99, id="below-the-limit"),
        pytest.param(limited(80, eviction_bytes=GIB), None, 98, id="and-below-kubelets-threshold"),
        pytest.param(unlimited(70, beside_gib=20), None, 79, id="without-a-limit"),
        pytest.param(limited(98), level(limited(50)), 99, id="a-burst-past-the-tripwire"),
    ],
)
def test_awake_it_is_a_rest_below_the_limit(headroom: Headroom, now: HighLevel | None, high_gib: int) -> None:
    assert level(headroom, tight=True, now=now) == HighLevel(high_gib * GIB, tripwire=False)


@pytest.mark.parametrize(
    ("cache_gib", "now", "tripwire"),
    [
        pytest.param(63.9, None, True, id="fits"),
        pytest.param(64, None, True, id="just-fits"),
        pytest.param(64.1, None, False, id="nearly-in-the-way"),
        pytest.param(64.4, HighLevel(75 * GIB, tripwire=True), True, id="has-grown-towards-it"),
        pytest.param(64.6, HighLevel(75 * GIB, tripwire=True), False, id="has-reached-it"),
        pytest.param(64.4, HighLevel(99 * GIB, tripwire=False), False, id="has-shrunk-a-little"),
        pytest.param(63.9, HighLevel(99 * GIB, tripwire=False), True, id="has-shrunk"),
    ],
)
def test_a_tripwire_never_turns_out_page_cache(cache_gib: float, now: HighLevel | None, tripwire: bool) -> None:
    chosen = level(limited(10), cache_gib=cache_gib, now=now)

    assert chosen == (HighLevel(75 * GIB, tripwire=True) if tripwire else HighLevel(99 * GIB, tripwire=False))


def test_in_force_it_does_not_run_away_from_growth() -> None:
    now = level(limited(90), tight=True)

    for used_gib in (97, 98, 99, 101):
        assert level(limited(used_gib), tight=True, now=now) == now


def test_armed_late_it_comes_down_as_use_does() -> None:
    now = level(limited(99.5), tight=True)
    assert now.high_bytes == 100 * GIB

    now = level(limited(98.9), tight=True, now=now)
    assert now.high_bytes == (int(98.9 * GIB) + LITTLE) // PAGE * PAGE
    assert level(limited(90), tight=True, now=now).high_bytes == 99 * GIB


def test_a_node_that_fills_beside_kubepods_lowers_it_to_what_is_in_use_and_no_further() -> None:
    now = level(unlimited(40, beside_gib=10), tight=True)

    lower = level(unlimited(40, beside_gib=30), tight=True, now=now)
    assert lower.high_bytes == 69 * GIB
    lowest = level(unlimited(40, beside_gib=59), tight=True, now=lower)
    assert lowest.high_bytes == (40 * GIB + LITTLE) // PAGE * PAGE


@pytest.mark.parametrize("limit", [0, 1, PAGE, 10 * PAGE])
def test_odd_limits_give_pages(limit: int) -> None:
    for used in (0, 1, limit, 2 * limit):
        headroom = Headroom(GIB, GIB, limit, used)
        for tight in (False, True):
            chosen = choose(headroom, used, tight=tight, tight_below_bytes=GIB, now=None)
            assert chosen.high_bytes >= 0
            assert chosen.high_bytes % PAGE == 0


def test_lifted_it_stands_at_the_limit_and_is_never_lowered() -> None:
    for now in (None, HighLevel(99 * GIB, tripwire=False)):
        assert level(limited(98), tight=True, now=now, lifted=True).high_bytes == 100 * GIB
    # The node has less headroom now; a lower level would stall the same pods again.
    headroom, now = replace(limited(98), node_available_bytes=GIB), HighLevel(100 * GIB, tripwire=False)
    assert level(headroom, tight=True, now=now, lifted=True).high_bytes == 100 * GIB


# How long the airbag stalls pods


@pytest.mark.parametrize(
    ("steps", "lifted"),
    [
        pytest.param([(98.5, 0), (98.5, 0.999)], False, id="not-yet"),
        pytest.param([(98.5, 0), (98.5, 1)], True, id="for-a-second"),
        pytest.param([(98.49, 0), (98.49, 9)], False, id="below-it"),
        pytest.param([(98.5, 0), (98.49, 0.5), (98.5, 1.2)], False, id="begins-anew-after-a-drop"),
        pytest.param([(98.5, 0), (98.5, 1), (98.01, 2)], True, id="lifted-until-the-use-falls"),
        pytest.param([(98.5, 0), (98.5, 1), (98, 2)], False, id="fell-by-a-percent"),
        pytest.param([(98.5, 0), (98.5, 1), (90, 2)], False, id="fell-far"),
        pytest.param([(98.5, 0), (98.5, 1), (99.5, 2)], True, id="lifted-while-the-use-rises"),
    ],
)
def test_the_airbag_is_lifted_after_a_second(steps: list[tuple[float, float]], lifted: bool) -> None:
    airbag, stall = HighLevel(99 * GIB, tripwire=False), Stall()
    for used_gib, at_s in steps:
        stall = stall.follow(airbag, limited(used_gib), int(at_s * NS_PER_S))

    assert stall.lifted_bytes == (99 * GIB if lifted else None)


@pytest.mark.parametrize("now", [None, HighLevel(99 * GIB, tripwire=True)], ids=["no-level", "tripwire"])
def test_only_an_airbag_is_lifted(now: HighLevel | None) -> None:
    assert Stall(reached_ns=0).follow(now, limited(99), 9 * NS_PER_S) == Stall()
