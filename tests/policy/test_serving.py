"""Serving demands: which pods run with the headroom that is left, and the way of all others to their peaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.nodes import MIB, START_NS, S, pod, record
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.model import PodKind, PodUsage
from cgpause.policy.demand import Basis, Demand
from cgpause.policy.serving import Served, place_of, serve, way

NOW = START_NS + 100 * S


def want(
    name: str,
    worst: float,
    expected: float | None = None,
    *,
    growth: float = 0.0,
    deviation: float = 0.0,
    returns: float = 0.0,
    noise: float = 0.0,
    paused_s: float | None = None,
    **facts: object,
) -> Demand:
    """Return an active demand, in MiB; `expected` defaults to `worst`, `growth` is that within one reaction."""
    expected = worst if expected is None else expected
    made = replace(pod(name), paused=None if paused_s is None else record(NOW - int(paused_s * S)))
    still = Demand(
        order=(0, False, True, 1, 100 * MIB, made.cgroup),
        is_service=False,
        usage=PodUsage(100 * MIB, made),
        used=100 * MIB,
        worst=worst * MIB,
        granted=expected * MIB,
        fastest=growth * MIB,
        counted=growth * MIB,
        variance=(deviation * MIB) ** 2,
        active=True,
        newcomer=False,
        grows=True,
        returns=returns * MIB,
        rate=0.0,
        basis=Basis.LIMIT,
        negligible=int(noise * MIB),
        is_paused=paused_s is not None,
        is_overdue=paused_s is not None and paused_s > 20,
        pause_cost_s=0.0,
        excused=False,
        beyond=0.0,
        start=0.0,
    )
    return still._replace(**facts)  # type: ignore[arg-type]


def served(
    headroom: float, *demands: Demand, was_first: Demand | None = None, all_pods: bool = True, resume_share: float = 0.0
) -> Served:
    cgroup = None if was_first is None else was_first.usage.pod.cgroup
    return serve(demands, headroom * MIB, 10 * MIB, cgroup, all_pods, resume_share)


def running(headroom: float, *demands: Demand) -> str:
    """Return the names of the pods that run, with the first pod's name in capitals."""
    places = served(headroom, *demands).places
    assert [place.usage.pod.uid for place in places] == [one.usage.pod.uid for one in demands], "in their order"
    runs = [(place.usage.pod.uid, place.first) for place in places if place.runs]
    return "".join(uid.upper() if is_first else uid for uid, is_first in runs)


def first(headroom: float, *demands: Demand, was_first: Demand | None = None) -> tuple[str | None, bool]:
    """Return the name of the first pod, and whether it is unsafe."""
    found = served(headroom, *demands, was_first=was_first)
    names = [place.usage.pod.uid for place in found.places if place.first]
    cgroups = [place.usage.pod.cgroup for place in found.places if place.first]
    assert found.first == (cgroups[0] if cgroups else None)
    return (names[0] if names else None), found.unsafe


@pytest.mark.parametrize(
    ("headroom", "demands", "expected"),
    [
        pytest.param(50, (), (None, False), id="no-pods"),
        pytest.param(-50, (want("a", 30, active=False),), (None, False), id="none-active"),
        pytest.param(50, (want("a", 30), want("b", 20)), ("b", False), id="smallest-worst"),
        pytest.param(50, (want("a", 50, 10), want("b", 51, 5)), ("a", False), id="that-fits"),
        pytest.param(49, (want("a", 50, 10), want("b", 51, 5)), ("b", True), id="none-fits-smallest-expected"),
        pytest.param(50, (want("a", 30), want("b", 20, newcomer=True)), ("a", False), id="newcomers-last"),
        pytest.param(5, (want("a", 30), want("b", 20, newcomer=True)), ("a", True), id="newcomers-last-if-unsafe"),
        pytest.param(50, (want("a", 60), want("b", 20, newcomer=True)), ("b", False), id="unless-it-fits"),
        pytest.param(50, (want("a", 20, is_service=True), want("b", 30)), ("b", False), id="batch-before-services"),
        pytest.param(25, (want("a", 20, is_service=True), want("b", 30)), ("b", True), id="even-if-unsafe"),
        pytest.param(50, (want("a", 20, is_service=True),), ("a", False), id="services-alone"),
        pytest.param(50, (want("a", 20, paused_s=1), want("b", 30)), ("a", False), id="paused"),
    ],
)
def test_the_first(headroom: float, demands: tuple[Demand, ...], expected: tuple[str | None, bool]) -> None:
    assert first(headroom, *demands) == expected


