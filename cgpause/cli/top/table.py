"""The dashboard's table of pods: the columns that fit, and the visible rows; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from cgpause.cli.top.parts import bar, growth, line, millicores, milliseconds, shorten, size, time_left
from cgpause.cli.top.ui import Group, Row, Ui, state_words
from cgpause.cli.top.values import NodeView, PodState, SeenPod
from cgpause.core import durations
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import CgroupId, Owner, PauseRecord, QosClass

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


def _full_in(pod: SeenPod) -> str:
    if pod.max_bytes is None or pod.current_bytes is None:
        return ""
    return time_left(max(pod.max_bytes - pod.current_bytes, 0), pod.growth) or "-"


def _use(pod: SeenPod) -> Text:
    if pod.max_bytes is None or pod.current_bytes is None:
        return Text()
    cache = min(pod.reclaimable_bytes, pod.current_bytes)
    used = pod.current_bytes - cache
    ratio = used / pod.max_bytes if pod.max_bytes else 1.0
    style = "short" if ratio > 0.95 else "close" if ratio > 0.8 else "calm"
    return bar(_USE_WIDTH, max(pod.max_bytes, 1), used, cache, style)


_NICE_TO_HAVE = 4
"""Highest rank of a column that gives way to a whole name and a legible state."""
_COLUMNS = (
    _Column("QOS", 3, 5, lambda pod: _SHORT_QOS[pod.qos], left=True),
    _Column("CLASS", 8, 0, lambda pod: pod.workload, left=True),
    _Column(
        *("MEMORY", 6, 9),
        lambda pod: "?" if pod.current_bytes is None else size(pod.current_bytes),
        lambda group: size(group.current_bytes),
    ),
    _Column("CACHE", 6, -1, lambda pod: growth(pod.reclaimable_bytes)),
    _Column("LIMIT", 6, 8, lambda pod: size(pod.max_bytes)),
    _Column("USE", _USE_WIDTH, 2, _use, left=True),
    _Column("GROW/s", 6, 7, lambda pod: growth(pod.growth)),
    _Column("FULL IN", 7, 1, _full_in),
    _Column(
        *("NEED", 6, 3),
        lambda pod: "" if pod.place is None else growth(pod.need),
        lambda group: growth(group.need),
    ),
    _Column("CPU", 6, 6, lambda pod: millicores(pod.cpu_millicores)),
    _Column("THR/s", 5, 4, lambda pod: milliseconds(pod.throttled_ms).replace("0ms", "-", pod.throttled_ms == 0)),
)


def state_text(pod: SeenPod, snapshot: NodeView) -> tuple[str, str]:
    """Return a pod's state in a few words, and its details: reason, times, protection or error."""
    record, state = pod.paused, state_words(pod)
    if record is not None and pod.state is not PodState.ERROR:
        paused_s = (snapshot.at_ns - record.since_ns) / NS_PER_S
        return f"{state} {durations.shown(paused_s)}", _why_paused(record, snapshot.at_ns)
    match pod.state:
        case PodState.ERROR:
            return state, pod.error or ""
        case PodState.PROTECTED:
            return state, pod.protected or ""
        case PodState.WOULD_PAUSE | PodState.NEXT:
            return state, pod.why
    if pod.place is not None and pod.place.first:
        return state, "goes first"
    # An action that a running daemon has not taken is not its decision.
    return state, "" if pod.acts else pod.spared


def _why_paused(record: PauseRecord, at_ns: int) -> str:
    """Return the reason in the record: the owner's own last decision."""
    whose = "by hand, " if record.owner is Owner.MANUAL else ""
    left = "" if record.expires_ns is None else f"{durations.left((record.expires_ns - at_ns) / NS_PER_S)}, "
    return f"{whose}{left}{record.reason}"


def table(
    snapshot: NodeView, rows: Sequence[Row], width: int, *, visible: slice, ui: Ui, at: CgroupId | None, title: str
) -> list[Text]:
    """Return a header with `title` at its right end, and the `visible` rows of all, with the cursor on the pod `at`."""
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
    sides = [(_MARKS + label_width, "left"), *((one.width, "left" if one.left else "right") for one in columns)]
    sides += [(state_width, "left")] * (state_width > 0)

    def joined(cells: Iterable[Text], style: str) -> Text:
        shown = list(zip(cells, sides, strict=False))
        for cell, (cells_wide, side) in shown:
            cell.align(side, cells_wide)  # type: ignore[arg-type] # a literal
        row = Text(" " * gap, no_wrap=True).join([cell for cell, _ in shown])
        row.stylize_before(style)
        return row

    header = ["  POD", *(column.header for column in columns), f"STATE {title:>{max(state_width - 6, 0)}}"]
    lines = [joined(map(line, header), "header")]
    for row in rows[visible]:
        if isinstance(row, Group):
            lines.append(joined([line(row.namespace or "(name unknown)"), *_totals(row, columns)], "group"))
            continue
        style = STATE_STYLES[row.state]
        sign = f"{'▶' if row.key == at else ' '}{'*' if row.key in ui.marked else ' '}"
        numbers = style if row.state is PodState.PROTECTED else ""
        cells = [line((sign, "key"), (shorten(row.label, label_width), style))]
        cells += [line((cell, numbers)) if isinstance(cell := column.cell(row), str) else cell for column in columns]
        cells.append(_state(row, snapshot, style))
        if row.key == at:  # one reversed bar: reversing each colour by itself makes dim texts hardly legible
            cells = [line(cell.plain) for cell in cells]
        lines.append(joined(cells, "cursor" if row.key == at else ""))
    return lines


def _totals(group: Group, columns: Iterable[_Column]) -> list[Text]:
    paused = f", {group.paused} paused" if group.paused else ""
    return [
        *(line(column.total(group)) for column in columns),
        line(f"{group.pods} pod{'s' * (group.pods != 1)}{paused}"),
    ]


def _state(pod: SeenPod, snapshot: NodeView, style: str) -> Text:
    what, more = state_text(pod, snapshot)
    return line((what, style), (f" · {more}" if more else "", "dim"))


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
