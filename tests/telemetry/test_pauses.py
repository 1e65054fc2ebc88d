"""Pauses computed from events, by any writer and in any order; a time without an event stays unknown."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import permutations

import pytest
from helpers.events import BOOT, S, event
from helpers.nodes import record
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.errors import PodLookupError
from cgpause.core.model import Mechanism
from cgpause.telemetry.events import Event, PauseKey
from cgpause.telemetry.pauses import PastPause, PauseState, parse_since, pauses, select, totals, with_active

FROZEN = replace(record(5 * S), mechanism=Mechanism.FREEZE)


def paused(at: float, since_s: float, **more: object) -> Event:
    return event("paused", at, since_s, mechanism="throttle", owner="daemon", cpu_max_from="max 100000", **more)


def resumed(at: float, since_s: float | None, paused_s: float | None, **more: object) -> Event:
    return event("resumed", at, since_s, paused_s, **{"result": "headroom", **more})


def only(*events: Event) -> PastPause:
    (found,) = pauses(events)
    return found


def test_a_pause_and_its_end_are_one() -> None:
    found = only(paused(100, 5, reason="full", memory_current_bytes=7), resumed(109, 5, 9, reason="headroom"))

    assert (found.start, found.end, found.paused_s, found.state) == (100, 109, 9, PauseState.ENDED)
    assert (found.pod, found.uid, found.mechanism, found.owner) == ("default/u1", "u1", "throttle", "daemon")
    assert (found.reason, found.result, found.end_reason) == ("full", "headroom", "headroom")
    assert (found.cpu_max, found.memory_current_bytes) == ("max 100000", 7)


def test_a_pod_frozen_later_was_stopped_by_the_freezer() -> None:
    assert only(paused(100, 5), event("froze", 101, 5, 1, mechanism="freeze"), resumed(102, 5, 2)).mechanism == "freeze"


def test_a_pause_that_was_taken_over_is_one_by_hand() -> None:
    taken = event("taken over", 103, 5, 3, owner="manual", mechanism="throttle", reason="cgpause pause by alice")
    found = only(paused(100, 5, reason="full"), taken, resumed(109, 5, 9, owner="manual", result="operator"))

    assert (found.start, found.end, found.paused_s) == (100, 109, 9)
    assert (found.owner, found.reason, found.result) == ("manual", "full; then cgpause pause by alice", "operator")


def test_events_can_come_in_any_order() -> None:
    """The daemon's own events wait for its disk, so an operator's can be written first."""
    began = paused(100, 5, reason="full")
    by = {"owner": "manual", "mechanism": "freeze"}
    taken = event("taken over", 103, 5, 3, reason="cgpause pause by alice", **by)
    ended = resumed(109, 5, 9, pause_reason="cgpause pause by alice", **by)

    assert {only(*events) for events in permutations((began, taken, ended))} == {only(began, taken, ended)}


def test_a_pause_without_an_end_has_no_times_but_its_begin() -> None:
    found = only(paused(100, 5), event("asserted again", 105, 5, 5.0))

    assert (found.start, found.end, found.paused_s, found.state) == (100, None, None, PauseState.UNKNOWN)


def test_a_pause_of_before_a_crash_is_ended_by_whoever_cleaned_up() -> None:
    """The cleanup knows the pod by its UID only, if the pod's log folder is gone."""
    found = only(paused(100, 5), resumed(130, 5, 30, pod="u1", result="crashed"))

    assert (found.pod, found.paused_s, found.result) == ("default/u1", 30, "crashed")


def test_an_end_alone_says_when_it_began_by_the_boot_clock() -> None:
    """The event of the begin was in the memory of a daemon that was killed."""
    found = only(resumed(130, 5, 30, pause_reason="full"))

    assert (found.start, found.end, found.paused_s, found.reason) == (100, 130, 30, "full")


def test_an_end_whose_record_was_lost_ends_the_pods_last_pause() -> None:
    lost = resumed(130, None, None, result="lost")
    *_, found = pauses([paused(50, 1), resumed(60, 1, 10), paused(100, 5), lost])

    assert (found.start, found.end, found.paused_s, found.state) == (100, 130, None, PauseState.ENDED)
    assert len(pauses([lost])) == 1, "also if its begin was not noted"


def test_a_pod_that_went_ends_its_pause() -> None:
    found = only(paused(100, 5), event("gone", 120, 5, 20.0, result="gone"))

    assert (found.end, found.paused_s, found.result) == (120, 20, "gone")


