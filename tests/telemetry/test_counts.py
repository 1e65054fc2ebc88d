"""The daemon's counters, and the largest number of time series that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from helpers import events, nodes
from helpers.events import S
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.model import Mechanism, Owner, Pod, Result
from cgpause.telemetry.counts import CAUSES, MAX_NAMESPACES, OTHER, UNKNOWN, Counts, Histogram, pod_label
from cgpause.telemetry.events import Event
from cgpause.telemetry.metrics import BY_NAME, Values

START = 1000 * S
"""Start of the daemon, on the boot clock."""
THROTTLE, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE
PAUSES, SECONDS = "cgpause_pauses_total", "cgpause_paused_seconds_total"
POD_PAUSES, POD_SECONDS = "cgpause_pod_pauses_total", "cgpause_pod_paused_seconds_total"


def event(
    what: str, pod: str = "default/web", since_s: float = 1000, at_s: float | None = None, **more: object
) -> Event:
    """Return an event of a pause that began `since_s` after boot; it happens at `at_s`, or else at the begin."""
    paused_s = None if at_s is None else at_s - since_s
    return events.event(
        what, 0.0, since_s, paused_s, **({"pod": pod, "uid": pod, "owner": "daemon", "mechanism": THROTTLE} | more)
    )


def paused_pod(
    label: str = "default/web", since_s: float = 1000, mechanism: Mechanism = THROTTLE, owner: Owner = Owner.DAEMON
) -> Pod:
    namespace, _, name = label.partition("/")
    paused = replace(nodes.record(int(since_s * S), owner), mechanism=mechanism)
    return replace(nodes.pod(name, paused=paused), uid=label, namespace=namespace)


def counts(*events: Event, max_pods: int = 10) -> Counts:
    made = Counts(START, max_pods)
    for each in events:
        made.count(each)
    return made


def shown(values: Values, name: str) -> dict[tuple[str, ...], float]:
    return {figure.labels: figure.value for figure in values.get(name, [])}


def of(made: Counts, name: str) -> dict[tuple[str, ...], float]:
    """Return the series above 0."""
    return {labels: value for labels, value in shown(made.values(), name).items() if value}


def test_totals_of_a_namespace_begin_at_zero_once_it_has_a_pod_that_may_be_paused() -> None:
    """A counter that begins with the first pause hides it from rate() and increase()."""
    made = counts()
    dns = replace(nodes.pod("dns", protected="by rule"), namespace="kube-system")
    made.count_paused([nodes.pod("web"), dns], START)

    begun = {("default", how): 0 for how in Mechanism}
    assert shown(made.values(), PAUSES) == shown(made.values(), SECONDS) == begun


# --- pauses ----------------------------------------------------------------------------------------------------------


def test_pauses_are_counted_by_namespace_pod_and_mechanism() -> None:
    made = counts(
        event("paused", "a/x"),
        event("resumed", "a/x", at_s=1004, result="headroom"),
        event("paused", "a/x", 1010),
        event("paused", "a/y", mechanism=FREEZE),
        event("paused", "b/x"),
    )

    assert of(made, PAUSES) == {("a", THROTTLE): 2, ("a", FREEZE): 1, ("b", THROTTLE): 1}
    assert of(made, POD_PAUSES) == {("a", "x", THROTTLE): 2, ("a", "y", FREEZE): 1, ("b", "x", THROTTLE): 1}
    assert made.pauses == 4


def test_a_series_of_seconds_begins_at_0_with_its_first_pause() -> None:
    """A series that begins at 0 lets increase() include the first seconds."""
    made = counts(event("paused", "a/x"))

    assert shown(made.values(), SECONDS) == {("a", THROTTLE): 0}
    assert shown(made.values(), POD_SECONDS) == {("a", "x", THROTTLE): 0}


def test_time_before_and_after_a_freeze_is_told_apart() -> None:
    made = counts(event("paused"))
    made.count_paused([paused_pod()], 1002 * S)
    made.count(event("froze", at_s=1003, mechanism=FREEZE))
    made.count_paused([paused_pod(mechanism=FREEZE)], 1007 * S)
    made.count(event("resumed", at_s=1008, result="headroom", mechanism=FREEZE))

    assert of(made, SECONDS) == {("default", THROTTLE): 3, ("default", FREEZE): 5}
    assert of(made, PAUSES) == {("default", THROTTLE): 1}
    assert made.freezes == 1


def test_of_a_pause_of_the_daemon_before_only_our_time_is_counted() -> None:
    adopted = counts()
    adopted.count_paused([paused_pod(since_s=900)], 1003 * S)
    ended_at_once = counts(event("resumed", since_s=900, at_s=1003, result="headroom"))

    for made in (adopted, ended_at_once):
        assert of(made, SECONDS) == {("default", THROTTLE): 3}
        assert of(made, PAUSES) == {}


def test_what_an_operator_holds_is_not_ours() -> None:
    made = counts(event("paused", owner="manual"))
    made.count_paused([paused_pod(owner=Owner.MANUAL), nodes.pod("runs")], 1005 * S)
    made.count(event("resumed", owner="manual", at_s=1009, result="expired"))

    assert of(made, PAUSES) == of(made, SECONDS) == {}
    assert of(made, "cgpause_resumes_total")["expired",] == 1
    assert of(made, "cgpause_pause_duration_seconds") == {}


def test_a_pause_that_somebody_else_ended_is_over() -> None:
    made = counts(event("paused"))
    made.count_paused([paused_pod()], 1002 * S)
    made.ended_elsewhere("default/web")
    made.count_paused([], 1009 * S)

    assert of(made, SECONDS) == {("default", THROTTLE): 2}
    assert of(made, "cgpause_resumes_total")["operator",] == 1


def test_every_cause_is_there_from_the_beginning() -> None:
    assert shown(counts().values(), "cgpause_resumes_total") == {(cause,): 0 for cause in CAUSES}
    assert set(Result) - set(CAUSES) == {Result.STOPPED, Result.CRASHED}  # then nothing is published any more


def test_a_pod_that_goes_while_it_is_paused_is_an_end() -> None:
    made = counts(event("paused"), event("gone", at_s=1002, result="gone"))

    assert of(made, "cgpause_resumes_total")["gone",] == 1
    assert of(made, SECONDS) == {("default", THROTTLE): 2}


def test_drifts_and_surrenders() -> None:
    again = event("asserted again", at_s=1001)
    made = counts(event("paused"), again, again, event("resumed", at_s=1002, result="foreign"))

    assert (made.drifts, made.surrenders) == (2, 1)


# --- bounds ----------------------------------------------------------------------------------------------------------


def done(pod: str, since_s: float) -> tuple[Event, Event]:
    return event("paused", pod, since_s), event("resumed", pod, since_s, since_s + 1, result="headroom")


def test_the_pod_paused_longest_ago_gives_way_and_the_namespace_keeps_its_pauses() -> None:
    made = counts(*done("a/x", 1001), *done("a/y", 1002), *done("a/x", 1003), *done("a/z", 1004), max_pods=2)

    assert of(made, POD_PAUSES) == {("a", "x", THROTTLE): 2, ("a", "z", THROTTLE): 1}
    assert of(made, PAUSES) == {("a", THROTTLE): 4}
    assert of(made, SECONDS) == {("a", THROTTLE): 4}


def test_a_pod_that_is_paused_does_not_give_way() -> None:
    """A paused pod's counters would restart during its pause, repeatedly if more pods are paused than fit."""
    made = counts(event("paused", "a/x"), event("paused", "a/y"), event("paused", "a/z"), max_pods=2)

    assert [labels[1] for labels in of(made, POD_PAUSES)] == ["x", "y"]
    made.count_paused([paused_pod("a/x"), paused_pod("a/y"), paused_pod("a/z")], 1002 * S)
    assert of(made, POD_SECONDS) == {("a", "x", THROTTLE): 2, ("a", "y", THROTTLE): 2}
    assert of(made, SECONDS) == {("a", THROTTLE): 6}


