"""The dashboard's table of pods, with the columns that fit and the visible rows; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cgpause.cli.top.parts import (
    Glyphs,
    Line,
    bar,
    clock,
    fit,
    fit_label,
    millicores,
    milliseconds,
    size,
    width_of,
)
from cgpause.cli.top.values import NodeView, PodState, SeenPod
from cgpause.core import durations
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import printable
from cgpause.core.model import CgroupId, Mechanism, Owner, PauseRecord, QosClass

_SHORT_QOS = {QosClass.GUARANTEED: "G", QosClass.BURSTABLE: "B", QosClass.BEST_EFFORT: "BE"}
_USE_WIDTH = 10
_LEAST_LABEL, _USUAL_LABEL = 14, 22
_LEAST_STATE, _USUAL_STATE = 15, 30
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
_ROW_STYLES = {PodState.PAUSED: "paused", PodState.WOULD_PAUSE: "short", PodState.NEXT: "next"}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of a fixed width; on a narrow screen, columns of a low rank are left out first."""

    header: str
    width: int
    rank: int
    cell: Callable[[SeenPod], str]
    right: bool = True


_NICE_TO_HAVE = 3
_WIDE_QOS = _Column("QOS", 10, 1, lambda pod: pod.qos, right=False)
_COLUMNS = (
    _Column("QOS", 3, 5, lambda pod: _SHORT_QOS[pod.qos], right=False),
    _WIDE_QOS,
    _Column("CLASS", 7, 0, lambda pod: pod.workload, right=False),
    _Column("MEMORY", 6, 9, lambda pod: "?" if pod.current_bytes is None else size(pod.current_bytes)),
    _Column("LIMIT", 6, 8, lambda pod: size(pod.max_bytes)),
    _Column("USE", _USE_WIDTH, 3, lambda _: "", right=False),
    _Column("GROW/s", 6, 7, lambda pod: growth(pod.growth)),
    _Column("NEED", 6, 2, lambda pod: "" if pod.place is None else growth(pod.need)),
    _Column("CPU", 6, 6, lambda pod: millicores(pod.cpu_millicores)),
    _Column("THR/s", 5, 4, lambda pod: _unless_zero(milliseconds(pod.throttled_ms))),
)


def growth(amount: float | None) -> str:
    """Return a rate or demand as text; "-" below 1 KiB, which is negligible, and "?" for None."""
    if amount is None:
        return "?"
    return "-" if amount < 1024 else size(amount)


def _unless_zero(text: str) -> str:
    return "-" if text == "0ms" else text


def state_text(pod: SeenPod, snapshot: NodeView) -> tuple[str, str]:
    """Return a pod's state in a few words, and its details: reason, times, protection or error."""
    record = pod.paused
    if record is not None:
        held_s = (snapshot.at_ns - record.since_ns) / NS_PER_S
        since = clock(snapshot.at - held_s, snapshot.utc_offset_s)
        held = "frozen" if record.mechanism is Mechanism.FREEZE else "paused"
        whose = "by hand " if record.owner is Owner.MANUAL else ""
        return f"{held} {durations.shown(held_s)}", f"{whose}since {since}, {_why_paused(pod, record, snapshot.at_ns)}"
    match pod.state:
        case PodState.ERROR:
            return "error", pod.error or ""
        case PodState.PROTECTED:
            return "protected", pod.protected or ""
        case PodState.WOULD_PAUSE:
            return "would be paused", pod.why
        case PodState.NEXT:
            return "next in line", pod.why
    if pod.place is not None and pod.place.first:
        return "running", "goes first"
    return "running", pod.what.removeprefix("runs").removeprefix(",").strip()


def _why_paused(pod: SeenPod, record: PauseRecord, at_ns: int) -> str:
    left = ""
    if record.expires_ns is not None:
        left = f"{durations.left((record.expires_ns - at_ns) / NS_PER_S)}, "
    soon = f"{pod.what}: " if pod.what.startswith("would") else ""
    return f"{left}{soon}{printable(record.reason)}"


