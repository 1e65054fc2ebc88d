"""The lines above and below the table of pods: title, bars with levels, sparklines, summary, footer; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cgpause.cli.top.parts import Mark, bar, bins, growth, line, shorten, size, spark, step_s, time_left, when
from cgpause.cli.top.ui import Act, Deed, Mode, Ui
from cgpause.cli.top.values import GraphPoint, Levels, NodeView, PodState
from cgpause.core.errors import printable
from cgpause.core.model import Headroom
from cgpause.kernel.find_daemon import DaemonState

_LABEL = 10
_LEAST_SPAN_S = 120
"""Shortest time that the sparklines cover."""
_LEAST_SCALE_PCT = 5.0
"""Smallest full scale of a pressure sparkline, so that the noise of an idle node stays low."""
_RATE_S = 10.0
"""Time over which the present rate of the headroom is measured."""

_DAEMON = {
    DaemonState.RUNNING: ("daemon runs", "calm"),
    DaemonState.DRY_RUN: ("daemon holds no lock: a dry run?", "close"),
    DaemonState.STOPPED: ("DAEMON NOT RUNNING", "short"),
    DaemonState.UNKNOWN: ("daemon unknown", "close"),
}
_SEPARATOR = (" · ", "dim")


def title(snapshot: NodeView, width: int) -> Text:
    """Return the title: program, node, policy, daemon, time."""
    text, style = _DAEMON[snapshot.daemon.state]
    if snapshot.daemon.pid is not None:
        text += f" (pid {snapshot.daemon.pid})"
    left = line((" cgpause top ", "app"), " ", (snapshot.host, "title"), _SEPARATOR)
    left = line(left, f"{snapshot.config.policy}, {snapshot.config.mechanism}", _SEPARATOR, (text, style))
    now = when(snapshot.at, snapshot.at, snapshot.zone)
    blank = width - left.cell_len - len(now)
    return left if blank < 1 else line(left, " " * blank, now)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar, with its amount and the texts beside it, by importance: the help explains letters without a text."""

    name: str
    total: float
    used: float
    style: str
    amount: Text
    marks: tuple[Mark, ...]
    cache: float = 0


