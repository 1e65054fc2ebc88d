"""The lines of a screen of any size, from a snapshot and the operator's choices; pure.

The most important lines come first and are dropped last: headroom and the summary of pauses, then the pods, then the
rest. rich lays them out; its consoles here only lay out, and never write.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.segment import Segment, SegmentLines
from rich.text import Text
from rich.theme import Theme

from cgpause.cli.top import panes
from cgpause.cli.top.head import bars, footer, sparks, summary, title
from cgpause.cli.top.table import table
from cgpause.cli.top.ui import Mode, Ui, cursor, settle, shown_rows
from cgpause.cli.top.values import NodeView, SeenPod

_THEME = Theme(
    {
        "app": "bold reverse",
        "title": "bold",
        "header": "bold underline",
        "label": "bold cyan",
        "calm": "green",
        "close": "yellow",
        "short": "bold red",
        "paused": "bold yellow",
        "next": "bold magenta",
        "protected": "blue",
        "error": "bold red",
        "mark": "bold white on blue",
        "cursor": "reverse",
        "group": "bold cyan",
        "key": "bold cyan",
        "ask": "bold black on yellow",
    }
)
_ROOMY = 100
_CONSOLE = Console(
    file=io.StringIO(),
    force_terminal=True,
    width=80,
    height=24,
    theme=_THEME,
    legacy_windows=False,
    # Names are text: a history from elsewhere can have "[/x]" in them.
    markup=False,
    emoji=False,
    highlight=False,
)


class _Plan(NamedTuple):
    """Number of lines of each part of the screen."""

    title: int
    bars: int
    sparks: int
    summary: int
    rows: int
    """Rows of pods, or lines of the description, below a header."""
    pane: int
    footer: int


def visible_rows(snapshot: NodeView, ui: Ui, width: int, height: int) -> int:
    """Return the number of rows for pods, or of lines of a description, on a screen of this size."""
    return _plan(snapshot, ui, width, height).rows


def settled(ui: Ui, snapshot: NodeView, width: int, height: int) -> Ui:
    """Return `ui` as `settle` does, with the description scrolled no further than to its end."""
    rows = visible_rows(snapshot, ui, width, height)
    ui = settle(ui, snapshot, rows)
    if not ui.describing:
        return ui
    return replace(ui, scroll=min(ui.scroll, max(len(_described(snapshot, ui, width)) - rows, 0)))


def render(snapshot: NodeView, ui: Ui, width: int, height: int) -> SegmentLines:
    """Return the whole screen, which rich can print."""
    plan = _plan(snapshot, ui, width, height)
    parts: list[tuple[RenderableType, int]] = [
        (title(snapshot, width), plan.title),
        (Group(*bars(snapshot, width, plan.bars)), plan.bars),
        (Group(*sparks(snapshot, width, plan.sparks)), plan.sparks),
        (summary(snapshot), plan.summary),
        *_body(snapshot, ui, width, plan),
        (Group(*footer(snapshot, ui, width, plan.footer)), plan.footer),
    ]
    layout = Layout()
    layout.split_column(*(Layout(part, size=count) for part, count in parts if count > 0))
    lines = _CONSOLE.render_lines(layout, _CONSOLE.options.update_dimensions(width, height))
    return SegmentLines(map(_trim, lines), new_lines=True)


def _trim(line: list[Segment]) -> list[Segment]:
    """Return a line without the blanks at its end that show nothing."""
    kept = line.copy()
    while kept and not ((style := kept[-1].style) and (style.reverse or style.underline or style.bgcolor)):
        text = kept.pop().text.rstrip()
        if text:
            return [*kept, Segment(text, style)]
    return kept


def _body(snapshot: NodeView, ui: Ui, width: int, plan: _Plan) -> list[tuple[RenderableType, int]]:
    if ui.mode is Mode.HELP:
        return [(Group(panes.rule("help: q quits, any other key returns", width), panes.help_table()), plan.rows + 1)]
    if ui.describing:
        all_lines, here = _described(snapshot, ui, width), cursor(snapshot, ui)
        lines = all_lines[ui.scroll : ui.scroll + plan.rows]
        name = f"describe {'' if here is None else here.label}"
        if len(lines) < len(all_lines):
            name += f" (lines {ui.scroll + 1}-{ui.scroll + len(lines)} of {len(all_lines)})"
        return [(panes.rule(name, width), 1), (SegmentLines(lines, new_lines=True), plan.rows)]
    rows = shown_rows(snapshot, ui)
    top = min(max(ui.top, 0), max(len(rows) - plan.rows, 0))
    above, seen, all_pods = (
        sum(isinstance(row, SeenPod) for row in some) for some in (rows[:top], rows[: top + plan.rows], rows)
    )
    listed = f"{min(above + 1, seen)}-{seen}/{all_pods}"
    if width >= _ROOMY:
        listed += f" by {ui.sort}{', reversed' * ui.reverse}"
    pods = table(snapshot, rows, width, visible=slice(top, top + plan.rows), ui=ui, title=listed)
    made = pods if rows else Group(pods, Text(f"  {_why_empty(snapshot, ui)}", "dim"))
    body: list[tuple[RenderableType, int]] = [(made, plan.rows + 1)]
    if plan.pane:
        shown = snapshot.events[-(plan.pane - 1) :] if plan.pane > 1 else ()
        body += [(panes.rule("last decisions", width), 1), (panes.events(shown, snapshot, width), plan.pane - 1)]
    return body


def _described(snapshot: NodeView, ui: Ui, width: int) -> list[list[Segment]]:
    description = panes.description(cursor(snapshot, ui), snapshot, width)
    return _CONSOLE.render_lines(description, _CONSOLE.options.update(width=width), pad=False)


def _why_empty(snapshot: NodeView, ui: Ui) -> str:
    if ui.filter:
        return "no pod passes the filter"
    if snapshot.kubepods is None:
        return "no kubepods cgroup on this node (yet): kubelet makes it"
    return "no pods on this node (yet)"


def _plan(snapshot: NodeView, ui: Ui, width: int, height: int) -> _Plan:
    helping = ui.mode is Mode.HELP
    most = height if height < 4 else 3 if ui.message else 2 if height >= 20 else 1
    plan = {"footer": len(footer(snapshot, ui, width, max(most, 1)))}
    wanted = {
        "bars": 3 if height >= 14 else 1,
        "title": int(height >= 8),
        "summary": int(height >= 6),
        "sparks": 0 if height < 16 else 1 if height < 34 else 2 if height < 50 else 3,
    }
    if helping and height < 34:
        wanted |= {"bars": 0, "summary": 0, "sparks": 0}
    left = max(height - plan["footer"], 0)
    for name, lines in wanted.items():  # the most important first
        plan[name] = min(lines, left)
        left -= plan[name]
    left -= 1  # the header of the table
    # Title and 3 to 15 events: the pods come first.
    with_pane = height >= 20 and not helping and not ui.describing
    plan["pane"] = 1 + max(3, min(left // 4, 15)) if with_pane else 0
    plan["rows"] = max(left - plan["pane"], 0)
    return _Plan(**plan)
