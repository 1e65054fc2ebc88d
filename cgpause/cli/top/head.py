"""The lines above and below the table of pods: title, bars with levels, sparklines, summary, footer; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cgpause.cli.top.parts import (
    Glyphs,
    Line,
    Mark,
    bar,
    bins,
    clock,
    cut,
    fit,
    fit_label,
    line_width,
    size,
    spark,
    step_s,
    width_of,
    wrap,
)
from cgpause.cli.top.table import growth
from cgpause.cli.top.ui import Act, Deed, Mode, Ui
from cgpause.cli.top.values import Levels, NodeView, PodState, SeenPod
from cgpause.core.model import Headroom
from cgpause.kernel.find_daemon import DaemonState

_LABEL = 9
_LEAST_SPAN_S = 120
"""Shortest time that the sparklines cover."""
_LEAST_SCALE_PCT = 5.0
"""Smallest full scale of a pressure sparkline, so that the noise of an idle node stays low."""

_DAEMON = {
    DaemonState.RUNNING: ("daemon runs", "calm"),
    DaemonState.LOOKING_ON: ("daemon holds no lock: a dry run?", "close"),
    DaemonState.STOPPED: ("DAEMON NOT RUNNING", "short"),
    DaemonState.UNKNOWN: ("daemon unknown", "close"),
}


def title(snapshot: NodeView, width: int, glyphs: Glyphs) -> Line:
    """Return the title: program, node, policy, daemon, time."""
    text, style = _DAEMON[snapshot.daemon.state]
    if snapshot.daemon.pid is not None:
        text += f" (pid {snapshot.daemon.pid})"
    line: Line = [(" cgpause top ", "app"), (" ", ""), (snapshot.host, "title")]
    line += [(f" {glyphs.dot} ", "dim"), (f"{snapshot.policy}, {snapshot.mechanism}", "")]
    line += [(f" {glyphs.dot} ", "dim"), (text, style)]
    now = clock(snapshot.at, snapshot.utc_offset_s)
    left = width - line_width(line) - len(now)
    if left < 1:
        return cut(line, width, glyphs)
    return [*line, (" " * left, ""), (now, "")]


def bars(snapshot: NodeView, width: int, count: int, glyphs: Glyphs) -> list[Line]:
    """Return `count` lines: the bar of headroom, with 3 or more also the bars of node and kubepods."""
    headroom, levels = snapshot.headroom, snapshot.levels
    if headroom is None or levels is None:
        trouble = snapshot.trouble or "the node's memory cannot be read"
        return [[(f"{'memory':<{_LABEL}} ", "label"), (trouble, "error")], *([] for _ in range(count - 1))]
    lines = [_headroom(headroom, levels, width, glyphs)]
    if count >= 3:
        lines += [_node(headroom, levels, width, glyphs), _kubepods(snapshot, headroom, levels, width, glyphs)]
    return lines


def _style(available: int, levels: Levels) -> str:
    return "short" if available <= levels.pause_bytes else "close" if available < levels.care_bytes else "calm"


def _headroom(headroom: Headroom, levels: Levels, width: int, glyphs: Glyphs) -> Line:
    available = max(headroom.available_bytes, 0)
    marks = [  # by importance: if a text does not fit, the help explains the letter
        Mark("P", levels.pause_bytes, "mark", f"pauses <{size(levels.pause_bytes)}"),
        Mark("E", levels.evict_bytes, "mark", f"evicts <{size(levels.evict_bytes)}"),
        Mark("W", levels.care_bytes, "mark", f"awake <{size(levels.care_bytes)}"),
    ]
    capacity = headroom.capacity_bytes
    amount = f"{size(available):>6} {_percent(available, capacity)}"
    style = _style(headroom.available_bytes, levels)
    return _bar("headroom", capacity, available, 0, style, marks, amount, width, glyphs)


def _node(headroom: Headroom, levels: Levels, width: int, glyphs: Glyphs) -> Line:
    total = headroom.node_total_bytes
    used = total - headroom.node_available_bytes
    at = total - headroom.eviction_bytes
    marks = [Mark("E", at, "mark", f"evicts >{size(at)}")]
    amount = f"{size(used):>6} {_percent(used, total)} of {size(total)}"
    style = _style(headroom.node_available_bytes, levels)
    return _bar("node", total, used, 0, style, marks, amount, width, glyphs)


def _kubepods(snapshot: NodeView, headroom: Headroom, levels: Levels, width: int, glyphs: Glyphs) -> Line:
    kubepods = snapshot.kubepods
    if kubepods is None:
        return [(f"{'kubepods':<{_LABEL}} ", "label"), ("none on this node (yet)", "dim")]
    limit = headroom.kubepods_max_bytes
    total = headroom.node_total_bytes if limit is None else limit
    used = headroom.kubepods_used_bytes
    cache = max(kubepods.current_bytes - used, 0)
    marks = []
    if kubepods.high_bytes is not None:
        whose = "" if kubepods.high_is_ours else ", not ours"
        marks.append(Mark("H", kubepods.high_bytes, "mark", f"memory.high {size(kubepods.high_bytes)}{whose}"))
    amount = f"{size(used):>6} {_percent(used, total)} of {size(limit)}"
    if cache >= total / 100:
        amount += f" +{size(cache)} cache"
    style = _style(headroom.available_bytes if limit is None else limit - used, levels)
    return _bar("kubepods", total, used, cache, style, marks, amount, width, glyphs)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 100:>3.0f}%"


def _bar(
    name: str,
    total: float,
    used: float,
    cache: float,
    style: str,
    marks: list[Mark],
    amount: str,
    width: int,
    glyphs: Glyphs,
) -> Line:
    """Return a line of label, bar and amount, and the meaning of each mark that fits."""
    line: Line = [(f"{fit(name, _LABEL, glyphs)} ", "label")]
    # On a narrow screen the amount replaces the bar, as it is more exact.
    drawn = max(min(width * 3 // 10, 70, width - _LABEL - 2 - len(amount)), 0)
    # The most important mark is drawn last, over others in the same cell.
    line += bar(drawn, total, used, cache, style, [mark for mark in reversed(marks) if mark.at > 0], glyphs)
    line.append((f" {amount}", style if name == "headroom" else ""))
    for mark in marks:
        piece: Line = [("  ", ""), (mark.letter, mark.style), (f" {mark.meaning}", "dim")]
        if line_width(line) + line_width(piece) > width:
            # The help explains the letter.
            continue
        line += piece
    return line


@dataclass(frozen=True, slots=True)
class _Graph:
    """One sparkline with its name, and a note beside it."""

    name: str
    drawn: list[str]
    style: str
    note: str


def sparks(snapshot: NodeView, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return `rows` lines with the sparklines of pressure (some and full) and headroom, side by side."""
    if not rows:
        return []
    each = (width - 2) // 3
    cells = max(each - _LABEL - 7, 1)
    step = step_s(cells, _LEAST_SPAN_S)
    end_s = snapshot.moments[-1].at_s if snapshot.moments else 0.0
    moments = [moment for moment in snapshot.moments if moment.at_s > end_s - (cells + 1) * step]

    def binned(points: list[tuple[float, float | None]]) -> list[list[float]]:
        return bins(points, cells, step, end_s)

    some, full = (
        (None, None) if snapshot.pressure is None else (snapshot.pressure.some_avg10, snapshot.pressure.full_avg10)
    )
    graphs = [
        _pressure("PSI some", some, binned([(m.at_s, m.some_pct) for m in moments]), rows, glyphs),
        _pressure("PSI full", full, binned([(m.at_s, m.full_pct) for m in moments]), rows, glyphs),
        _left(snapshot, binned([(m.at_s, m.headroom_bytes) for m in moments]), rows, _minutes(cells * step), glyphs),
    ]
    lines: list[Line] = []
    for row in range(rows):
        line: Line = []
        for graph in graphs:
            name, note = (graph.name, graph.note) if row == rows - 1 else ("", "")
            line += [(f"{fit(name, _LABEL, glyphs)} ", "label"), (fit(graph.drawn[row], cells, glyphs), graph.style)]
            line += [(fit(f" {note}", each - _LABEL - 1 - cells, glyphs), ""), (" ", "")]
        lines.append(line[:-1])
    return lines


