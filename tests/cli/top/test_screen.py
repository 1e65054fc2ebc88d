"""The dashboard's screen, as a pure function of a snapshot: whole frames, and properties of every frame."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from helpers.dashboards import (
    GIB,
    MIB,
    busy_snapshot,
    make_detail,
    make_place,
    make_pod,
    make_snapshot,
    many_pods,
    pause,
    text_of,
)
from helpers.generated import current
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cgpause.cli.top.head import fall_rate
from cgpause.cli.top.parts import ASCII, UNICODE, when
from cgpause.cli.top.screen import render, settled
from cgpause.cli.top.table import full_in
from cgpause.cli.top.terminal import Terminal, encoding_of, is_ascii
from cgpause.cli.top.ui import Act, Deed, Mode, Sort, Ui, settle
from cgpause.cli.top.values import GraphPoint, Kubepods, Levels, NodeView, PodState, SeenPod
from cgpause.core.model import Headroom, QosClass
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon
from cgpause.telemetry.events import Event

FRAMES = Path(__file__).parents[2] / "fixtures" / "top"


def test_a_time_before_summer_time_ended_has_the_hour_that_clocks_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        before, now = (datetime(2026, 10, day, 13, tzinfo=UTC).timestamp() for day in (24, 26))
        assert when(before, now, None) == "10-24 15:00"
        assert when(now, now, None) == "14:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def described(index: int = 1) -> tuple[NodeView, Ui]:
    snapshot = busy_snapshot()
    pod = snapshot.pods[index]
    return replace(snapshot, detail=make_detail(pod)), Ui(selected=pod.key, describing=True)


def marked() -> Ui:
    pods = busy_snapshot().pods
    return Ui(grouped=True, selected=pods[3].key, marked=frozenset({pods[1].key, pods[2].key}))


def test_page_cache_is_room_until_the_limit_is_full() -> None:
    pod = make_pod("reads", current_bytes=GIB, memory_max_bytes=GIB, reclaimable_bytes=900 * MIB, growth=MIB)
    assert full_in(pod) == "15m00s"


def without_psi() -> NodeView:
    snapshot = busy_snapshot()
    moments = tuple(replace(moment, some_pct=None, full_pct=None) for moment in snapshot.moments)
    return replace(snapshot, pressure=None, moments=moments)


def of_one(growth: float) -> NodeView:
    return make_snapshot(make_pod(growth=growth, place=make_place(MIB, GIB, first=True)))


def asked(deed: Deed, *labels: str, skipped: int = 0) -> tuple[NodeView, Ui]:
    pods = tuple(map(make_pod, labels))
    return make_snapshot(*pods), Ui(asked=Act(deed, pods, skipped))


NO_KUBEPODS = make_snapshot(
    kubepods=None, headroom=Headroom(8 * GIB, 3 * GIB, None, 0, 100 * MIB), levels=Levels(1, 2, 1)
)
UNREADABLE = replace(busy_snapshot(), headroom=None, levels=None, error="cannot read memory.stat: EIO")
REFUSED = "not permitted: run cgpause top as root to pause pods" + " (cannot lock /sys/fs/cgroup/x)" * 3
REPLICA = "default/" + "long-" * 20 + "7d9f-x2kqz"  # replicas differ in the end of their names
WHOLE: dict[str, tuple[NodeView, Ui, int, int]] = {
    "80x24": (busy_snapshot(), Ui(), 80, 24),
    "120x40": (busy_snapshot(), Ui(), 120, 40),
    "200x60": (busy_snapshot(), Ui(), 200, 60),
    "200x50-grouped": (busy_snapshot(), marked(), 200, 50),
    "80x24-described": (*described(), 80, 24),
    "120x40-described": (*described(), 120, 40),
    "120x24-described-paused-by-hand": (*described(-1), 120, 24),
    "80x24-help": (busy_snapshot(), Ui(mode=Mode.HELP), 80, 24),
    "40x10": (busy_snapshot(), Ui(), 40, 10),
    "20x5": (busy_snapshot(), Ui(), 20, 5),
    "80x24-scrolled": (many_pods(500), Ui(selected=many_pods(500).pods[321].key), 80, 24),
    "80x6-no-pod-grows": (of_one(0.0), Ui(), 80, 6),
    "80x6-one-pod-grows": (of_one(5.0 * MIB), Ui(), 80, 6),
    "80x24-no-kubepods": (NO_KUBEPODS, Ui(), 80, 24),
    "80x24-no-psi": (without_psi(), Ui(), 80, 24),
    "80x60-no-psi": (without_psi(), Ui(), 80, 60),
    "80x24-unreadable-memory": (UNREADABLE, Ui(), 80, 24),
    "20x5-unreadable-memory": (UNREADABLE, Ui(), 20, 5),
    "60x12-refused": (busy_snapshot(), Ui(message=REFUSED, failed=True), 60, 12),
    "80x6-freeze": (*asked(Deed.FREEZE, "default/web"), 80, 6),
    "60x6-pause-long-name": (*asked(Deed.PAUSE, REPLICA), 60, 6),
    "120x6-pause-several": (*asked(Deed.PAUSE, "a/web", "b/db", skipped=1), 120, 6),
    "80x6-resume": (*asked(Deed.RESUME, "default/web"), 80, 6),
    "40x6-resume-several": (*asked(Deed.RESUME, "a/web", "b/db"), 40, 6),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_frames_are_as_they_were_looked_at(name: str) -> None:
    snapshot, ui, *size = WHOLE[name]
    shown = "".join(f"{line}\n" for line in text_of(render(snapshot, settled(ui, snapshot, *size), *size)))

    assert current(FRAMES / f"{name}.txt", shown), f"look at it, and run it with CGPAUSE_REGENERATE=1:\n{shown}"


@pytest.mark.parametrize(
    ("rate", "said"),
    [(38 * MIB, "gone in 10s"), (MIB, "gone in 6m20s"), (1000, None), (0, None), (-38 * MIB, None)],
)
def test_the_time_until_no_headroom_is_left_is_forecast_from_the_present_rate(rate: float, said: str | None) -> None:
    moments = tuple(GraphPoint(at_s, 0.0, 0.0, int(380 * MIB + (19 - at_s) * rate)) for at_s in range(20))
    line = text_of(render(replace(busy_snapshot(), moments=moments), Ui(), 80, 24))[1]

    assert ("gone in" in line) == (said is not None)
    assert said is None or said in line


def test_the_present_rate_is_of_the_last_ten_seconds() -> None:
    still = [GraphPoint(at_s, None, None, 100) for at_s in range(30)]

    assert fall_rate(still) == 0
    assert fall_rate([GraphPoint(0, None, None, 900), *still[15:]]) == 0
    assert fall_rate([*still, GraphPoint(30, None, None, 50)]) == 5.0
    assert fall_rate(still[:1]) is None
    assert fall_rate([GraphPoint(at_s, None, None, None) for at_s in range(3)]) is None


def test_a_pod_that_the_daemon_keeps_paused_shows_the_daemons_decision_and_no_other() -> None:
    pod = make_pod("default/web", PodState.PAUSED, paused=pause(5), what="would resume", acts=True, why="fits again")
    snapshot = make_snapshot(pod)

    for ui in (Ui(), Ui(selected=pod.key, describing=True)):
        text = "\n".join(text_of(render(snapshot, ui, 120, 40)))
        assert "needs 5.0Mi of 3.0Mi left" in text
        assert "would resume" not in text
        assert "fits again" not in text


def test_the_reason_why_a_pod_cannot_be_paused_is_said_once() -> None:
    pod = make_pod("default/web", place=None, rank=None, why="too new", blocked="too new")
    text = "\n".join(text_of(render(make_snapshot(pod), Ui(selected=pod.key, describing=True), 120, 40)))

    assert text.count("too new") == 1


def test_a_long_description_is_scrolled_to_its_end_and_no_further() -> None:
    snapshot, ui = described()
    last = text_of(render(snapshot, settled(replace(ui, scroll=1 << 30), snapshot, 80, 14), 80, 14))

    assert any("paused   needs 9.0Mi of 4.0Mi left" in line for line in last)
    assert settled(ui, snapshot, 80, 60).scroll == settled(replace(ui, scroll=5), snapshot, 80, 60).scroll == 0


@pytest.mark.parametrize(
    ("found", "line", "said"),
    [
        (FoundDaemon(DaemonState.RUNNING), 0, "daemon runs"),
        (FoundDaemon(DaemonState.STOPPED), 0, "DAEMON NOT RUNNING"),
        (FoundDaemon(DaemonState.DRY_RUN), 0, "daemon holds no lock: a dry run?"),
        (FoundDaemon(DaemonState.UNKNOWN), 0, "daemon unknown"),
        (Kubepods(1, None, high_is_ours=False, oom_kills=1), 2, "1 OOM kill since boot"),
        (Kubepods(1, None, high_is_ours=False, oom_kills=7), 2, "7 OOM kills"),
        (Kubepods(GIB, 2 * GIB, high_is_ours=False, oom_kills=None), 3, "memory.high 2.0Gi, not ours"),
    ],
)
def test_the_first_lines_tell_what_was_found(found: FoundDaemon | Kubepods, line: int, said: str) -> None:
    before = busy_snapshot()
    snapshot = replace(before, daemon=found) if isinstance(found, FoundDaemon) else replace(before, kubepods=found)

    assert said in text_of(render(snapshot, Ui(), 120, 40))[line]


def test_hostile_names_and_reasons_cannot_reach_the_terminal() -> None:
    """Reasons come from records, which root in a container may have written."""
    hostile = "[/x]\x1b[2J\n\udcff\u202e"
    pod = make_pod("default/web", PodState.PAUSED, paused=pause(5, reason=hostile))
    event = Event(0, hostile, f"default/{hostile}", "", hostile)

    for ui in (Ui(), Ui(selected=pod.key, describing=True)):
        lines = text_of(render(make_snapshot(pod, events=(event,)), ui, 200, 60))
        assert all(line.isprintable() for line in lines)


def painted(snapshot: NodeView, monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name in ("NO_COLOR", "COLORTERM", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(0, 1, Console(file=io.StringIO(), force_terminal=True))
    ui = settle(Ui(selected=snapshot.pods[0].key), snapshot, 10)
    return "\n".join(terminal.paint(line) for line in render(snapshot, ui, 120, 40).lines)


def colours(text: str) -> set[str]:
    """Return the SGR parameters in a text that set a colour."""
    parameters = {one for part in text.split("\x1b[")[1:] for one in part.partition("m")[0].split(";")}
    return {one for one in parameters if one.isdigit() and 30 <= int(one) <= 107}


def test_without_colour_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = painted(busy_snapshot(), monkeypatch, TERM="xterm-256color")
    plain = painted(busy_snapshot(), monkeypatch, TERM="xterm-256color", NO_COLOR="1")

    assert colours(coloured)
    assert not colours(plain)
    assert "\x1b[7m" in plain  # the selected row is still reversed
    assert "would be paused" in plain


@pytest.mark.parametrize(
    ("environ", "utf8", "expected"),
    [
        ({"LC_ALL": "C"}, True, "ascii"),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, True, "ascii"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True, "ascii"),
        ({"LANG": "de_DE.ISO-8859-1", "LC_CTYPE": "C.UTF-8"}, True, "ascii"),
        ({"LC_CTYPE": "de_DE.ISO-8859-15@euro", "LANG": "C.UTF-8"}, True, "ascii"),
        ({"LC_CTYPE": "C.UTF-8"}, True, "utf-8"),
        ({}, True, "utf-8"),
        ({"LC_ALL": "de_DE.UTF-8"}, True, "utf-8"),
        ({"LANG": "de_DE.utf8@euro", "LC_CTYPE": "C.UTF-8"}, True, "utf-8"),
        ({"LANG": "de_DE", "LC_CTYPE": "C.UTF-8"}, True, "utf-8"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False, "utf-8"),
    ],
    ids=str,
)
def test_the_locale_says_what_a_terminal_has_although_python_writes_utf_8(
    environ: dict[str, str], utf8: bool, expected: str
) -> None:
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        assert encoding_of(Console(file=nowhere), environ, utf8=utf8) == expected


@pytest.mark.parametrize(
    ("encoding", "ascii_only"), [("utf-8", False), ("ascii", True), ("latin-1", True), ("none such", True)]
)
def test_a_terminal_is_drawn_on_with_what_its_encoding_has(encoding: str, ascii_only: bool) -> None:
    assert is_ascii(encoding) is ascii_only


def test_every_character_of_the_dashboard_has_one_in_ascii() -> None:
    assert UNICODE.translate(ASCII).isascii()
    assert len(UNICODE.translate(ASCII)) == len(UNICODE) == len(set(UNICODE)) + 1  # the full block is in both scales


def test_frames_have_no_other_characters() -> None:
    for ui in (Ui(), Ui(mode=Mode.HELP), marked(), described()[1]):
        assert "".join(text_of(render(busy_snapshot(), ui, 120, 40))).translate(ASCII).isascii()


TEXTS = st.one_of(
    st.sampled_from(["default/web", "日本語/名前", "a" * 300, "", "é́́x", "👩‍👩‍👧/x", "\x1b[2J\n\u202e\udcff"]),
    st.text(max_size=20),
)
AMOUNTS = st.one_of(st.none(), st.floats(0, 1e15), st.sampled_from([0.0, 1.0, float(GIB)]))
BYTES = st.one_of(st.none(), st.integers(0, 1 << 62))


@st.composite
def pods(draw: st.DrawFn) -> SeenPod:
    state = draw(st.sampled_from(PodState))
    label = draw(TEXTS)
    place = st.builds(make_place, st.floats(0, 1e12), st.floats(-1e12, 1e12), first=st.booleans())
    return make_pod(
        label,
        state,
        qos=draw(st.sampled_from(QosClass)),
        current_bytes=draw(BYTES),
        memory_max_bytes=draw(BYTES),
        reclaimable_bytes=draw(st.integers(0, 1 << 40)),
        growth=draw(AMOUNTS),
        cpu_millicores=draw(AMOUNTS),
        throttled_ms=draw(AMOUNTS),
        paused=pause(draw(st.floats(-1e6, 1e6)), reason=draw(TEXTS)) if state is PodState.PAUSED else None,
        protected=draw(TEXTS),
        error=draw(TEXTS) if state is PodState.ERROR else None,
        why=draw(TEXTS),
        place=draw(st.none() | place),
        priority=draw(st.integers(-1000, 1000)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> NodeView:
    limit = draw(BYTES)
    some = st.lists(st.builds(Event, st.floats(0, 2e9), TEXTS, TEXTS, TEXTS, TEXTS, paused_s=AMOUNTS), max_size=4)
    there = draw(st.booleans())
    return make_snapshot(
        *draw(st.lists(pods(), max_size=12)),
        host=draw(TEXTS),
        headroom=Headroom(8 * GIB, draw(st.integers(0, 8 * GIB)), limit, draw(st.integers(0, 1 << 40)), 100 * MIB)
        if there
        else None,
        levels=Levels(draw(st.floats(-1e12, 1e12)), draw(st.floats(-1e12, 1e12)), draw(st.integers(0, 1 << 40)))
        if there
        else None,
        kubepods=draw(st.none() | st.just(Kubepods(1, None, high_is_ours=False, oom_kills=3))),
        pressure=draw(st.none() | st.just(busy_snapshot().pressure)),
        events=tuple(draw(some)),
        error=draw(st.none() | TEXTS),
    )


UIS = st.builds(
    Ui,
    mode=st.sampled_from(Mode),
    sort=st.sampled_from(Sort),
    grouped=st.booleans(),
    top=st.integers(-5, 500),
    describing=st.booleans(),
    message=TEXTS,
)


@given(snapshot=snapshots(), ui=UIS, asks=st.booleans(), width=st.integers(1, 250), height=st.integers(1, 80))
@example(snapshot=make_snapshot(), ui=Ui(message="of several lines"), asks=False, width=1, height=1)
@example(snapshot=busy_snapshot(), ui=Ui(describing=True, grouped=True), asks=True, width=2, height=2)
@example(snapshot=busy_snapshot(), ui=Ui(message="not permitted: " * 9, grouped=True), asks=False, width=20, height=2)
def test_no_frame_is_larger_than_the_terminal(snapshot: NodeView, ui: Ui, asks: bool, width: int, height: int) -> None:
    pod = snapshot.pods[0] if snapshot.pods else make_pod()
    typed = ui.message if ui.mode is Mode.FILTER else ""
    ui = replace(ui, selected=pod.key, asked=Act(Deed.PAUSE, (pod,)) if asks else None, filter=typed)

    frame = render(snapshot, settled(ui, snapshot, width, height), width, height)

    assert len(frame.lines) <= height
    for line in text_of(frame):
        assert cell_len(line) <= width, line
        assert line.isprintable()