def bars(snapshot: NodeView, width: int, count: int) -> list[Text]:
    """Return `count` lines: the bar of headroom, with 3 or more also the bars of node and kubepods."""
    headroom, levels = snapshot.headroom, snapshot.levels
    if headroom is None or levels is None:
        error = snapshot.error or "the node's memory cannot be read"
        return [line((f"{'memory':<{_LABEL}}", "label"), (error, "error")), *([Text()] * (count - 1))]
    drawn = [_headroom(snapshot, headroom, levels)]
    if count >= 3:
        drawn += [_node(snapshot, headroom, levels), *_kubepods(snapshot, headroom, levels)]
    texts = [_beside(one, width - _LABEL - width * 3 // 10) for one in drawn]
    # The bars take what the longest text leaves. On a narrow screen the amount replaces the bar, as it is more exact.
    cells = max(width - _LABEL - max([text.cell_len for text in texts]), 0)
    lines = [
        line((f"{one.name:<{_LABEL}}", "label"), _bar(one, cells), text) for one, text in zip(drawn, texts, strict=True)
    ]
    if count >= 3 and snapshot.kubepods is None:
        lines.append(line((f"{'kubepods':<{_LABEL}}", "label"), ("none on this node (yet)", "dim")))
    return lines


def _bar(one: _Bar, width: int) -> Text:
    # The most important mark is drawn last, over others in the same cell.
    marks = [mark for mark in reversed(one.marks) if mark.at > 0]
    return bar(width, one.total, one.used, one.cache, one.style, marks)


def _beside(one: _Bar, most: int) -> Text:
    """Return the amount, and the meaning of each mark that fits into `most` cells."""
    text = line(" ", one.amount)
    for mark in one.marks:
        piece = line("  ", (mark.letter, "mark"), (f" {mark.meaning}", "dim"))
        if text.cell_len + piece.cell_len <= most:
            text = line(text, piece)
    return text


def _style(available: int, levels: Levels) -> str:
    return "short" if available <= levels.pause_bytes else "close" if available < levels.tight_below_bytes else "calm"


def _headroom(snapshot: NodeView, headroom: Headroom, levels: Levels) -> _Bar:
    available = max(headroom.available_bytes, 0)
    marks = (
        Mark("P", levels.pause_bytes, f"pauses <{size(levels.pause_bytes)}"),
        Mark("E", levels.evict_bytes, f"evicts <{size(levels.evict_bytes)}"),
        Mark("W", levels.tight_below_bytes, f"awake <{size(levels.tight_below_bytes)}"),
    )
    capacity, style = headroom.capacity_bytes, _style(headroom.available_bytes, levels)
    left = time_left(available, fall_rate(snapshot.moments)) if available else ""
    shown = f"{size(available):>6} {_percent(available, capacity)}"
    amount = line((shown, style), (left and f" gone in {left}", "short"))
    return _Bar("headroom", capacity, available, style, amount, marks)


def fall_rate(moments: Sequence[GraphPoint]) -> float | None:
    """Return the bytes a second by which the headroom has fallen lately, less than 0 if it rose; None if unknown."""
    known = [(one.at_s, one.headroom_bytes) for one in moments[-100:] if one.headroom_bytes is not None]
    recent = [(at_s, headroom) for at_s, headroom in known if at_s >= known[-1][0] - _RATE_S]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return (recent[0][1] - recent[-1][1]) / (recent[-1][0] - recent[0][0])


def _node(snapshot: NodeView, headroom: Headroom, levels: Levels) -> _Bar:
    total = headroom.node_total_bytes
    used = total - headroom.node_available_bytes
    at = total - headroom.eviction_bytes
    kills = None if snapshot.kubepods is None else snapshot.kubepods.oom_kills
    amount = line(f"{size(used):>6} {_percent(used, total)} of {size(total)}")
    if kills is not None:
        text = f"{kills or 'no'} OOM kill{'s' * (kills != 1)} since boot"
        amount = line(amount, "  ", (text, "short" if kills else "dim"))
    style = _style(headroom.node_available_bytes, levels)
    return _Bar("node", total, used, style, amount, (Mark("E", at, f"evicts >{size(at)}"),))


def _kubepods(snapshot: NodeView, headroom: Headroom, levels: Levels) -> list[_Bar]:
    kubepods = snapshot.kubepods
    if kubepods is None:
        return []
    limit = headroom.kubepods_max_bytes
    total = headroom.node_total_bytes if limit is None else limit
    used = headroom.kubepods_used_bytes
    cache = max(kubepods.current_bytes - used, 0)
    marks: tuple[Mark, ...] = ()
    if kubepods.high_bytes is not None:
        whose = "" if kubepods.high_is_ours else ", not ours"
        marks = (Mark("H", kubepods.high_bytes, f"memory.high {size(kubepods.high_bytes)}{whose}"),)
    amount = f"{size(used):>6} {_percent(used, total)} of {size(limit)}"
    if cache >= total / 100:
        amount += f" +{size(cache)} cache"
    style = _style(headroom.available_bytes if limit is None else limit - used, levels)
    return [_Bar("kubepods", total, used, style, line(amount), marks, cache)]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 100:>3.0f}%"


def sparks(snapshot: NodeView, width: int, rows: int) -> list[Text]:
    """Return `rows` lines with the sparklines of pressure (some and full) and headroom, side by side."""
    each = (width - 2) // 3
    cells = max(each - _LABEL - 6, 1)
    step = step_s(cells, _LEAST_SPAN_S)
    lines = [line() for _ in range(rows)]
    for graph in _graphs(snapshot, cells * step):
        # The worst of each bin: a mean would hide a stall of one second among ten quiet ones.
        end_s = snapshot.moments[-1].at_s if snapshot.moments else 0.0
        found = bins([(one.at_s, graph.value(one)) for one in snapshot.moments], cells, step, end_s)
        values = [graph.worst(several) if several else None for several in found]
        peak = max([value for value in values if value is not None], default=0.0)
        drawn = spark(values, rows, max(peak, graph.scale))
        for row, made in enumerate(lines):
            name, note = (graph.name, graph.note) if row == rows - 1 else ("", "")
            text = drawn[row] if note or not name else f"{'off: psi=0':<{cells}}"[:cells]
            made.append(f"{name:<{_LABEL}}", "label").append(text, graph.style or _pressure_style(peak))
            made.append(f" {note:<6}")
    for made in lines:
        made.rstrip()
    return lines


@dataclass(frozen=True, slots=True)
class _Graph:
    """One sparkline with its name, and a note beside it; without a note it is off."""

    name: str
    value: Callable[[GraphPoint], float | None]
    worst: Callable[[list[float]], float]
    scale: float
    """Smallest full scale."""
    note: str
    style: str | None = None
    """None: by the peak."""


def _graphs(snapshot: NodeView, seconds: float) -> list[_Graph]:
    headroom, levels, now = snapshot.headroom, snapshot.levels, snapshot.pressure
    some = full = ""
    if now is not None:
        some, full = ("100%" if one > 99.9 else f"{one:.1f}%" for one in (now.some_avg10, now.full_avg10))
    style = "calm" if headroom is None or levels is None else _style(headroom.available_bytes, levels)
    scale = 0.0 if headroom is None else headroom.capacity_bytes / 20
    span = f"{seconds / 60:.0f}min" if seconds % 60 == 0 or seconds >= 600 else f"{seconds:.0f}s"
    return [
        _Graph("PSI some", lambda one: one.some_pct, max, _LEAST_SCALE_PCT, some),
        _Graph("PSI full", lambda one: one.full_pct, max, _LEAST_SCALE_PCT, full),
        _Graph("headroom", lambda one: one.headroom_bytes, min, scale, span, style),
    ]


def _pressure_style(peak: float) -> str:
    return "short" if peak >= 10 else "close" if peak >= 1 else "calm"


def summary(snapshot: NodeView) -> Text:
    """Return a line with the paused pods, the pods that would be paused now, and the next pod."""
    groups = {state: [pod for pod in snapshot.pods if pod.state is state] for state in PodState}
    paused, now, following = (groups[state] for state in (PodState.PAUSED, PodState.WOULD_PAUSE, PodState.NEXT))
    now.sort(key=lambda pod: -pod.demand)
    made = line((f"{'pods':<{_LABEL}}", "label"))
    if snapshot.error is not None and snapshot.headroom is not None:
        made.append(printable(snapshot.error), "error").append(*_SEPARATOR)
    made.append(f"{len(paused)} paused", "paused" if paused else "")
    if now:
        more = f" and {len(now) - 1} more" if len(now) > 1 else ""
        made.append(*_SEPARATOR).append(f"{len(now)} would be: {now[0].label}{more}", "short")
    made.append(*_SEPARATOR)
    if following:
        place = following[0].verdict.place
        demand = "" if place is None else f", needs {growth(place.needed)} of {size(max(place.fits_in, 0))} left"
        made.append(f"next: {following[0].label}{demand}", "next")
    else:
        # A growing pod can be safe from a pause: protected, the first in line, or with a demand of less than a page.
        still = all(growth(pod.growth) in "-?" for pod in snapshot.pods) and not now
        made.append("next: none, for no pod grows" if still else "next: none", "dim")
    for state, name in ((PodState.PROTECTED, "protected"), (PodState.ERROR, "with an error")):
        if groups[state]:
            made.append(*_SEPARATOR).append(f"{len(groups[state])} {name}", state.value)
    return made


_KEYS = "↑↓;Space mark;Enter describe;p pause;f freeze;r resume;s sort;S reverse;n group;/ filter;Esc;? help;q quit"
_KEYS_DESCRIBING = "↑↓ scroll;p pause;f freeze;r resume;Enter back;? help;q quit"
_MESSAGE_LINES = 3
_QUESTIONS = {
    Deed.PAUSE: "Pause {}? {} paused until you resume {}.",
    Deed.FREEZE: "Freeze {}? {} frozen, without CPU time, until you resume {}.",
    Deed.RESUME: "Resume {}?",
}


def footer(snapshot: NodeView, ui: Ui, width: int, most: int) -> list[Text]:
    """Return at most `most` lines below: the keys, or a question, the filter being typed, or a message."""
    if ui.asked is not None:
        return [_question(snapshot, ui.asked, width)]
    if ui.mode is Mode.FILTER:
        typed = ui.filter[-max(width - 2, 1) :]
        return [line(("/", "key"), (typed, "title"), ("_  Enter keeps it, Esc drops it", "dim"))]
    if ui.message:
        text = Text(f" {printable(ui.message)}", "error" if ui.failed else "calm")
        return list(text.wrap(Console(width=width), max(width, 2)))[: min(most, _MESSAGE_LINES)]
    lines = [line()]
    if ui.filter:
        lines[0].append(line("filter ", (ui.filter, "title"), "  "))
    if ui.marked:
        lines[0].append(f"{len(ui.marked)} marked", "title").append("  ")
    for named in (_KEYS_DESCRIBING if ui.describing else _KEYS).split(";"):
        key, blank, what = named.partition(" ")
        piece = line((key, "key"), blank + what)
        if lines[-1].cell_len + piece.cell_len > width and len(lines) < most:
            lines.append(line())
        lines[-1].append(piece).append("  ")
    for made in lines:
        made.rstrip()
    return lines


def _question(snapshot: NodeView, asked: Act, width: int) -> Text:
    several = len(asked.pods) > 1
    labels = [seen.label for seen in asked.pods]
    of = f" of {len(labels) + asked.skipped} marked" if asked.skipped else ""
    whom = f"{len(labels)}{of} pods ({', '.join(labels)})" if several or asked.skipped else labels[0]
    text = _QUESTIONS[asked.deed].format(whom, "They stay" if several else "It stays", "them" if several else "it")
    if asked.deed is Deed.RESUME and snapshot.daemon.state is DaemonState.RUNNING:
        text += f" The daemon may pause {'them' if several else 'it'} again."
    left = max(width - len("  y/N "), 1)
    if cell_len(text) > left:  # shorten the sentence first, then the middle of the name
        deed = asked.deed.capitalize()
        text = f"{deed} {shorten(whom, max(left - len(deed) - 2, 0))}?"
    return line((f" {text} y/N ", "ask"))