def test_pauses_of_two_boots_are_two_though_they_began_at_the_same_second_of_each() -> None:
    assert len(pauses([paused(100, 5), paused(900, 5, boot="b2"), resumed(905, 5, 5, boot="b2")])) == 2


def test_a_wall_clock_set_back_changes_no_length() -> None:
    found = only(paused(100, 5), resumed(40, 5, 9))

    assert (found.paused_s, found.state) == (9, PauseState.ENDED)


def test_an_event_of_no_pause_makes_none() -> None:
    assert pauses([event("asserted again", 1, None), event("sacrificed", 2, None), event("future", 3, None)]) == []


@pytest.mark.parametrize(
    ("active", "state"),
    [
        (PauseKey(BOOT, "u1", 5 * S), PauseState.ACTIVE),
        (PauseKey(BOOT, "u1", 6 * S), PauseState.UNKNOWN),
        (PauseKey("b2", "u1", 5 * S), PauseState.UNKNOWN),
    ],
)
def test_a_pause_runs_only_where_its_cgroup_says_so(active: PauseKey, state: PauseState) -> None:
    (found,) = with_active(pauses([paused(100, 5)]), {active: FROZEN}, 12 * S)

    assert found.mechanism == ("freeze" if state is PauseState.ACTIVE else "throttle"), "no event tells of a freeze"
    assert (found.state, found.paused_s) == (state, 7.0 if state is PauseState.ACTIVE else None)
    assert found.may_be_active(BOOT) is (state is PauseState.UNKNOWN)


def test_a_clock_that_is_set_back_in_a_pause_does_not_garble_it() -> None:
    taken = event("taken over", 500, 5, 4, reason="cgpause pause by alice", owner="manual")
    found = only(paused(1000, 5), taken, resumed(506, 5, 10, mechanism="freeze"))

    assert (found.start, found.end, found.paused_s) == (496, 506, 10)
    assert (found.mechanism, found.owner) == ("freeze", "manual")
    assert str(found.reason).endswith("; then cgpause pause by alice")


def test_a_later_end_without_a_length_does_not_replace_the_first_one() -> None:
    late = resumed(9000, None, None, reason="its record was damaged")
    found = only(paused(100, 5), resumed(130, 5, 30, reason="headroom"), late)
    assert (found.end, found.paused_s, found.end_reason) == (130, 30, "headroom")


def test_an_ended_pause_does_not_run_again() -> None:
    found = pauses([paused(100, 5), resumed(109, 5, 9)])

    assert with_active(found, {PauseKey(BOOT, "u1", 5 * S): FROZEN}, 99 * S) == found


steps = st.builds(
    event,
    st.sampled_from(["paused", "resumed", "froze", "gone", "asserted again", "?"]),
    st.floats(0, 1e9),
    st.none() | st.integers(0, 5),
    st.none() | st.floats(0, 1e6),
    uid=st.sampled_from(["u1", "u2"]),
    boot=st.sampled_from(["b1", "b2"]),
)


@given(st.lists(steps, max_size=12), st.integers(0, 99))
def test_no_time_is_invented_whatever_was_noted(noted: list[Event], seed: int) -> None:
    shuffled = random.Random(seed).sample(noted, len(noted))
    for events in (noted, shuffled):
        found = pauses(events)
        lengths = {one.paused_s for one in events if one.what in ("resumed", "gone")}
        assert all(pause.paused_s in {None, *lengths} for pause in found)
        assert all(pause.end in {None, *(one.at for one in events)} for pause in found)
        begins = {one.at for one in events} | {one.at - one.paused_s for one in events if one.paused_s is not None}
        assert all(pause.start in {None, *begins} for pause in found)
        assert all((pause.end is not None) is (pause.state is PauseState.ENDED) for pause in found)
        keys = {one.pause for one in events if one.pause is not None}
        assert {pause.key for pause in found if pause.key is not None} == keys
        assert sum(total.pauses for total in totals(found)) == len(found)


# --- selection -------------------------------------------------------------------------------------------------------

FOUND = pauses(
    [
        paused(100, 1, uid="aaaa1111", pod="shop/web-1"),
        resumed(110, 1, 10, uid="aaaa1111", pod="shop/web-1"),
        paused(200, 2, uid="aaaa2222", pod="test/web-1"),
        paused(300, 3, uid="bbbb3333", pod="batch/job-7"),
    ]
)