def _pressure(name: str, now: float | None, found: list[list[float]], rows: int, glyphs: Glyphs) -> _Graph:
    if now is None:
        return _Graph(name, [*[""] * (rows - 1), "off: psi=0"], "dim", "")
    # The worst of each bin: a mean would hide a stall of one second among ten quiet ones.
    values = [max(several) if several else None for several in found]
    peak = max([value for value in values if value is not None], default=0.0)
    style = "short" if peak >= 10 else "close" if peak >= 1 else "calm"
    drawn = spark(values, rows, max(peak, _LEAST_SCALE_PCT), glyphs)
    return _Graph(name, drawn, style, f"{now:.1f}%" if now < 99.95 else "100%")


def _left(snapshot: NodeView, found: list[list[float]], rows: int, note: str, glyphs: Glyphs) -> _Graph:
    headroom, levels = snapshot.headroom, snapshot.levels
    style = "calm" if headroom is None or levels is None else _style(headroom.available_bytes, levels)
    values = [min(several) if several else None for several in found]
    largest = max([value for value in values if value is not None], default=0.0)
    least_scale = 0.0 if headroom is None else headroom.capacity_bytes / 20
    return _Graph("headroom", spark(values, rows, max(largest, least_scale), glyphs), style, note)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}min" if seconds % 60 == 0 or seconds >= 600 else f"{seconds:.0f}s"