def test_the_first_stays_while_no_other_fits() -> None:
    a, b = want("a", 60, 30), want("b", 70, 20)
    assert first(50, a, b) == ("b", True)
    assert first(50, a, b, was_first=a) == ("a", False), "the margin is there for this"
    assert first(50, want("a", 60.1, 30), b, was_first=a) == ("a", True)
    assert first(50, a._replace(active=False), b, was_first=a) == ("b", True)
    assert first(50, a, b, want("c", 50), was_first=a) == ("c", False)


def test_a_pod_that_has_ended_its_growth_goes_first_only_if_no_pod_grows() -> None:
    """Else idle pods that started a minute ago went on alone, while a large job short of its end was paused."""
    idle, job = want("a", 50, 30, grows=False), want("b", 100, 60)
    assert first(200, idle, job) == ("b", False)
    assert first(60, idle, job, was_first=idle) == ("b", True)
    assert first(60, idle, job._replace(grows=False)) == ("a", False)
    assert first(200, idle, job._replace(basis=Basis.GROWTH)) == ("a", False), "nor is it known that b ends"


def test_a_pod_that_computes_with_its_memory_goes_first_if_its_end_makes_room_for_one_that_grows() -> None:
    """Else a job seconds before its end would be paused for one that does not fit."""
    computes, grows = want("a", 4, returns=40, grows=False), want("b", 9, paused_s=5)
    assert first(7, computes, grows) == ("a", False)
    assert first(7, computes._replace(returns=1.0 * MIB), grows) == ("b", True), "its end makes too little room"
    assert first(9, computes, grows) == ("a", False)
    assert first(3, computes, grows) == ("a", True)


def test_the_first_runs_and_its_worst_demand_is_reserved() -> None:
    found = served(50, want("a", 30, growth=20), want("b", 100, growth=20), want("c", 100, growth=1))
    assert [place.runs for place in found.places] == [True, True, False]
    assert found.unused_bytes == 0
    needs = [(place.needed, place.fits_in) for place in found.places]
    assert needs == [(30 * MIB, 50 * MIB), (20 * MIB, 20 * MIB), (MIB, 0)]


def test_only_places_that_change_or_are_paused_are_told_of_unless_all_are_asked_for() -> None:
    demands = [
        want("a", 5, 5, growth=1),
        want("b", 100, 10, growth=20),
        want("c", 100, growth=90),
        want("d", 100, growth=30, paused_s=1),
        want("e", 10, paused_s=2),
    ]
    found = served(50, *demands, all_pods=False)
    assert [(place.usage.pod.uid, place.runs) for place in found.places] == [("c", False), ("d", False), ("e", True)]
    assert not found.places[0].first


def test_steps_at_random_times_do_not_all_come_at_once() -> None:
    demands = [want(name, 500, growth=1, deviation=10) for name in "abcd"]
    small = want("f", 1)
    # The means add up to 4 MiB and twice the deviation to 40 MiB, where the sum of the steps would be far more.
    assert running(1 + 44, small, *demands) == "Fabcd"
    assert running(1 + 43.9, small, *demands) == "Fabc"


def test_needs_within_noise_run_always() -> None:
    assert running(10, want("a", 10), want("b", 99, growth=2, noise=2)) == "Ab"
    assert running(10, want("a", 10), want("b", 99, growth=2.1, noise=2)) == "A"


@pytest.mark.parametrize(
    ("headroom", "start", "returns", "runs"),
    [
        pytest.param(200, 80, 30, "Ab", id="fits"),
        pytest.param(200, 0, 30, "A", id="no-idle-cpu-or-no-peak"),
        pytest.param(199.9, 80, 30, "A", id="too-little-for-its-first-memory"),
        pytest.param(200, 80, 29.9, "A", id="it-would-be-paused-at-once"),
    ],
)
def test_while_a_cpu_is_idle_a_pod_with_a_known_peak_begins_beside_the_first_one(
    headroom: float, start: float, returns: float, runs: str
) -> None:
    """The first pod keeps its worst demand and what may come beyond it.

    Once the second pod runs, its own peak has to fit behind that of the first one, too.
    """
    first = want("a", 100, beyond=20 * MIB, returns=returns)
    second = want("b", 150, newcomer=True, start=start * MIB)._replace(counted=150.0 * MIB)
    assert running(headroom, first, second) == runs


