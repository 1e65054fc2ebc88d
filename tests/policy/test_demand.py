"""Demands: worst and expected amounts by limit, peaks and growth, and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.demands import ACTIVE, BUSY, CAPACITY, IDLE, LARGE, NOW, asked, growing, mib, paused
from helpers.nodes import MIB, S, growth, pod, record
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.model import CgroupId, Mechanism, Owner, Pod, PodKind, PodUsage, QosClass
from cgpause.policy.demand import Basis, Demand, leak_bytes, leak_limit_bytes, outgrows, reserved_bytes, unbounded_bytes
from cgpause.policy.growth import Growth

# Amounts


@pytest.mark.parametrize(
    ("known", "limit", "peaks", "worst", "expected", "basis"),
    [
        pytest.param(growing(100), 300, (), 200, 120, Basis.LIMIT, id="limit"),
        pytest.param(growing(100), 300, (150,) * 2, 200, 120, Basis.LIMIT, id="too-few-peaks"),
        pytest.param(growing(100), 300, (160,) * 3, 82, 60, Basis.PEAKS, id="peaks-far-below-the-limit"),
        pytest.param(growing(100), 227, (200,) * 3, 127, 76.2, Basis.LIMIT, id="peaks-that-may-reach-the-limit"),
        pytest.param(growing(100), 228, (200,) * 3, 127.5, 100, Basis.PEAKS, id="peaks-just-below-the-limit"),
        pytest.param(growing(100), 400, (120, 150, 180), 213.5, 50, Basis.PEAKS, id="peaks-that-differ"),
        pytest.param(growing(100), 313.5, (120, 150, 180), 213.5, 128.1, Basis.LIMIT, id="peaks-that-differ-much"),
        pytest.param(growing(150), 400, (160,) * 3, 32, 10, Basis.PEAKS, id="just-below-a-few-peaks"),
        pytest.param(growing(160), 400, (160,) * 3, 240, 144, Basis.LIMIT, id="a-few-peaks-outgrown"),
        pytest.param(growing(100), 300, (299,) * 7, 200, 120, Basis.LIMIT, id="not-enough-peaks-at-the-limit"),
        pytest.param(growing(100), 300, (299,) * 8, 200, 199, Basis.PEAKS, id="enough-peaks-at-the-limit"),
        pytest.param(growing(100), 300, (144,) * 8, 57.8, 44, Basis.PEAKS, id="peaks"),
        pytest.param(
            growing(100), 300, (92,) * 4 + (156,) * 2 + (204,) * 2, 174.8, 80, Basis.PEAKS, id="mean-of-higher"
        ),
        pytest.param(growing(192), 300, (192,) * 8, 108, 6, Basis.PEAKS, id="at-all-peaks"),
        pytest.param(growing(100), 300, (900,) * 8, 200, 200, Basis.PEAKS, id="never-beyond-the-limit"),
        pytest.param(growing(100, low=60 * MIB), 300, (50,) * 8, 200, 20, Basis.PEAKS, id="beyond-all-peaks"),
        pytest.param(growing(100), None, (150, 90), 50, 50, Basis.PEAKS, id="no-limit-one-peak"),
        pytest.param(growing(100), None, (150, 210), 110, 80, Basis.PEAKS, id="no-limit-two-peaks"),
        pytest.param(growing(20, admitted=False), 300, (), 280, 205, Basis.LIMIT, id="newcomer"),
        pytest.param(growing(220, admitted=False), 300, (), 80, 20, Basis.LIMIT, id="newcomer-beyond-what-is-expected"),
        pytest.param(growing(20, admitted=False), 300, (120,) * 8, 111.5, 100, Basis.PEAKS, id="newcomer-with-peaks"),
    ],
)
def test_amounts(
    known: Growth, limit: float | None, peaks: tuple[float, ...], worst: float, expected: float, basis: Basis
) -> None:
    found = asked(known, limit, peaks=peaks)
    assert found.active
    assert (mib(found.worst), mib(found.granted)) == (worst, expected)
    assert found.basis is basis
    busy = asked(known, limit, peaks=peaks, terms=BUSY)
    assert mib(busy.granted) == worst, "a pause costs nothing there"
    quarter = asked(known, limit, peaks=peaks, terms=replace(IDLE, idle_share=0.25))
    assert mib(quarter.granted) == pytest.approx(expected / 4 + worst * 3 / 4)


@pytest.mark.parametrize(
    ("known", "used_share", "expected"),
    [
        pytest.param(growing(100), 0.3, 60, id="as-others"),
        pytest.param(growing(100), 0.7, 120, id="at-most-the-usual-share"),
        pytest.param(growing(20, admitted=False), 0.5, 130, id="newcomer-as-others"),
        pytest.param(growing(20, admitted=False), 0.9, 205, id="newcomer-at-most-the-usual-share"),
        pytest.param(growing(20, admitted=False), 0.1, 28, id="newcomer-beyond-what-others-need"),
    ],
)
def test_a_pod_of_an_unknown_workload_is_expected_to_need_what_others_need_of_their_limits(
    known: Growth, used_share: float, expected: float
) -> None:
    found = asked(known, 300, terms=replace(IDLE, used_share=used_share))
    assert mib(found.granted) == expected
    assert mib(found.worst) == mib(300 * MIB - known.used)
    assert mib(asked(known, 300, peaks=(200,) * 8, terms=replace(IDLE, used_share=used_share)).granted) == mib(
        200 * MIB - known.used
    ), "known peaks say more"


@pytest.mark.parametrize(
    ("used", "peaks", "worst", "basis"),
    [
        pytest.param(200, (190,), 18.5, Basis.PEAKS, id="by-little-of-one"),
        pytest.param(192, (190,) * 5, 12, Basis.PEAKS, id="at-least-a-sixteenth"),
        pytest.param(200, (170,), 200, Basis.GROWTH, id="by-much"),
        pytest.param(210, (190,) * 5, 210, Basis.GROWTH, id="by-much-of-several"),
    ],
)
def test_a_pod_without_a_limit_above_its_peaks_needs_little_until_it_has_exceeded_them_by_much(
    used: float, peaks: tuple[float, ...], worst: float, basis: Basis
) -> None:
    known = growing(used, low=0)
    found = asked(known, None, peaks=peaks, terms=BUSY)
    assert found.worst / MIB == pytest.approx(worst)
    assert found.basis is basis
    idle = asked(known, None, peaks=peaks)
    assert idle.granted == idle.fastest, "while a CPU is idle, a pause would cost time"


@pytest.mark.parametrize(("idle_share", "start"), [(0.49, 0), (0.5, 80)])
def test_a_pod_with_a_known_peak_may_start_while_half_a_cpu_is_idle(idle_share: float, start: float) -> None:
    known = growth(20, admitted=False)
    assert mib(asked(known, None, peaks=(500,), terms=replace(IDLE, idle_share=idle_share)).start) == start


@pytest.mark.parametrize(
    ("known", "asks", "basis"),
    [
        pytest.param(growth(100), 0, Basis.NOTHING, id="does-not-grow"),
        pytest.param(growing(300, low=0), 0, Basis.LIMIT, id="at-its-limit"),
        pytest.param(growing(400, low=0), 0, Basis.LIMIT, id="beyond-its-limit"),
        pytest.param(growth(100, rate=0.1 * MIB), 0.05, Basis.RATE, id="grows-slowly"),
    ],
)
def test_a_pod_that_is_not_active_asks_for_what_it_takes_until_it_could_be_stopped(
    known: Growth, asks: float, basis: Basis
) -> None:
    found = asked(known, 300)
    assert not found.active
    assert mib(found.fastest) == mib(found.worst) == mib(found.granted) == asks
    assert found.basis is basis


@pytest.mark.parametrize(
    ("known", "limit", "peaks", "fastest"),
    [
        pytest.param(growing(100), 300, (), 5, id="rate"),
        pytest.param(growing(100), 103, (), 3, id="claim"),
        pytest.param(growing(100), None, (), 5, id="no-limit"),
        pytest.param(growing(100), 300, (102,) * 8, 5, id="a-known-peak-bounds-no-growth"),
        pytest.param(growing(3), None, (), 5, id="little-without-a-limit"),
    ],
)
def test_the_need_is_what_is_taken_within_a_reaction(
    known: Growth, limit: float | None, peaks: tuple[float, ...], fastest: float
) -> None:
    assert asked(known, limit, peaks=peaks).fastest == fastest * MIB


def test_a_demand_that_is_expected_is_at_least_the_need() -> None:
    found = asked(growth(100, rate=100.0 * MIB, low=0), 300, peaks=(110,) * 8)
    assert mib(found.fastest) == mib(found.granted) == 50
    assert mib(asked(growth(100, rate=100.0 * MIB), 140).granted) == 40


# Active


@pytest.mark.parametrize(("rate", "active"), [(1, False), (1.001, True)], ids=["at", "above"])
def test_growth_of_half_a_percent_of_the_capacity_in_30_s_is_active(rate: float, active: bool) -> None:
    terms = replace(IDLE, capacity_bytes=6000 * MIB)
    assert terms.active_bytes == 30 * MIB
    assert asked(growth(100, rate=rate * MIB), 300, terms=terms).active is active


@pytest.mark.parametrize(
    ("facts", "is_paused", "active"),
    [({}, False, False), ({}, True, True), ({"admitted": False}, False, True)],
    ids=["still", "paused", "newcomer"],
)
def test_paused_and_new_pods_would_grow(facts: dict[str, object], is_paused: bool, active: bool) -> None:
    found = asked(growth(100, **facts), 300, **(paused() if is_paused else {}))
    assert found.active is active
    assert found.newcomer is ("admitted" in facts)
    assert found.is_paused is is_paused


@pytest.mark.parametrize(("claim", "active"), [(4095, False), (4096, True)])
def test_a_pod_at_its_limit_has_nothing_to_ask_for(claim: int, active: bool) -> None:
    found = asked(growing(100, low=0), memory_max_bytes=100 * MIB + claim)
    assert found.active is active


@pytest.mark.parametrize(("more", "active"), [(0, False), (2, True)], ids=["at", "above"])
def test_a_small_surge_is_not_worth_a_pause(more: int, active: bool) -> None:
    """The surge is the amount that the pod has taken since its low plus the amount it is expected to take."""
    used = 2 * ACTIVE + more
    assert asked(growing(0)._replace(used=used, low=used)).active is active, "it is expected to take half as much again"
    taken = growing(0)._replace(used=ACTIVE, low=ACTIVE // 2 - more)
    assert asked(taken).active is active


@given(
    st.floats(0, 2000),
    st.floats(0, 1000),
    st.none() | st.floats(1, 2000),
    st.lists(st.floats(1, 2000), max_size=16),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_demands_are_consistent(
    used: float, rate: float, limit: float | None, peaks: list[float], share: float, admitted: bool, is_paused: bool
) -> None:
    known = growth(used, rate=rate * MIB, admitted=admitted)
    terms = replace(IDLE, idle_share=share)
    found = asked(known, limit, peaks=tuple(peaks), terms=terms, **(paused() if is_paused else {}))
    assert 0 <= found.fastest <= found.granted
    assert found.granted <= max(found.worst, found.fastest) * (1 + 1e-9)
    assert found.returns >= 0
    assert 0 <= found.counted <= max(found.granted, found.fastest)
    if limit is not None:
        assert max(found.worst, found.granted, found.fastest) <= max(limit * MIB - known.used, 0) * (1 + 1e-9)


# Giving back, and growth until the next reaction


def test_a_pod_gives_back_what_it_has_above_its_base() -> None:
    assert mib(asked(growing(100, base=80 * MIB), 300).returns) == 20
    assert mib(asked(growing(100), 300).returns) == 100, "it ends, as far as is known"
    assert asked(growth(100, base=200 * MIB), 300).returns == 0


FLOW: dict[str, Any] = {"base": 80 * MIB, "flow": 2.0 * MIB, "squares": 8.0 * MIB**2}
"""Past its first large drop, a pod has grown by 2 MiB/s in steps of 4 MiB."""
FIRST = {**FLOW, "base": None}


@pytest.mark.parametrize(
    ("known", "limit", "facts", "mean", "deviation"),
    [
        pytest.param(growing(100, **FLOW), 300, {}, 1, 2, id="between-steps"),
        pytest.param(growing(100, **FLOW, grew=True), 300, {}, 5, 0, id="goes-on-at-its-fastest"),
        pytest.param(growing(100, **FLOW), 300, paused(), 4, 0, id="a-paused-one-takes-its-step-at-once"),
        pytest.param(growing(100, **FLOW, grew=True), 300, paused(), 4, 0, id="even-if-it-grew"),
        pytest.param(growing(100, **{**FLOW, "squares": 32.0 * MIB**2}), 300, paused(), 16, 0, id="with-larger-steps"),
        pytest.param(growing(100, **FLOW), 100.5, {}, 0.5, 0.5, id="never-beyond-the-limit"),
        pytest.param(growing(100, **FLOW), 103, paused(), 3, 0, id="nor-when-paused"),
        pytest.param(growing(100, **FLOW), None, {}, 1, 2, id="no-limit"),
        pytest.param(growing(100, base=80 * MIB), 300, {}, 0, 0, id="no-step-yet"),
        pytest.param(growing(100, **FIRST), 300, {}, 60, 0, id="first-surge-at-its-pace"),
        pytest.param(growing(100, **FIRST), 150, {}, 30, 0, id="at-most-what-is-expected"),
        pytest.param(growing(100, **FIRST, excused=True), 300, {}, 1, 2, id="excused-in-its-first-surge"),
        pytest.param(growing(100, grew=True), 300, {}, 5, 0, id="at-least-at-its-fastest"),
        pytest.param(growth(100, **FIRST), 300, {}, 1, 2, id="not-active"),
        pytest.param(growth(20, admitted=False), 100, {}, 55, 0, id="newcomer"),
        pytest.param(growth(100, base=80 * MIB), 300, paused(), 120, 0, id="paused-without-a-known-step"),
    ],
)
def test_growth_until_a_pod_can_be_paused(
    known: Growth, limit: float | None, facts: dict[str, Any], mean: float, deviation: float
) -> None:
    found = asked(known, limit, **facts)
    assert mib(found.counted) == mean
    assert mib(found.variance**0.5) == deviation


@pytest.mark.parametrize(("ago_s", "overdue"), [(20, False), (20 + 1e-6, True)])
def test_a_pod_paused_for_long_is_overdue(ago_s: float, overdue: bool) -> None:
    assert asked(growing(100), 300, **paused(ago_s)).is_overdue is overdue


def test_a_pause_costs_the_time_in_which_a_cpu_was_idle() -> None:
    assert asked(growing(100), 300, **paused(4)).pause_cost_s == 4
    assert asked(growing(100), 300, terms=replace(IDLE, idle_share=0.25), **paused(4)).pause_cost_s == 1
    assert asked(growing(100), 300, **paused(-4)).pause_cost_s == 0, "a record from the future"
    assert asked(growing(100), 300).pause_cost_s == 0


def test_what_is_known_is_passed_on() -> None:
    found = asked(growing(100, grew=True, excused=True), 300, priority=2, kind=PodKind.SERVICE)
    assert (found.excused, found.rate, found.used) == (True, 10 * MIB, 100 * MIB)
    assert (found.order[0], found.is_service) == (2, True)
    assert found.negligible == LARGE
    found = asked(growing(100), 300, kind=PodKind.STARTING)
    assert not found.excused
    assert (found.order[0], found.is_service) == (0, False), "a pod that may be a service is served as batch"


# Order


BEST_EFFORT, BURSTABLE, GUARANTEED = QosClass.BEST_EFFORT, QosClass.BURSTABLE, QosClass.GUARANTEED


def placed(used: float, name: str = "a", *, admitted: bool = True, **facts: Any) -> Demand:  # noqa: ANN401 - fields of a pod
    return asked(growing(used, admitted=admitted), 900, cgroup=CgroupId(f"kubepods/pod{name}", 1), uid=name, **facts)


@pytest.mark.parametrize(
    ("higher", "lower"),
    [
        pytest.param(placed(50, priority=1), placed(100, kind=PodKind.SERVICE), id="priority"),
        pytest.param(placed(50, kind=PodKind.SERVICE), placed(100), id="services"),
        pytest.param(placed(50, admitted=False, kind=PodKind.SERVICE), placed(100), id="group-first"),
        pytest.param(placed(50, qos=BEST_EFFORT), placed(100, admitted=False, qos=GUARANTEED), id="newcomers-last"),
        pytest.param(placed(50, qos=GUARANTEED), placed(100, qos=BURSTABLE), id="guaranteed"),
        pytest.param(placed(50, qos=BURSTABLE), placed(100, qos=BEST_EFFORT), id="burstable"),
        pytest.param(placed(51), placed(50), id="size"),
        pytest.param(
            placed(5, admitted=False, changed_at_ns=1),
            placed(50, admitted=False, changed_at_ns=2),
            id="the-newcomer-that-came-first",
        ),
        pytest.param(placed(50, "b"), placed(50, "a"), id="ties-are-broken"),
    ],
)
def test_order(higher: Demand, lower: Demand) -> None:
    assert higher.order > lower.order


# Pods that cannot be paused


def reserved(known: Growth, limit: float | None, seconds: float, **more: Any) -> float:  # noqa: ANN401 - of `asked`
    return mib(reserved_bytes(asked(known, limit, **more), known, seconds))


def test_only_of_batch_the_growth_that_has_not_ended_counts() -> None:
    """A service is paused for a few seconds at most."""
    known = growing(100, base=None, flow=10.0 * MIB)
    batch, service = (asked(known, 900, kind=kind) for kind in (PodKind.BATCH, PodKind.SERVICE))
    assert mib(batch.counted) == 300, "of 30 s"
    assert mib(service.counted) == 5, "of half a second"


FOR_EVER = float("inf")


@pytest.mark.parametrize(("seconds", "expected"), [(2, 20), (10, 100), (FOR_EVER, 100), (0, 0)])
def test_growth_is_reserved_until_a_pod_can_be_paused(seconds: float, expected: float) -> None:
    assert reserved(growing(100), 900, seconds) == expected


def test_no_more_is_reserved_than_can_be_taken() -> None:
    assert reserved(growing(100), 130, 10) == 30
    assert reserved(growth(100, rate=0.1 * MIB), 130, 10) == 0.05
    known = growth(100, rate=100.0 * MIB, low=0)
    impatient = asked(known, None, peaks=(101,))
    assert impatient.fastest >= impatient.worst
    assert reserved(known, None, 10, peaks=(101,)) == mib(max(impatient.fastest, impatient.worst))


@pytest.mark.parametrize(
    ("kind", "base", "seconds", "expected"),
    [
        pytest.param(PodKind.SERVICE, 50 * MIB, 10, 5, id="a-service"),
        pytest.param(PodKind.SERVICE, None, 10, 5, id="a-service-that-has-freed-nothing"),
        pytest.param(PodKind.BATCH, 50 * MIB, FOR_EVER, 5, id="protected"),
        pytest.param(PodKind.BATCH, None, FOR_EVER, 100, id="protected-and-has-freed-nothing"),
        pytest.param(PodKind.BATCH, 50 * MIB, 10, 100, id="batch-in-its-turn"),
    ],
)
def test_of_a_service_or_a_pod_that_rises_and_falls_only_the_growth_within_a_reaction_is_reserved(
    kind: PodKind, base: int | None, seconds: float, expected: float
) -> None:
    known = growing(100, base=base, grew=True)
    assert mib(asked(known, 900, kind=kind).fastest) == 5, "10 MiB/s for half a second"
    assert reserved(known, 900, seconds, kind=kind) == expected


@pytest.mark.parametrize(
    ("known", "peaks", "expected"),
    [
        pytest.param(growing(100), (), 100, id="as-much-again"),
        pytest.param(growing(100), (130, 90), 30, id="highest-peak"),
        pytest.param(growing(3), (), 5, id="as-fast-as-it-grows"),
    ],
)
def test_what_a_pod_without_a_limit_may_take(known: Growth, peaks: tuple[int, ...], expected: float) -> None:
    assert mib(unbounded_bytes(known, tuple(peak * MIB for peak in peaks), 0.5)) == expected


# Throttled pods


THROTTLED = replace(pod("a"), paused=record(NOW - S))
MANUAL = replace(pod("a"), paused=record(NOW - S, Owner.MANUAL))
FROZEN = replace(THROTTLED, paused=replace(record(NOW - S), mechanism=Mechanism.FREEZE))


@pytest.mark.parametrize(("gib", "kib"), [(1, 512), (1.5625, 512), (3.125, 1024), (31.25, 10240)])
def test_a_throttled_pod_may_grow_a_little(gib: float, kib: float) -> None:
    assert leak_limit_bytes(int(gib * 1024 * MIB)) == kib * 1024


@pytest.mark.parametrize(
    ("made", "grown", "expected"),
    [
        pytest.param(THROTTLED, 512 << 10, False, id="at"),
        pytest.param(THROTTLED, (512 << 10) + 1, True, id="above"),
        pytest.param(FROZEN, MIB, False, id="frozen"),
        pytest.param(pod("a"), MIB, False, id="not-paused"),
    ],
)
def test_a_throttled_pod_outgrows_its_throttle(made: Pod, grown: int, expected: bool) -> None:
    assert outgrows(made, growth(100, paused_used=100 * MIB - grown), CAPACITY) is expected


@pytest.mark.parametrize(
    ("made", "known", "share", "freezes", "kib"),
    [
        pytest.param(THROTTLED, growth(100, rate=MIB), 0.01, True, 102.4, id="one-percent-for-ten-seconds"),
        pytest.param(MANUAL, growth(100, rate=MIB), 0.01, True, 102.4, id="by-an-operator"),
        pytest.param(THROTTLED, growth(100, rate=102400.0), 0.2, True, 200, id="a-larger-quota"),
        pytest.param(THROTTLED, growth(100, rate=10240.0), 4, True, 100, id="several-cpus"),
        pytest.param(THROTTLED, growth(100, rate=100.0 * MIB), 0.01, True, 512, id="until-it-is-frozen"),
        pytest.param(THROTTLED, growth(100, rate=100.0 * MIB, paused_used=0), 0.01, False, 10240, id="never-frozen"),
        pytest.param(THROTTLED, growth(100, rate=MIB, paused_used=99 * MIB + 524 * 1024), 0.01, True, 12, id="nearly"),
        pytest.param(THROTTLED, growth(100, rate=MIB, paused_used=0), 0.01, True, 0, id="about-to-be-frozen"),
        pytest.param(FROZEN, growth(100, rate=MIB), 0.01, True, 0, id="frozen"),
        pytest.param(pod("a"), growth(100, rate=MIB), 0.01, True, 0, id="not-paused"),
    ],
)
def test_what_a_throttled_pod_leaks(made: Pod, known: Growth, share: float, freezes: bool, kib: float) -> None:
    found = leak_bytes(PodUsage(known.used, made), known, CAPACITY, share, freezes=freezes)
    assert found == pytest.approx(kib * 1024)