def table(
    snapshot: NodeView,
    pods: Sequence[SeenPod],
    width: int,
    *,
    top: int,
    rows: int,
    selected: CgroupId | None,
    title: str,
    glyphs: Glyphs,
) -> list[Line]:
    """Return the header, with `title` at its right end, and up to `rows` rows from the pod at index `top`."""
    in_sight = pods[top : top + rows]
    # Of all pods, not the visible ones, so that the columns do not move while the operator scrolls.
    longest = max([width_of(pod.label) for pod in pods], default=0)
    label_width = min(max(longest, _LEAST_LABEL), max(_USUAL_LABEL, width // 4))
    gap = 1 if width < _NARROW else 2
    columns = _choose(width, label_width, gap)
    fixed = sum(column.width + gap for column in columns) + 2
    if width - fixed < _LEAST_LABEL + gap + _LEAST_STATE:  # too narrow for the state
        label_width, state_width = width - fixed, 0
    else:
        label_width = min(label_width, width - fixed - gap - _LEAST_STATE)
        state_width = width - fixed - gap - label_width
    between = " " * gap
    header = "  " + fit("POD", label_width, glyphs)
    for column in columns:
        header += between + fit(column.header, column.width, glyphs, right=column.right)
    if state_width:
        left = state_width - width_of(title) - 1
        header += between + (
            f"{fit('STATE', left, glyphs)} {title}" if left >= 5 else fit("STATE", state_width, glyphs)
        )
    return [
        [(fit(header, width, glyphs), "header")],
        *(
            _row(snapshot, pod, columns, label_width, state_width, gap, glyphs, selected=pod.key == selected)
            for pod in in_sight
        ),
    ]


def _choose(width: int, label_width: int, gap: int) -> list[_Column]:
    """Return the columns that fit beside name and state, chosen by rank."""
    left = width - 2 - min(label_width, _USUAL_LABEL) - gap - _LEAST_STATE
    chosen = []
    for column in sorted(_COLUMNS, key=lambda column: -column.rank):
        # Columns of low rank need a legible state and a whole name first.
        spare = _USUAL_STATE - _LEAST_STATE + max(label_width - _USUAL_LABEL, 0) if column.rank <= _NICE_TO_HAVE else 0
        if column.width + gap + spare <= left:
            left -= column.width + gap
            chosen.append(column)
    # The wide QOS column replaces the short one.
    letters, word = (column for column in chosen if column.header == "QOS"), None
    if _WIDE_QOS in chosen:
        word = next(letters, None)
    return [column for column in sorted(chosen, key=_COLUMNS.index) if column is not word]


def _row(
    snapshot: NodeView,
    pod: SeenPod,
    columns: Sequence[_Column],
    label_width: int,
    state_width: int,
    gap: int,
    glyphs: Glyphs,
    *,
    selected: bool,
) -> Line:
    style = _ROW_STYLES.get(pod.state, "protected" if pod.state is PodState.PROTECTED else "")
    line: Line = [
        (f"{glyphs.select} " if selected else "  ", "select"),
        (fit_label(pod.label, label_width, glyphs), style),
    ]
    for column in columns:
        line.append((" " * gap, ""))
        if column.header == "USE":
            line += _use(pod, column.width, glyphs)
        else:
            line.append((fit(column.cell(pod), column.width, glyphs, right=column.right), style and _numbers(style)))
    if state_width:
        what, more = state_text(pod, snapshot)
        line.append((" " * gap, ""))
        line.append((fit(what, min(width_of(what), state_width), glyphs), STATE_STYLES[pod.state]))
        left = state_width - width_of(what)
        if left > 3 and more:
            line.append((fit(f" {glyphs.dot} {more}", left, glyphs), "dim"))
        elif left > 0:
            line.append((" " * left, ""))
    if selected:
        return [(text, f"{style}+selected") for text, style in line]
    return line


def _numbers(style: str) -> str:
    """Return the style of a pod's numbers: its own if protected, else plain."""
    return "protected" if style == "protected" else ""


def _use(pod: SeenPod, width: int, glyphs: Glyphs) -> Line:
    if pod.max_bytes is None or pod.current_bytes is None:
        return [(" " * width, "")]
    cache = min(pod.reclaimable_bytes, pod.current_bytes)
    used = pod.current_bytes - cache
    ratio = used / pod.max_bytes if pod.max_bytes else 1.0
    style = "short" if ratio > 0.95 else "close" if ratio > 0.8 else "calm"
    return bar(width, max(pod.max_bytes, 1), used, cache, style, (), glyphs)