@pytest.mark.parametrize(("start", "runs"), [(80, True), (0, False)])
def test_it_begins_so_also_if_its_grant_fits_but_what_is_counted_of_it_does_not(start: float, runs: bool) -> None:
    first = want("a", 100, returns=10)
    second = want("b", 150, 110, newcomer=True, start=start * MIB)._replace(counted=110.0 * MIB)
    assert (running(180, first, second) == "Ab") is runs


def test_a_first_pod_that_is_alone_leaves_nothing_beyond_its_demand() -> None:
    first = want("a", 100, beyond=20 * MIB)
    assert way([first], 130 * MIB, first, alone=True).slack == 30 * MIB
    assert way([first, want("b", 1)], 130 * MIB, first).slack == 10 * MIB
    assert served(130, first).unused_bytes == 30 * MIB


def test_two_of_them_do_not_begin_at_once() -> None:
    a, b, c = (
        want(name, 400, newcomer=name != "a", beyond=20 * MIB, start=80 * MIB)._replace(counted=400.0 * MIB)
        for name in "abc"
    )
    assert running(400 + 20 + 80, a, b, c) == "Ab"
    assert running(400 + 20 + 160, a, b, c) == "Abc"


def test_running_pods_leave_a_paused_one_the_way_to_its_peak() -> None:
    """First `a`, then `b` with what `a` gives back: 20 MiB are beyond what they need."""
    a, b = want("a", 10, returns=40), want("b", 90, 70, growth=1, paused_s=1)
    c = want("c", 30, 25, growth=20, is_service=True)
    assert running(50, a, c, b) == "Ac"
    assert running(49, a, c, b) == "A"


@pytest.mark.parametrize("waits", [{"paused_s": 1}, {"newcomer": True}])
def test_a_pod_goes_on_if_its_peak_fits_beside_most_of_the_others(waits: dict[str, Any]) -> None:
    """`a` may take 20 MiB, `b` and `c` are expected to take 100 each: three fifths of that are 132 MiB."""
    a, b, c = want("a", 20), want("b", 300, 100, growth=1), want("c", 300, 100, growth=1)
    d = want("d", 300, 50, growth=5, **waits)
    assert running(182, a, b, c, d) == "Abcd"
    place = served(181.9, a, b, c, d, all_pods=False).places[-1]
    assert (place.runs, place.needed) == (False, 50 * MIB)
    assert place.fits_in == pytest.approx(49.9 * MIB), "what it waits for"
    assert running(181.9, a, b, c, d._replace(is_paused=False, newcomer=False)) == "Abcd", "a running pod goes on"
    assert running(181.9, a, b, c._replace(active=False), d) == "Abcd", "what does not grow has nothing promised"
    assert running(182, a, b, c._replace(excused=True), d) == "Abcd"
    assert running(181.9, a, b, c._replace(excused=True), d) == "Abc"
    assert running(181.9, a, b, c._replace(is_service=True), d) == "Abcd", "a service gives nothing back"


def test_a_pod_whose_end_is_not_known_goes_first_only_if_no_other_demand_fits() -> None:
    """Otherwise a pod near its peak would wait for one that needs more than there is."""
    known, unknown = want("a", 30, 20), want("b", 0, 0, growth=1, basis=Basis.GROWTH)
    assert running(31, known, unknown) == "Ab"
    assert running(25, known, unknown) == "aB"
    assert running(25, unknown, unknown._replace(usage=want("c", 0).usage)) == "Bc"


def test_paused_pods_leave_the_peak_of_the_one_that_waits_longest_free() -> None:
    a, late = want("a", 20), want("d", 300, 100, growth=1, returns=100, paused_s=21)
    b, c = (want(name, 300, 100, growth=1, returns=100, paused_s=1) for name in "bc")
    assert running(270, a, b, c, late) == "Abd", "98 MiB would be left for c"
    assert running(270, a, b, c._replace(is_paused=False), late) == "Abcd", "a running pod goes on"


