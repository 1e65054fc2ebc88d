"""The lines of a screen of any size, from a snapshot and the operator's choices; pure.

The most important lines come first and are dropped last: headroom and the summary of pauses, then the pods, then the
rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from cgpause.cli.top import panes
from cgpause.cli.top.head import bars, footer, sparks, summary, title
from cgpause.cli.top.parts import UNICODE, Glyphs, Line, cut, line_width
from cgpause.cli.top.table import table
from cgpause.cli.top.ui import Mode, Ui, shown_pods
from cgpause.cli.top.values import NodeView
from cgpause.core.errors import printable

_STYLES = {
    "": Style.null(),
    "app": Style.parse("bold reverse"),
    "title": Style.parse("bold"),
    "header": Style.parse("bold underline"),
    "label": Style.parse("bold cyan"),
    "dim": Style.parse("dim"),
    "calm": Style.parse("green"),
    "close": Style.parse("yellow"),
    "short": Style.parse("bold red"),
    "paused": Style.parse("bold yellow"),
    "next": Style.parse("bold magenta"),
    "protected": Style.parse("blue"),
    "error": Style.parse("bold red"),
    "mark": Style.parse("bold white on blue"),
    "select": Style.parse("bold"),
    "key": Style.parse("bold cyan"),
    "ask": Style.parse("bold black on yellow"),
}
_SELECTED = Style.parse("reverse")
# One reversed bar across the row: reversing each colour by itself makes dim texts hardly legible.
_SELECTED_STYLES = {f"{name}+selected": _SELECTED for name in _STYLES}
STYLES = {**_STYLES, **_SELECTED_STYLES}


_ROOMY = 100


@dataclass(frozen=True, slots=True)
class Frame:
    """The lines of one screen, which rich can print."""

    lines: tuple[Line, ...]

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        """Yield the segments for rich."""
        yield from self._segments()

    def _segments(self) -> Iterator[Segment]:
        for number, line in enumerate(self.lines):
            if number:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, STYLES[style])


@dataclass(frozen=True, slots=True)
class _Plan:
    """Number of lines of each part of the screen."""

    title: bool
    bars: int
    sparks: int
    summary: bool
    rows: int
    pane: int


def visible_rows(snapshot: NodeView, ui: Ui, width: int, height: int) -> int:
    """Return the number of rows for pods on a screen of this size."""
    return _plan(snapshot, ui, width, height).rows


def render(snapshot: NodeView, ui: Ui, width: int, height: int, glyphs: Glyphs = UNICODE) -> Frame:
    """Return the whole screen."""
    plan = _plan(snapshot, ui, width, height)
    below = footer(snapshot, ui, width, glyphs)
    pods = shown_pods(snapshot, ui)
    lines: list[Line] = []
    if plan.title:
        lines.append(title(snapshot, width, glyphs))
    lines += bars(snapshot, width, plan.bars, glyphs)
    lines += sparks(snapshot, width, plan.sparks, glyphs)
    if plan.summary:
        lines.append(summary(snapshot, width, glyphs))
    if ui.mode is Mode.HELP:
        lines.append(panes.rule("help: any key leaves it", width, glyphs))
        lines += panes.help_lines(width, glyphs)
        lines += [[] for _ in range(height - 1 - len(lines))]
    else:
        top = min(max(ui.top, 0), max(len(pods) - plan.rows, 0))
        listed = f"{min(top + 1, len(pods))}-{min(top + plan.rows, len(pods))}/{len(pods)}"
        if width >= _ROOMY:
            listed += f" by {ui.sort}"
        shown = table(
            snapshot,
            pods,
            width,
            top=top,
            rows=plan.rows,
            selected=ui.selected,
            title=listed,
            glyphs=glyphs,
        )
        if not pods and plan.rows:
            shown.append([(f"  {_why_empty(snapshot, ui)}", "dim")])
        lines += shown
        lines += [[] for _ in range(plan.rows + 1 - len(shown))]
        lines += _pane(snapshot, ui, width, plan.pane, glyphs)
    below = below[:height]  # on a tiny screen, only a question or the start of a message
    lines = [*lines[: height - len(below)], *below]
    return Frame(tuple(_safe(line, width, glyphs) for line in lines))


def _safe(line: Line, width: int, glyphs: Glyphs) -> Line:
    """Return the line with control characters escaped, and cut to the width of the terminal."""
    if not all(text.isprintable() for text, _ in line):
        line = [(printable(text), style) for text, style in line]
    return line if line_width(line) <= width else cut(line, width, glyphs)


def _why_empty(snapshot: NodeView, ui: Ui) -> str:
    if ui.filter:
        return "no pod passes the filter"
    if snapshot.kubepods is None:
        return "no kubepods cgroup on this node (yet): kubelet makes it"
    return "no pods on this node (yet)"


def _plan(snapshot: NodeView, ui: Ui, width: int, height: int) -> _Plan:
    has_title = height >= 8
    bar_lines = 3 if height >= 14 else 1
    spark_lines = 0 if height < 16 else 1 if height < 34 or ui.mode is Mode.STILL else 2 if height < 50 else 3
    has_summary = height >= 6
    left = (
        height - has_title - bar_lines - spark_lines - has_summary - 1 - (ui.mode is not Mode.STILL)
    )  # the table's header, the footer
    pane = 0
    if ui.explaining:
        wanted = len(_explained(snapshot, ui, width)) + 1
        pane = max(min(wanted, left - min(3, left // 3)), 0)
    elif height >= 20:
        # Title and 3 to 15 events: the pods come first.
        pane = 1 + max(3, min(left // 4, 15))
    return _Plan(has_title, bar_lines, spark_lines, has_summary, max(left - pane, 0), pane)


def _pane(snapshot: NodeView, ui: Ui, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    if not rows:
        return []
    if ui.explaining:
        label = next((pod.label for pod in snapshot.pods if pod.key == ui.selected), "nobody")
        lines = [panes.rule(f"explained: {label}", width, glyphs), *_explained(snapshot, ui, width)]
    else:
        lines = [panes.rule("last decisions", width, glyphs), *panes.events(snapshot, width, rows - 1, glyphs)]
    return [*lines[:rows], *([] for _ in range(rows - len(lines)))]


def _explained(snapshot: NodeView, ui: Ui, width: int) -> list[Line]:
    pod = next((pod for pod in snapshot.pods if pod.key == ui.selected), None)
    return panes.explanation(pod, snapshot, width)
