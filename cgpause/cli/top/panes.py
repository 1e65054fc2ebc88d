"""The panes: the last decisions, the description of one pod, the help; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cgpause.cli import decision, story
from cgpause.cli.top.parts import line, millicores, milliseconds, shorten, size, when
from cgpause.cli.top.table import STATE_STYLES, full_in, state_text
from cgpause.cli.top.values import NodeView, PodDetail, SeenPod
from cgpause.core import durations
from cgpause.core.clock import NS_PER_S
from cgpause.core.model import Owner
from cgpause.kernel.find_daemon import DaemonState
from cgpause.telemetry.events import Event, EventKind

_EVENT_STYLES: dict[str, str] = {
    EventKind.PAUSED: "paused",
    EventKind.FROZE: "paused",
    EventKind.RESUMED: "calm",
    EventKind.SACRIFICED: "error",
}

HELP = (
    ("↑ ↓ PgUp PgDn", "move, or scroll the description (or j k g G, Home, End)"),
    ("Space", "mark the pod; p, f and r then act on all marked pods"),
    ("Enter", "describe the pod: rule, numbers, limits, its history (or d, e)"),
    ("p", "pause until an operator resumes it, as cgpause pause does"),
    ("f", "freeze: no CPU time at all; probes go unanswered"),
    ("r", "resume: the original values come back"),
    ("s", "sort by demand, memory, CPU, time paused, name"),
    ("S", "reverse the order"),
    ("n", "group by namespace"),
    ("/", "filter by name, UID, QoS class, class, state, by hand, by the daemon"),
    ("Esc", "take back: description, marks, filter, selection"),
    ("?  q", "this help; quit, as Ctrl-C (Ctrl-Z suspends, Ctrl-L redraws)"),
    ("GROW/s, DEMAND", "largest growth lately; headroom that the policy requires for it"),
    ("FULL IN", "time until the pod reaches its limit at this growth"),
    ("CPU, THR/s", "1000m is one CPU; time a second that its quota throttled it"),
    ("gone in", "time until no headroom is left, at the rate of the last 10 s"),
    ("P E on a bar", "below P pods are paused; at E kubelet evicts pods"),
    ("W H", "below W the daemon samples often; H is memory.high: the brake"),
)


def rule(title: str, width: int) -> Text:
    """Return a horizontal rule with a title."""
    text = line(("─ ", "dim"), (title, "title"), " ")
    return line(text, ("─" * (width - text.cell_len), "dim"))


def events(shown: Sequence[Event], snapshot: NodeView, width: int, *, of_one: bool = False) -> RenderableType:
    """Return a table of events, the newest first; `of_one` leaves the pod's name out."""
    if not shown:
        return Text(f"  {'none yet' if snapshot.events else snapshot.no_events}", "dim")
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=11, no_wrap=True, style="dim", justify="right")
    table.add_column(width=max(len(event.what) for event in shown), no_wrap=True)
    if not of_one:
        longest = max(len(event.pod) for event in shown)
        table.add_column(no_wrap=True, width=min(longest, max(width // 3, 1)))
    table.add_column(no_wrap=True, style="dim", ratio=1)
    for event in reversed(shown):
        length = "" if event.paused_s is None else f"after {durations.shown(event.paused_s)}: "
        pod = [] if of_one else [shorten(event.pod, max(width // 3, 1))]
        what = line((event.what, _EVENT_STYLES.get(event.what, "")))
        at = when(event.at, snapshot.at, snapshot.zone)
        table.add_row(at, what, *pod, line(length, event.reason))
    return table


def description(seen: SeenPod | None, snapshot: NodeView, width: int) -> RenderableType:
    """Return all facts of one pod: those of `cgpause explain`, its use, and its history."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="label", no_wrap=True)
    grid.add_column(overflow="fold")
    if seen is None:
        grid.add_row("", Text("it is gone", "dim"))
        return grid
    detail = snapshot.detail if snapshot.detail is not None and snapshot.detail.key == seen.key else None
    for topic, text in story.rows(_facts(seen, snapshot, detail)):
        grid.add_row(f" {topic}", text)
    if detail is None:
        return grid
    grid.add_row(" history")
    return Group(grid, events(detail.events, snapshot, width, of_one=True))


def _facts(seen: SeenPod, snapshot: NodeView, detail: PodDetail | None) -> Iterator[story.Fact]:
    pod, verdict, paused = seen.pod, seen.verdict, seen.pod.paused
    what, more = state_text(seen, snapshot)
    yield "state", f"{what}: {more}" if more else what, STATE_STYLES[seen.state]
    if paused is not None:
        since = when(snapshot.at - (snapshot.at_ns - paused.since_ns) / NS_PER_S, snapshot.at, snapshot.zone)
        whose = " by the daemon" if paused.owner is Owner.DAEMON else ""  # the state already says that it is by hand
        yield "state", f"since {since}{whose}", "paused"
        if detail is not None and detail.values["paused"] is not None:
            yield "state", story.written(detail.values["paused"]), "paused"
    # Under reserve, the numbers below are the reason. A running daemon's own decision is in record and history; another
    # opinion beside it would confuse.
    elif (
        verdict.why
        and verdict.place is None
        and not verdict.blocked
        and not (snapshot.daemon.state is DaemonState.RUNNING and verdict.acts)
    ):
        yield "verdict", verdict.text, ""
    if verdict.what and snapshot.headroom is not None:
        yield "rule", decision.rule(verdict, snapshot.headroom, snapshot.config), ""
    if pod.protected is not None:
        yield "protected", f"{pod.protected}; the daemon does not pause it", "protected"
    if detail is not None:
        yield from (("use", text, "") for text in _use(seen, detail))
    candidates = sum(one.verdict.rank is not None for one in snapshot.pods)
    numbers = None if verdict.place is None else decision.place_values(verdict.place)
    yield from story.place(verdict.rank, candidates, numbers, is_paused=paused is not None)
    if detail is not None:
        yield from story.limits(detail.values)
    about = f"{pod.qos}, {pod.kind}" + (f", priority {pod.priority:+d}" if pod.priority else "")
    yield "pod", f"{about}, uid {pod.uid}", "dim"
    yield "cgroup", pod.cgroup.path, "dim"


def _use(seen: SeenPod, detail: PodDetail) -> Iterator[str]:
    """Yield the figures that only the dashboard shows."""
    cpu = f"{millicores(seen.cpu_millicores)}, throttled {milliseconds(seen.throttled_ms)} a second"
    yield cpu if detail.processes is None else f"{cpu}; {detail.processes} processes"
    more = [f"{size(seen.pod.reclaimable_bytes)} page cache"]
    if (left := full_in(seen)) not in ("", "-"):
        more.append(f"at the limit in {left}")
    if detail.oom_kills is not None:
        more.append(f"{detail.oom_kills} OOM kill{'s' * (detail.oom_kills != 1)}")
    if detail.pressure is not None:
        more.append(f"stalls some {detail.pressure.some_avg10:.1f} % full {detail.pressure.full_avg10:.1f} %")
    yield "; ".join(more)


def help_table() -> Table:
    """Return the help: the keys, and the meaning of columns and marks."""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="label", no_wrap=True)
    grid.add_column(no_wrap=True, ratio=1)
    for name, text in HELP:
        grid.add_row(name, text)
    return grid
