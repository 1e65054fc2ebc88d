"""The panes: the last decisions, the description of one pod, the help; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cgpause.cli.top.parts import growth, line, millicores, milliseconds, shorten, size, when
from cgpause.cli.top.table import STATE_STYLES, full_in, state_text
from cgpause.cli.top.values import NodeView, PodDetail, SeenPod
from cgpause.core import cpu_units, durations
from cgpause.core.clock import NS_PER_S
from cgpause.core.errors import printable
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.kernel.find_daemon import DaemonState
from cgpause.policy.explain import Verdict
from cgpause.telemetry.events import Event, EventKind

_EVENT_STYLES: dict[str, str] = {
    EventKind.PAUSED: "paused",
    EventKind.FROZE: "paused",
    EventKind.RESUMED: "calm",
    EventKind.SACRIFICED: "error",
}
_Fact = tuple[str, str, str]
"""Topic, text and style."""

HELP = (
    ("↑ ↓ PgUp PgDn", "move, or scroll the description (or j k g G, Home, End)"),
    ("Space", "mark the pod; p, f and r then act on all marked pods"),
    ("Enter", "describe the pod: rule, numbers, limits, its history (or d, e)"),
    ("p", "pause until an operator resumes it, as cgpause pause does"),
    ("f", "freeze: no CPU time at all; probes go unanswered"),
    ("r", "resume: the original values come back"),
    ("s", "sort by need, memory, CPU, time paused, name"),
    ("S", "reverse the order"),
    ("n", "group by namespace"),
    ("/", "filter by name, UID, QoS class, class, state, by hand, by the daemon"),
    ("Esc", "take back: description, marks, filter, selection"),
    ("?  q", "this help; quit, as Ctrl-C does (Ctrl-Z suspends, Ctrl-L redraws)"),
)
LEGEND = (
    ("GROW/s, NEED", "largest growth lately; headroom that the policy wants for it"),
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
        held = "" if event.paused_s is None else f"after {durations.shown(event.paused_s)}: "
        pod = [] if of_one else [shorten(event.pod, max(width // 3, 1))]
        what = line((event.what, _EVENT_STYLES.get(event.what, "")))
        at = when(event.at, snapshot.at, snapshot.utc_offset_s)
        table.add_row(at, what, *pod, line(held, event.reason))
    return table


def description(seen: SeenPod | None, snapshot: NodeView) -> Table:
    """Return all facts of one pod: what `cgpause explain` says of it, and its history."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="label", no_wrap=True)
    grid.add_column(overflow="fold")
    if seen is None:
        grid.add_row("", Text("it is gone", "dim"))
        return grid
    detail = snapshot.detail if snapshot.detail is not None and snapshot.detail.key == seen.key else None
    said = ""
    for topic, text, style in _facts(seen, snapshot, detail):
        grid.add_row("" if topic == said else f" {topic}", Text(printable(text), style))
        said = topic
    if detail is not None:
        grid.add_row(" history")
    return grid


def _facts(seen: SeenPod, snapshot: NodeView, detail: PodDetail | None) -> list[_Fact]:
    pod, verdict, runs = seen.pod, seen.verdict, snapshot.daemon.state is DaemonState.RUNNING
    what, more = state_text(seen, snapshot)
    facts: list[_Fact] = [("state", f"{what}: {more}" if more else what, STATE_STYLES[seen.state])]
    if pod.paused is not None:
        at = snapshot.at - (snapshot.at_ns - pod.paused.since_ns) / NS_PER_S
        since = when(at, snapshot.at, snapshot.utc_offset_s)
        facts.append(("state", f"since {since}{_record(pod.paused)}", "paused"))
    # Under reserve, the numbers below are the reason. A running daemon's own decision is in record and history; another
    # opinion beside it would confuse.
    elif verdict.why and verdict.place is None and not verdict.spared and not (runs and verdict.acts):
        facts.append(("verdict", verdict.text, ""))
    if detail is not None and detail.rule is not None:
        facts.append(("rule", detail.rule, ""))
    if pod.protected is not None:
        facts.append(("protected", f"{pod.protected}; the daemon does not pause it", "protected"))
    facts += [("numbers", text, "") for text in _numbers(verdict)]
    facts += [("memory", text, "") for text in _memory(seen, detail)]
    facts += [("cpu", text, "") for text in _cpu(seen, detail)]
    about = f"{pod.qos}, {pod.kind}" + (f", priority {pod.priority:+d}" if pod.priority else "")
    return [*facts, ("pod", f"{about}, uid {pod.uid}", "dim"), ("cgroup", pod.cgroup.path, "dim")]