def test_namespaces_beyond_the_bound_are_one() -> None:
    made = counts(*(event("paused", f"n{number}/web") for number in range(MAX_NAMESPACES + 5)))

    found = of(made, PAUSES)
    assert len(found) == MAX_NAMESPACES + 1
    assert found[OTHER, THROTTLE] == 5
    assert sum(found.values()) == MAX_NAMESPACES + 5
    assert made.pauses == MAX_NAMESPACES + 5


def test_namespaces_without_a_pod_make_room_for_others() -> None:
    made = counts(*(event("paused", f"n{number}/web") for number in range(MAX_NAMESPACES + 1)))

    made.count_paused([paused_pod("n7/web"), paused_pod("late/web")], 1002 * S)
    made.count(event("paused", "later/web"))

    assert of(made, PAUSES) == {("n7", THROTTLE): 1, (OTHER, THROTTLE): 1, ("later", THROTTLE): 1}
    assert of(made, SECONDS) == {("n7", THROTTLE): 2, ("late", THROTTLE): 2}
    assert made.pauses == MAX_NAMESPACES + 2, "the total of the status line"


def test_a_namespace_without_a_pod_keeps_its_totals_while_there_is_room() -> None:
    made = counts(*done("a/x", 1001))

    made.count_paused([], 1005 * S)

    assert of(made, PAUSES) == {("a", THROTTLE): 1}


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        pytest.param("default/web", ("default", "web"), id="plain"),
        pytest.param("0f-1", (UNKNOWN, "0f-1"), id="unnamed-its-uid"),
        pytest.param('a/x"}\n# HELP y', ("a", 'x"}\\n# HELP y'), id="hostile"),
        pytest.param("a/\udcff\x00", ("a", r"\udcff\x00"), id="not-utf-8"),
        pytest.param("a/b/c", ("a", "b/c"), id="slash"),
        pytest.param(f"a/{'x' * 1000}", ("a", "x" * 253), id="long"),
        pytest.param("", (UNKNOWN, ""), id="empty"),
    ],
)
def test_whatever_is_in_a_name_fits_a_label(label: str, expected: tuple[str, str]) -> None:
    assert pod_label(label) == expected