def summary(snapshot: NodeView, width: int, glyphs: Glyphs) -> Line:
    """Return a line with the paused pods, the pods that would be paused now, and the next pod."""
    groups = {state: [pod for pod in snapshot.pods if pod.state is state] for state in PodState}
    line: Line = [(f"{fit('pods', _LABEL, glyphs)} ", "label")]
    paused, now, following = (groups[state] for state in (PodState.PAUSED, PodState.WOULD_PAUSE, PodState.NEXT))
    paused.sort(key=lambda pod: -pod.need)
    now.sort(key=lambda pod: -pod.need)
    if snapshot.trouble is not None and snapshot.headroom is not None:
        line += [(snapshot.trouble, "error"), (f" {glyphs.dot} ", "dim")]
    line.append((f"{len(paused)} paused", "paused" if paused else ""))
    if now:
        line += [
            (f" {glyphs.dot} ", "dim"),
            (f"{len(now)} would be: {_names(now, 1 if width < 100 else 2)}", "short"),
        ]
    line.append((f" {glyphs.dot} ", "dim"))
    if following:
        pod = following[0]
        need = "" if pod.place is None else f", needs {growth(pod.need)} of {size(pod.place.left)}"
        line.append((f"next: {pod.label}{need}", "next"))
    else:
        line.append(("next: none, for no pod grows" if not now else "next: no other pod", "dim"))
    counts = ((groups[PodState.PROTECTED], "protected", "protected"), (groups[PodState.ERROR], "unreadable", "error"))
    for pods, name, style in counts:
        if pods:
            line += [(f" {glyphs.dot} ", "dim"), (f"{len(pods)} {name}", style)]
    if line_width(line) > width:
        return cut(line, width, glyphs)
    return line


def _names(pods: Iterable[SeenPod], most: int) -> str:
    labels = [pod.label for pod in pods]
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


_KEYS = (
    ("↑↓", ""),
    ("p", "pause"),
    ("r", "resume"),
    ("f", "freeze"),
    ("e", "explain"),
    ("s", "sort"),
    ("/", "filter"),
    ("?", "help"),
    ("q", "quit"),
)
_MESSAGE_LINES = 3
_QUESTIONS = {
    Deed.PAUSE: "Pause {}? It stays paused until somebody resumes it.",
    Deed.FREEZE: "Freeze {}? It gets no CPU time at all until somebody resumes it.",
    Deed.RESUME: "Resume {}?",
}


def footer(snapshot: NodeView, ui: Ui, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the lines below: the keys, or a question, the filter being typed, or a message (up to 3 lines)."""
    if ui.mode is Mode.STILL:
        return []
    if ui.mode is Mode.CONFIRM and ui.asked is not None:
        return [_question(snapshot, ui.asked, width, glyphs)]
    if ui.mode is Mode.FILTER:
        room = max(width - 2, 0)
        typed = ui.filter if len(ui.filter) <= room else ui.filter[len(ui.filter) - room :]
        hint = "  Enter keeps it, Esc drops it"
        return [cut([("/", "key"), (typed, "title"), ("_", "dim"), (hint, "dim")], width, glyphs)]
    if ui.message:
        style = "error" if ui.failed else "calm"
        return [[(f" {text}", style)] for text in wrap(ui.message, max(width - 1, 1))[:_MESSAGE_LINES]]
    line: Line = [("filter ", ""), (ui.filter, "title"), ("  ", "")] if ui.filter else []
    for key, what in _KEYS:
        line += [(glyphs.arrows if key == "↑↓" else key, "key"), (f" {what}  " if what else "  ", "")]
    line[-1] = (line[-1][0].rstrip(), "")
    return [cut(line, width, glyphs)]


def _question(snapshot: NodeView, asked: Act, width: int, glyphs: Glyphs) -> Line:
    answer = "y/N "
    more = ""
    if asked.deed is Deed.RESUME and snapshot.daemon.state is DaemonState.RUNNING:
        more = " The daemon may pause it again."
    left = max(width - len(answer) - 2, 1)
    question = _QUESTIONS[asked.deed].format(asked.label) + more
    if width_of(question) > left:  # shorten the sentence first, then the middle of the name
        deed = asked.deed.capitalize()
        room = max(left - width_of(f"{deed} ?"), 0)
        question = f"{deed} {fit_label(asked.label, min(width_of(asked.label), room), glyphs)}?"
    question = fit(question, min(width_of(question), left), glyphs)
    return cut([(f" {question} ", "ask"), (answer, "ask")], width, glyphs)