def test_a_small_step_does_not_resume_a_pod_without_room_for_its_peak() -> None:
    a, b = want("a", 10), want("b", 90, 70, growth=1, noise=2, paused_s=1)
    assert running(76, a, b) == "Ab"
    assert running(75.9, a, b) == "A"


def test_a_paused_pod_leaves_a_share_of_the_running_ones_growth_free() -> None:
    a, b = want("a", 10), want("b", 90, 20, growth=20)
    c = want("c", 90, 5, growth=5, noise=2, paused_s=1, is_service=True)
    places = {resume_share: served(40, a, b, c, resume_share=resume_share).places[2] for resume_share in (0.25, 0.26)}
    assert {resume_share: place.runs for resume_share, place in places.items()} == {0.25: True, 0.26: False}
    assert places[0.26].fits_in == pytest.approx((30 - 20 - 5.2) * MIB), "says what it waits for"
    assert served(40, a, b, c._replace(is_paused=False), resume_share=9).places[2].runs, "a running pod goes on"
    assert served(40, a, b, c._replace(active=False), resume_share=9).places[2].runs, "it will not grow"
    assert served(40, a, b, c._replace(fastest=2 * MIB, counted=2.0 * MIB), resume_share=9).places[2].runs, "noise"


def test_no_pod_begins_with_what_an_overdue_one_waits_for() -> None:
    a, b = want("a", 10), want("b", 90, 20, growth=20, paused_s=10)
    late = want("c", 90, 60, growth=60, paused_s=20)
    assert running(60, a, b, late) == "Ab"
    assert running(60, a, b, late._replace(is_overdue=True)) == "A"
    assert running(70, a, b, late._replace(is_overdue=True)) == "Ac", "it runs as soon as it fits"
    assert running(90, a, b, late._replace(is_overdue=True)) == "Abc"
    assert running(60, a, b, late._replace(is_overdue=True, active=False)).startswith("Ab")
    runs = b._replace(is_paused=False)
    assert running(60, a, runs, late._replace(is_overdue=True)) == "Ab", "a pod that runs goes on"


@pytest.mark.parametrize(
    ("priority", "kind", "runs"),
    [
        (0, PodKind.BATCH, "A"),
        (-1, PodKind.BATCH, "A"),
        (1, PodKind.BATCH, "Ab"),
        (0, PodKind.STARTING, "Ab"),
        (0, PodKind.SERVICE, "Ab"),
    ],
)
def test_new_batch_leaves_headroom_to_an_overdue_pod_of_its_priority(priority: int, kind: PodKind, runs: str) -> None:
    """A stream of small jobs otherwise takes each headroom before it is large enough; a service may be killed."""
    a, late = want("a", 10), want("c", 90, 60, growth=60, paused_s=20)._replace(is_overdue=True)
    usage = PodUsage(100 * MIB, replace(pod("b"), priority=priority, kind=kind))
    new = want("b", 90, 20, growth=20, newcomer=True)._replace(usage=usage)
    assert running(60, a, new, late) == runs
    assert running(60, a, new, late._replace(is_overdue=False)) == "Ab"
    assert running(60, a, new._replace(newcomer=False), late) == "Ab", "a pod that runs goes on"


def test_no_pod_waits_for_an_overdue_one_that_has_no_way_to_its_peak() -> None:
    a, small, late = want("a", 10), want("b", 20, growth=5, paused_s=1), want("c", 900, 800, paused_s=50)
    assert running(60, a, small, late._replace(is_overdue=True)) == "Ab"
    unknown = late._replace(is_overdue=True, counted=800.0 * MIB)
    assert running(60, a, small, unknown) == "Ab", "its whole grant is counted, as of a pod paused at its start"


def test_of_several_overdue_pods_the_one_paused_longest_is_waited_for() -> None:
    a = want("a", 10)
    b, c = want("b", 90, 60, growth=60, paused_s=25), want("c", 90, 60, growth=60, paused_s=30)
    assert running(70, a, b, c) == "Ac"
    assert running(70, a, b._replace(usage=c.usage), c._replace(usage=b.usage))[0] == "A"


def test_an_overdue_pod_that_is_first_is_not_waited_for() -> None:
    assert running(70, want("a", 10, paused_s=50), want("b", 90, 60, paused_s=21)) == "Ab"


