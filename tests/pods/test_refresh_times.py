"""The time of the next refresh of the pod tree: tables at the boundaries, with times in seconds."""

from __future__ import annotations

import pytest
from helpers.nodes import S

from cgpause.pods.refresh_times import RefreshTimes

CALM = dict.fromkeys(("tight", "names_are_late", "started", "rewatched"), False)
CALM |= dict.fromkeys(("watched", "in_use", "named"), True)


def times_after(found: dict[str, bool], at_s: int = 0) -> RefreshTimes:
    times = RefreshTimes()
    times.refreshed(at_s * S, **found)
    return times


def test_the_first_walk_is_due_at_once_and_reads_everything() -> None:
    times = RefreshTimes()

    assert times.is_due(0)
    assert times.facts_due(0)


@pytest.mark.parametrize(
    ("found", "due_s"),
    [
        pytest.param(CALM, 600, id="nobody-asks"),
        pytest.param({**CALM, "tight": True}, 60, id="memory-is-tight"),
        pytest.param({**CALM, "started": True}, 60, id="may-listen-soon"),
        pytest.param({**CALM, "in_use": False}, 60, id="may-be-the-wrong-tree"),
        pytest.param({**CALM, "named": False}, 10, id="its-log-folder-comes-later"),
        pytest.param({**CALM, "named": False, "names_are_late": True}, 1, id="its-name-is-being-read"),
        pytest.param({**CALM, "names_are_late": True}, 600, id="no-name-is-missing"),
        pytest.param({**CALM, "watched": False}, 1, id="nothing-tells"),
        pytest.param({**CALM, "watched": False, "named": False}, 1, id="nothing-tells-and-no-name"),
        pytest.param({**CALM, "rewatched": True}, 0, id="not-seen-before-the-watch"),
        pytest.param({**CALM, "rewatched": True, "named": False}, 0, id="not-seen-before-the-watch-and-no-name"),
    ],
)
def test_what_was_found_says_when_to_walk_again(found: dict[str, bool], due_s: int) -> None:
    times = times_after(found, 1000)

    assert times.due_ns == (1000 + due_s) * S
    assert times.is_due((1000 + due_s) * S)
    assert not times.is_due((1000 + due_s) * S - 1)


def test_a_disk_that_hangs_is_not_asked_each_second_for_ever() -> None:
    late = {**CALM, "named": False, "names_are_late": True}
    times = times_after(late, 1000)
    for at_s, next_s in ((1004, 1), (1005, 10), (1015, 10)):
        times.refreshed(at_s * S, **late)
        assert times.due_ns == (at_s + next_s) * S
    times.refreshed(1020 * S, **{**late, "names_are_late": False})
    times.refreshed(1021 * S, **late)
    assert times.due_ns == 1022 * S, "it is late anew"


def test_ten_minutes_after_the_last_pod_started_it_is_calm_again() -> None:
    times = times_after({**CALM, "started": True})

    for at_s, due_s in ((60, 120), (599, 659), (600, 1200)):
        times.refreshed(at_s * S, **CALM)
        assert times.due_ns == due_s * S


def test_facts_are_read_again_after_a_minute_and_not_with_every_walk() -> None:
    times = times_after(CALM)

    assert not times.facts_due(60 * S - 1)
    times.refreshed(30 * S, **CALM)
    assert times.facts_due(60 * S)


def test_another_configuration_expires_facts_and_waits_for_nothing() -> None:
    times = times_after(CALM)
    times.rest_until(7 * S)

    times.expire_facts()

    assert times.facts_due(1)
    assert times.is_due(1)


def test_what_comes_is_walked_for_at_once_and_then_not_before_the_walk_has_paid_off() -> None:
    times = times_after(CALM)
    times.changed(5 * S, came=True, gone=False)
    assert times.due_ns == 5 * S

    times.refreshed(5 * S, **CALM)
    times.rest_until(7 * S)
    times.changed(6 * S, came=True, gone=False)

    assert times.due_ns == 7 * S


def test_what_goes_is_walked_for_within_a_second_and_puts_nothing_off() -> None:
    times = times_after(CALM)

    times.changed(5 * S, came=False, gone=True)
    times.changed(5 * S + S // 2, came=False, gone=True)

    assert times.due_ns == 6 * S


@pytest.mark.parametrize(
    ("at_s", "due_s"),
    [pytest.param(30, 60, id="facts-of-this-minute-will-do"), pytest.param(100, 100, id="older-ones-will-not")],
)
def test_when_memory_becomes_close_facts_are_read_once_they_are_a_minute_old(at_s: int, due_s: int) -> None:
    times = times_after(CALM)

    times.memory_became_tight(at_s * S)

    assert times.due_ns == due_s * S
    assert times.facts_due(due_s * S)


def test_a_walk_that_failed_is_tried_again_in_ten_seconds_and_read_nothing() -> None:
    times = RefreshTimes()

    times.failed(5 * S)

    assert times.due_ns == 15 * S
    assert times.facts_due(15 * S)