# --- histograms ------------------------------------------------------------------------------------------------------


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    histogram = Histogram("cgpause_pause_duration_seconds")
    bounds = BY_NAME["cgpause_pause_duration_seconds"].buckets
    for seconds in (0.0, bounds[0], bounds[0] + 0.001, bounds[-1], bounds[-1] + 1):
        histogram.observe(seconds)

    (figure,) = histogram.values()["cgpause_pause_duration_seconds"]

    assert (figure.counts[0], figure.counts[1], figure.counts[-2], figure.counts[-1]) == (2, 1, 1, 1)
    assert sum(figure.counts) == 5
    assert figure.value == pytest.approx(2 * bounds[0] + 0.001 + 2 * bounds[-1] + 1)


# --- any sequence of events ------------------------------------------------------------------------------------------

texts = st.text(max_size=8) | st.sampled_from(["daemon", "manual", THROTTLE, FREEZE, "headroom", "gone", "a/x", "b/y"])
anything = st.builds(
    Event,
    at=st.floats(0, 1e9),
    what=st.sampled_from(["paused", "resumed", "gone", "froze", "asserted again", "sacrificed", "adopted", "?"]),
    pod=texts,
    uid=texts,
    reason=texts,
    result=st.none() | texts,
    paused_s=st.none() | st.floats(0, 1e9),
    owner=st.none() | texts,
    mechanism=st.none() | texts,
    since_ns=st.none() | st.integers(0, 2**63 - 1),
)


def flat(values: Values) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(name, figure.labels): figure.value for name, figures in values.items() for figure in figures}


@given(st.lists(anything, max_size=30), st.integers(0, 3))
def test_whatever_events_come_nothing_is_raised_and_no_total_falls(stream: Iterable[Event], max_pods: int) -> None:
    made = counts(max_pods=max_pods)
    before = flat(made.values())
    for each in stream:
        made.count(each)
        now = flat(made.values())
        for key, value in before.items():
            if "_pod_" not in key[0]:  # a pod's series may have been removed and added again
                assert now[key] >= value
        assert len({key[1][:2] for key in now if key[0].startswith("cgpause_pod_")}) <= max_pods
        before = now


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 50), st.integers(0, 20)), max_size=12),
    st.sets(st.integers(0, 800)),
)
def test_how_often_is_looked_changes_no_total(pauses: list[tuple[str, int, int]], looks: set[int]) -> None:
    """The counted time equals the time paused, for any times of sampling."""
    made = counts()
    now_s, expected = 1000, dict.fromkeys("xyz", 0)
    running: dict[str, Pod] = {}

    def look_until(end_s: int) -> None:
        for at_s in range(now_s, end_s + 1):
            if at_s - 1000 in looks:
                made.count_paused(running.values(), at_s * S)

    for pod, length, gap in pauses:
        name = f"a/{pod}"
        look_until(now_s + gap)
        now_s += gap
        made.count(event("paused", name, now_s))
        running[name] = paused_pod(name, now_s)
        look_until(now_s + length)
        made.count(event("resumed", name, now_s, now_s + length, result="headroom"))
        del running[name]
        now_s += length
        expected[pod] += length

    assert sum(of(made, SECONDS).values()) == pytest.approx(sum(expected.values()))
    for (_, pod, _), seconds in of(made, POD_SECONDS).items():
        assert seconds == pytest.approx(expected[pod])