def test_an_excused_pod_runs_and_only_its_growth_is_reserved() -> None:
    a, b = want("a", 10), want("b", 90, 30, growth=40, excused=True, paused_s=50)
    assert running(0, a, b) == "Ab"
    assert served(100, a, b).unused_bytes == pytest.approx((100 - 10 - 40) * MIB)
    assert served(100, a, b._replace(counted=20.0 * MIB)).unused_bytes == pytest.approx(50 * MIB)
    assert served(0, a, b).places[1].needed == 90 * MIB
    assert served(0, a, b, all_pods=False).places[-1].usage.pod.uid == "b"


# The way to the peaks


@pytest.mark.parametrize(
    ("headroom", "demands", "slack", "blocked"),
    [
        pytest.param(50, (), 50, "", id="nothing"),
        pytest.param(50, (want("b", 20),), 30, "", id="one"),
        pytest.param(50, (want("b", 50),), 0, "", id="one-that-just-fits"),
        pytest.param(50, (want("b", 51),), 50, "b", id="one-that-waits-for-others"),
        pytest.param(50, (want("b", 20), want("c", 50)), 0, "", id="each-after-the-other"),
        pytest.param(50, (want("b", 20, returns=30), want("c", 70)), 10, "", id="with-what-the-one-before-gives-back"),
        pytest.param(50, (want("c", 70), want("b", 20, returns=30)), 10, "", id="nearest-first"),
        pytest.param(50, (want("b", 60, returns=90), want("c", 70)), 50, "bc", id="a-blocked-pod-gives-nothing-back"),
        pytest.param(50, (want("b", 40, 20),), 30, "", id="at-its-expected-demand"),
        pytest.param(50, (want("b", 20, is_service=True),), 50, "", id="services-do-not-count"),
        pytest.param(50, (want("b", 50, growth=50),), 50, "", id="nor-a-pod-with-its-whole-demand-reserved"),
        pytest.param(50, (want("b", 51, growth=51),), 50, "b", id="but-it-may-have-no-way-either"),
    ],
)
def test_way(headroom: float, demands: tuple[Demand, ...], slack: float, blocked: str) -> None:
    found = way(demands, headroom * MIB, None)
    assert found.slack == slack * MIB
    assert {one.usage.pod.cgroup for one in demands if one.usage.pod.uid in blocked} == found.blocked


def test_the_first_takes_its_worst_demand_and_gives_back_before_the_others() -> None:
    first, other = want("a", 30, 10, returns=40), want("b", 90, 60)
    assert way((first, other), 35 * MIB, first) == (5 * MIB, set())
    assert way((first, other), 15 * MIB, first) == (-15 * MIB, {other.usage.pod.cgroup})


ways = st.lists(
    st.builds(
        lambda more, expected, returns: want("a", expected + more, expected, returns=returns),
        st.integers(0, 50),
        st.integers(1, 100),
        st.integers(0, 150),
    ),
    min_size=1,
    max_size=6,
)


@given(ways, st.integers(0, 300), st.floats(0, 1))
def test_with_less_than_the_slack_taken_each_pod_that_had_a_way_still_has_it(
    demands: list[Demand], headroom: int, share: float
) -> None:
    def reached(room: float) -> set[int]:
        found = set()
        for number, one in sorted(enumerate(demands), key=lambda item: item[1].worst):
            if one.granted <= room:
                found.add(number)
                room += one.returns
        return found

    slack = way(demands, headroom * MIB, None).slack
    assert slack >= 0
    assert reached(headroom * MIB) <= reached(headroom * MIB - share * slack + 1)


@pytest.mark.parametrize(("over_bytes", "runs"), [(-0.1, "Ab"), (0.3, "A")])
def test_a_newcomer_fits_beside_the_promises_to_the_byte(over_bytes: float, runs: str) -> None:
    first = want("a", 10)
    new = want("b", 200, 94 + over_bytes / MIB, newcomer=True)
    assert running(100, first, new) == runs


def test_a_place_in_words() -> None:
    one = want("a", 200)
    by_peaks = one._replace(basis=Basis.PEAKS)
    assert place_of(one, 75 * MIB, 52 * MIB, runs=True).describe() == "needs 75.0Mi (by limit), 52.0Mi left"
    assert place_of(by_peaks, MIB, -MIB, runs=True).describe() == "needs 1.0Mi (by peaks of its workload), 0.0Mi left"
