"""The dashboard's table of pods: the columns that fit, and the visible rows; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from cgpause.cli.top.parts import bar, growth, line, millicores, milliseconds, shorten, size, time_left
from cgpause.cli.top.ui import Group, Row, Ui, cursor, state_words
from cgpause.cli.top.values import NodeView, PodState, SeenPod
from cgpause.core import durations
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Owner, PauseRecord, QosClass

_SHORT_QOS = {QosClass.GUARANTEED: "G", QosClass.BURSTABLE: "B", QosClass.BEST_EFFORT: "BE"}
_USE_WIDTH = 10
_MARKS = 2
"""Width of the signs of cursor and mark before the name."""
_LEAST_LABEL, _USUAL_LABEL = 14, 22
_LEAST_STATE, _USUAL_STATE = 15, 36
_NARROW = 100
"""Screen width below which one cell, not two, separates the table's columns."""
STATE_STYLES = {
    PodState.ERROR: "error",
    PodState.PAUSED: "paused",
    PodState.WOULD_PAUSE: "short",
    PodState.NEXT: "next",
    PodState.PROTECTED: "protected",
    PodState.RUNNING: "",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of a fixed width; on a narrow screen, columns of a low rank are left out first."""

    header: str
    width: int
    rank: int
    cell: Callable[[SeenPod], str | Text]
    total: Callable[[Group], str] = lambda _: ""
    """Text in the row of a namespace."""
    left: bool = False


def full_in(seen: SeenPod) -> str:
    """Return the time until the pod has filled its limit without page cache; "-" if it is long, "" without a limit."""
    limit, current = seen.pod.memory_max_bytes, seen.current_bytes
    if limit is None or current is None:
        return ""
    return time_left(max(limit - current + _cache(seen, current), 0), seen.growth) or "-"


def _cache(seen: SeenPod, current: int) -> int:
    """Return the page cache that the kernel can reclaim from the pod, in bytes; never more than `current`."""
    return min(seen.pod.reclaimable_bytes, current)


def _use(seen: SeenPod) -> Text:
    limit, current = seen.pod.memory_max_bytes, seen.current_bytes
    if limit is None or current is None:
        return Text()
    cache = _cache(seen, current)
    used = current - cache
    ratio = used / limit if limit else 1.0
    style = "short" if ratio > 0.95 else "close" if ratio > 0.8 else "calm"
    return bar(_USE_WIDTH, max(limit, 1), used, cache, style)


_NICE_TO_HAVE = 4
"""Highest rank of a column that gives way to a whole name and a legible state."""
_COLUMNS = (
    _Column("QOS", 3, 5, lambda seen: _SHORT_QOS[seen.pod.qos], left=True),
    _Column("CLASS", 8, 0, lambda seen: seen.pod.kind, left=True),
    _Column(
        *("MEMORY", 6, 9),
        lambda seen: "?" if seen.current_bytes is None else size(seen.current_bytes),
        lambda group: size(group.current_bytes),
    ),
    _Column("CACHE", 6, -1, lambda seen: growth(seen.pod.reclaimable_bytes)),
    _Column("LIMIT", 6, 8, lambda seen: size(seen.pod.memory_max_bytes)),
    _Column("USE", _USE_WIDTH, 2, _use, left=True),
    _Column("GROW/s", 6, 7, lambda seen: growth(seen.growth)),
    _Column("FULL IN", 7, 1, full_in),
    _Column(
        *("DEMAND", 6, 3),
        lambda seen: "" if seen.verdict.place is None else growth(seen.demand),
        lambda group: growth(group.demand),
    ),
    _Column("CPU", 6, 6, lambda seen: millicores(seen.cpu_millicores)),
    _Column("THR/s", 5, 4, lambda seen: milliseconds(seen.throttled_ms).replace("0ms", "-", seen.throttled_ms == 0)),
)


def state_text(seen: SeenPod, snapshot: NodeView) -> tuple[str, str]:
    """Return a pod's state in a few words, and its details: reason, times, protection or error."""
    record, verdict, state = seen.pod.paused, seen.verdict, state_words(seen)
    if record is not None and seen.state is not PodState.ERROR:
        paused_s = (snapshot.at_ns - record.since_ns) / NS_PER_S
        return f"{state} {durations.shown(paused_s)}", _why_paused(record, snapshot.at_ns)
    match seen.state:
        case PodState.ERROR:
            return state, seen.error or ""
        case PodState.PROTECTED:
            return state, seen.pod.protected or ""
        case PodState.WOULD_PAUSE | PodState.NEXT:
            return state, verdict.why
    if verdict.place is not None and verdict.place.first:
        return state, "goes first"
    # An action that a running daemon has not taken is not its decision.
    return state, "" if verdict.acts else verdict.blocked


def _why_paused(record: PauseRecord, at_ns: int) -> str:
    """Return the reason in the record: the owner's own last decision."""
    whose = "by hand, " if record.owner is Owner.MANUAL else ""
    left = "" if record.expires_ns is None else f"{durations.left((record.expires_ns - at_ns) / NS_PER_S)}, "
    return f"{whose}{left}{record.reason}"


def table(snapshot: NodeView, rows: Sequence[Row], width: int, *, visible: slice, ui: Ui, title: str) -> Table:
    """Return a header with `title` at its right end, and the `visible` rows of all, with the cursor."""
    here = cursor(snapshot, ui)
    # Of all rows, not the visible ones, so that the columns do not move while the operator scrolls.
    longest = max([cell_len(row.label) for row in rows if isinstance(row, SeenPod)], default=0)
    label_width = min(max(longest, _LEAST_LABEL), max(_USUAL_LABEL, width // 4))
    gap = 1 if width < _NARROW else 2
    columns = _choose(width, label_width, gap)
    left = width - _MARKS - sum(column.width + gap for column in columns)
    if left < _LEAST_LABEL + gap + _LEAST_STATE:  # too narrow for the state
        label_width, state_width = left, 0
    else:
        label_width = min(label_width, left - gap - _LEAST_STATE)
        state_width = left - gap - label_width
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="header")
    made.add_column("  POD", width=max(_MARKS + label_width, 1), no_wrap=True)
    for column in columns:
        made.add_column(column.header, width=column.width, no_wrap=True, justify="left" if column.left else "right")
    if state_width:
        made.add_column(line(f"STATE {title:>{max(state_width - 6, 0)}}"), width=state_width, no_wrap=True)
    for row in rows[visible]:
        if isinstance(row, Group):
            paused = f", {row.paused} paused" if row.paused else ""
            cells = [row.namespace or "(name unknown)", *(column.total(row) for column in columns)]
            texts = [*map(line, cells), line(f"{row.pods} pod{'s' * (row.pods != 1)}{paused}")]
            style = "group"
        else:
            texts = _cells(row, columns, label_width, snapshot, marked=row.key in ui.marked, at=row is here)
            style = "cursor" if row is here else ""
        made.add_row(*texts[: len(made.columns)], style=style)
    return made


def _cells(
    seen: SeenPod, columns: Sequence[_Column], label_width: int, snapshot: NodeView, *, marked: bool, at: bool
) -> list[Text]:
    style = STATE_STYLES[seen.state]
    numbers = style if seen.state is PodState.PROTECTED else ""
    what, more = state_text(seen, snapshot)
    cells = [line((f"{'▶' if at else ' '}{'*' if marked else ' '}", "key"), (shorten(seen.label, label_width), style))]
    cells += [line((cell, numbers)) if isinstance(cell := column.cell(seen), str) else cell for column in columns]
    cells.append(line((what, style), (f" · {more}" if more else "", "dim")))
    # One reversed bar at the cursor: reversing each colour by itself makes dim texts hardly legible.
    return [line(cell.plain) for cell in cells] if at else cells


def _choose(width: int, label_width: int, gap: int) -> list[_Column]:
    """Return the columns that fit beside name and state, chosen by rank."""
    left = width - _MARKS - min(label_width, _USUAL_LABEL) - gap - _LEAST_STATE
    chosen = []
    for column in sorted(_COLUMNS, key=lambda column: -column.rank):
        spare = _USUAL_STATE - _LEAST_STATE + max(label_width - _USUAL_LABEL, 0) if column.rank <= _NICE_TO_HAVE else 0
        if column.width + gap + spare <= left:
            left -= column.width + gap
            chosen.append(column)
    return sorted(chosen, key=_COLUMNS.index)
