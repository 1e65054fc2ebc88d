"""Events: the log line, the journal's fields and the history line of one event agree."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.fixtures import Patch
from helpers.nodes import ORIGINAL, S, pod, record

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner, Result
from cgpause.ledger.ledger import Resumed
from cgpause.telemetry.events import MESSAGE_IDS, Event, EventKind, PauseKey, boot_id, make_event, resumed_event
from cgpause.telemetry.history import encode

HOSTILE = "a\x1b[31m\nresumed pod=x\u2028\udcff"


@pytest.fixture
def clock(monkeypatch: Patch) -> None:
    """Stop both clocks, 12.1 s after a boot."""
    monkeypatch.setattr("cgpause.telemetry.events.time", SimpleNamespace(time=lambda: 1700000000.12345))
    monkeypatch.setattr("cgpause.telemetry.events.now_ns", lambda: 12_123_456_789)
    monkeypatch.setattr("cgpause.telemetry.events.boot_id", lambda: "b" * 32)


def test_an_event_says_what_its_pauses_record_says(clock: None) -> None:
    paused = record(7 * S, Owner.MANUAL)

    made = make_event(EventKind.FROZE, pod("web"), "it grows", paused, used_pct=95.04, times=2)

    assert (made.pod, made.uid, made.owner, made.mechanism) == ("default/web", "web", "manual", "throttle")
    assert (made.reason, made.pause_reason, made.used_pct, made.times) == ("it grows", "test", 95.0, 2)
    assert (made.at, made.paused_s) == (1700000000.123, 5.123)
    assert made.pause == PauseKey("b" * 32, "web", 7 * S)


def test_a_boot_id_is_written_as_journald_writes_it() -> None:
    assert re.fullmatch("[0-9a-f]{32}", boot_id() or "")


def test_a_pause_that_begins_was_not_paused_and_has_one_reason() -> None:
    made = make_event(EventKind.PAUSED, pod("web"), "test", record(7 * S))

    assert (made.paused_s, made.pause_reason) == (None, None)


def test_a_record_of_the_future_was_paused_for_no_time(clock: None) -> None:
    assert make_event(EventKind.GONE, pod("web"), "x", record(10**15)).paused_s == 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_resume_says_what_was_put_back(lost: bool) -> None:
    paused = record(now_ns())
    resumed = Resumed(None if lost else paused, ORIGINAL, foreign=lost)

    made = resumed_event(pod("web"), resumed, "why", Result.LOST, record=paused, cgroup="a/b", used_pct=1)

    assert (made.cpu_max_from, made.cpu_max_to) == (None if lost else "1001 100000", "50000 100000")
    assert (made.foreign, made.result, made.cgroup, made.since_ns) == (lost or None, "lost", "a/b", paused.since_ns)


def test_the_logs_line_has_what_an_operator_reads_in_one_order() -> None:
    paused = replace(record(now_ns(), Owner.MANUAL), mechanism=Mechanism.FREEZE)
    made = make_event(
        EventKind.SACRIFICED,
        pod("web"),
        "full",
        paused,
        cgroup="a/b",
        cpu_max_from=CpuMax(None, 100000),
        cpu_max_to="x",
        times=3,
        containers="c1,c2",
        memory_current_bytes=7,
        foreign=True,
        used_pct=95,
    )

    assert replace(made, paused_s=1.25).line == (
        'sacrificed pod=default/web uid=web cgroup=a/b owner=manual mechanism=freeze cpu_max_from="max 100000" '
        'cpu_max_to=x times=3 containers="c1,c2" memory_current_bytes=7 foreign=yes paused_s=1.2 used_pct=95.0 '
        "reason=full"
    )


def test_no_name_makes_two_lines() -> None:
    made = Event(1.0, "paused", HOSTILE, HOSTILE, HOSTILE)

    assert len(made.line.splitlines()) == 1
    assert made.line.isascii()
    assert encode(made).count(b"\n") == 1


def test_the_journal_has_every_field_the_history_has() -> None:
    made = make_event(EventKind.PAUSED, pod("web"), "test", record(now_ns()), cpu_max_to="x", memory_current_bytes=7)
    kept = json.loads(encode(made))

    fields = made.journal

    del kept["time"]  # the journal has its own time
    assert {name: str(value) for name, value in kept.items()} == {
        name.removeprefix("CGPAUSE_").lower(): value for name, value in fields.items() if name != "MESSAGE_ID"
    }
    assert all(re.fullmatch("[A-Z][A-Z_]*", name) for name in fields)
    assert fields["MESSAGE_ID"] == MESSAGE_IDS["paused"]


def test_what_a_dry_run_would_have_done_has_no_id_of_what_was_done() -> None:
    made = replace(make_event(EventKind.PAUSED, pod("web"), "test"), what="would have paused")

    assert "MESSAGE_ID" not in made.journal


def test_ids_are_for_ever() -> None:
    assert MESSAGE_IDS == {
        "paused": "2930fe935ce84def8bb92f4d2bc34c82",
        "resumed": "1b19fe4459a643d3b9fbbc476190d41c",
        "froze": "a597986dd2c7483ca8449659e4f1ed87",
        "sacrificed": "e321174b72a54bb48918764e866049c9",
    }


def test_without_a_boot_id_an_event_belongs_to_no_pause(monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.telemetry.events.boot_id", lambda: None)

    assert make_event(EventKind.PAUSED, pod("web"), "test", record(1)).pause is None