@pytest.mark.parametrize(
    ("ref", "uids"),
    [
        ("shop/web-1", ["aaaa1111"]),
        ("web-1", ["aaaa1111", "aaaa2222"]),
        ("aaaa", ["aaaa1111", "aaaa2222"]),
        ("*/web-*", ["aaaa1111", "aaaa2222"]),
    ],
)
def test_a_reference_means_pods_of_the_history_that_may_be_gone(ref: str, uids: list[str]) -> None:
    assert [pause.uid for pause in select(FOUND, None, ref)] == uids


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("shop/web-2", "the history has no pause of 'shop/web-2'; the nearest is shop/web-1"),
        ("zzzzzz", "give namespace/name, name, UID or a prefix of the UID"),
        ("", "the history has no pause of ''"),
        ("\x1b[31m", r"'\\x1b\[31m'"),
    ],
)
def test_a_reference_to_none_says_which_there_are(ref: str, said: str) -> None:
    with pytest.raises(PodLookupError, match=said):
        select(FOUND, None, ref)


def test_a_pause_counts_for_a_time_in_which_it_was_not_over() -> None:
    assert [pause.uid for pause in select(FOUND, 105, None)] == ["aaaa1111", "aaaa2222", "bbbb3333"]
    assert [pause.uid for pause in select(FOUND, 250, None)] == ["bbbb3333"]
    running = with_active(FOUND, {PauseKey(BOOT, "aaaa2222", 2 * S): FROZEN}, 9 * S)
    assert [pause.uid for pause in select(running, 1000, None)] == ["aaaa2222"]


def test_totals_are_by_name_and_the_longest_paused_comes_first() -> None:
    events = [paused(1, 1), resumed(3, 1, 2.5), paused(5, 5, uid="u2", pod="default/u1"), paused(7, 7, uid="u3")]
    found = with_active(pauses(events), {PauseKey(BOOT, "u3", 7 * S): FROZEN}, 17 * S)

    first, second = totals(found)

    assert (first.pod, first.pauses, first.paused_s, first.longest_s, first.active) == ("default/u3", 1, 10, 10, 1)
    assert (second.pod, second.uids, second.pauses, second.paused_s) == ("default/u1", ("u1", "u2"), 2, 2.5)
    assert (second.longest_s, second.active, second.unknown) == (2.5, 0, 1)


# --- since -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


NOON = datetime(2026, 11, 22, 12, 30, 15)


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("-1h", datetime(2026, 11, 22, 11, 30, 15)),
        ("1h30m", datetime(2026, 11, 22, 11, 0, 15)),
        (" 2H ago ", datetime(2026, 11, 22, 10, 30, 15)),
        ("today", datetime(2026, 11, 22)),
        ("Yesterday", datetime(2026, 11, 21)),
        ("10:00", datetime(2026, 11, 22, 10)),
        ("9:05:01", datetime(2026, 11, 22, 9, 5, 1)),
        ("2026-11-22", datetime(2026, 11, 22)),
        ("2026-11-22T10:00", datetime(2026, 11, 22, 10)),
        ("2026-11-22 10:00:07", datetime(2026, 11, 22, 10, 0, 7)),
        ("2026-07-01", datetime(2026, 7, 1)),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, moment: datetime) -> None:
    assert parse_since(text, NOON.timestamp()) == moment.timestamp()


@pytest.mark.usefixtures("zone")
def test_a_time_may_name_its_zone() -> None:
    assert parse_since("2026-11-22T00:00:00Z", NOON.timestamp()) == 1795305600
    assert parse_since("2026-11-22t01:00+01:00", NOON.timestamp()) == 1795305600


@pytest.mark.parametrize("text", ["999999w", "99999d999999999s", "1970-01-01T00:00:00Z"])
def test_a_time_before_all_others_means_everything(text: str) -> None:
    assert parse_since(text, 1e9) == 0


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "h", "1", "2026", "20261122", "1x", "-", "--1h", "1h2d", "tomorrow", "25:00", "10:61", "ago", "nan"),
        *("2026-13-01", "2026-11-22T", "2026-11-22T10:00+99:00", "2026-11-2222", "0001-01-01", "1e3s", "\x00"),
        "\N{ARABIC-INDIC DIGIT ONE}h",
    ],
)
def test_what_is_no_time_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"^invalid time .*: use 10m, 2h, 1d12h, 10:00, today, yesterday"):
        parse_since(text, 1e9)


@pytest.mark.parametrize("text", ["9999-12-31", "2026-11-23"])
def test_a_time_to_come_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match="is in the future"):
        parse_since(text, NOON.timestamp())