def _record(record: PauseRecord) -> str:
    wrote = [] if record.written is None else [f"cpu.max {_quota(record.written)}"]
    wrote += ["cgroup.freeze 1"] if record.mechanism is Mechanism.FREEZE else []
    whose = " by the daemon" if record.owner is Owner.DAEMON else ""  # the state already says that it is by hand
    return f"{whose}; {' and '.join(wrote)} written; the original is cpu.max {_quota(record.original)}"


def _quota(cpu_max: CpuMax) -> str:
    return f"{cpu_max} ({'no limit' if cpu_max.quota_us is None else cpu_units.limit_text(cpu_max)})"


def _numbers(verdict: Verdict) -> list[str]:
    place = verdict.place
    rank = "not a candidate for a pause" if verdict.rank is None else f"rank {verdict.rank} of those that may be paused"
    if place is None:
        return [rank]
    claim = "no limit" if math.isinf(place.claim) else size(place.claim)
    needs = f"needs {growth(place.need)} of {size(max(place.left, 0))} left, based on {place.basis}"
    grew = f"grew by up to {growth(place.rate)}/s lately" if place.rate > 0 else "has not grown lately"
    return [
        f"{needs}; claim {claim}, {grew}",
        f"{rank}{', goes first' * place.first}",
    ]


def _memory(seen: SeenPod, detail: PodDetail | None) -> list[str]:
    current = "?" if seen.current_bytes is None else size(seen.current_bytes)
    text = f"{current} of {size(seen.pod.memory_max_bytes)}, {size(seen.pod.reclaimable_bytes)} of it page cache"
    if (left := full_in(seen)) not in ("", "-"):
        text += f"; at the limit in {left}"
    if detail is None:
        return [text]
    more = [] if detail.oom_kills is None else [f"{detail.oom_kills} OOM kill{'s' * (detail.oom_kills != 1)}"]
    if detail.pressure is not None:
        more.append(f"stalls some {detail.pressure.some_avg10:.1f} % full {detail.pressure.full_avg10:.1f} %")
    return [text, "; ".join(more)] if more else [text]


def _cpu(seen: SeenPod, detail: PodDetail | None) -> list[str]:
    text = f"{millicores(seen.cpu_millicores)}, throttled {milliseconds(seen.throttled_ms)} a second"
    if detail is None:
        return [text]
    if detail.processes is not None:
        text += f"; {detail.processes} processes"
    more = [] if detail.cpu_max is None else [f"cpu.max {_quota(detail.cpu_max)}"]
    if detail.cpu is not None:
        part = cpu_units.throttled_text(detail.cpu.nr_throttled, detail.cpu.nr_periods)
        total = durations.shown(detail.cpu.throttled_usec / 1e6)
        more.append(f"throttled {detail.cpu.nr_throttled} times ({part}), {total} in all")
    return [text, "; ".join(more)] if more else [text]


def help_table(width: int) -> Table:
    """Return the help: the keys, and the meaning of columns and marks; side by side on a wide screen."""
    halves = (HELP, LEGEND) if width >= 170 else ((*HELP, *LEGEND),)
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for half in halves:
        grid.add_column(style="label", no_wrap=True, width=2 + max(len(name) for name, _ in half))
        grid.add_column(no_wrap=True, ratio=1)
    for rows in zip_longest(*halves, fillvalue=("", "")):
        grid.add_row(*(cell for name, text in rows for cell in (f"  {name}", text)))
    return grid
