"""The panes below the table: the last decisions, one explained pod, the help; pure."""

from __future__ import annotations

import math

from cgpause.cli.top.parts import Glyphs, Line, clock, cut, fit, millicores, milliseconds, size, width_of, wrap
from cgpause.cli.top.table import STATE_STYLES, growth, state_text
from cgpause.cli.top.values import NodeView, PodDetail, SeenEvent, SeenPod
from cgpause.core import cpu_units, durations
from cgpause.core.errors import printable
from cgpause.core.model import CpuMax, Mechanism, Owner

_EVENT_STYLES = {"paused": "paused", "froze": "paused", "resumed": "calm", "sacrificed": "error"}

HELP = (
    ("arrows, PgUp, PgDn", "select a pod (or j, k, g, G); Esc lets go of it"),
    ("p", "pause it until it is resumed, as cgpause pause does"),
    ("f", "freeze it: no CPU time at all; probes go unanswered"),
    ("r", "resume it: what was there before comes back"),
    ("e", "explain it: verdict, numbers, limits, record"),
    ("s", "sort by need, memory, cpu, name"),
    ("/", "filter by name, UID, QoS class, class or state"),
    ("q", "quit, as Ctrl-C does; Ctrl-Z suspends"),
)
LEGEND = (
    ("GROW/s", "largest growth seen lately: what the policy reckons with"),
    ("CPU, THR/s", "1000m is one CPU; time a second its quota held it back"),
    ("P on a bar", "below this headroom pods are paused"),
    ("E", "there kubelet evicts pods"),
    ("W", "below it the daemon is awake and looks closely"),
    ("H", "memory.high: the kernel wakes the daemon, or brakes"),
)


def rule(title: str, width: int, glyphs: Glyphs) -> Line:
    """Return a horizontal rule with a title."""
    shown = fit(title, min(width_of(title), max(width - 4, 0)), glyphs)
    return [
        (f"{glyphs.rule} ", "dim"),
        (shown, "title"),
        (" ", ""),
        (glyphs.rule * (width - width_of(shown) - 3), "dim"),
    ]


def events(snapshot: NodeView, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Return up to `rows` lines, one an event, the newest first."""
    shown = [_event(event, snapshot, width, glyphs) for event in reversed(snapshot.events[-rows:])] if rows else []
    if not shown and rows:
        shown = [[("  none seen yet", "dim")]]
    return shown


def _event(event: SeenEvent, snapshot: NodeView, width: int, glyphs: Glyphs) -> Line:
    held = "" if event.held_s is None else f" after {durations.shown(event.held_s)}"
    line = [
        (f"  {clock(event.at, snapshot.utc_offset_s)}  ", "dim"),
        (f"{event.what:<8}", _EVENT_STYLES.get(event.what, "")),
        (f" {printable(event.pod)}{held}", ""),
    ]
    left = width - sum(width_of(text) for text, _ in line)
    return [*line, (fit(f"  {printable(event.reason)}", max(left, 0), glyphs), "dim")]


def explanation(pod: SeenPod | None, snapshot: NodeView, width: int) -> list[Line]:
    """Return all facts of one pod as lines."""
    if pod is None:
        return [[("it is gone", "dim")]]
    what, more = state_text(pod, snapshot)
    facts: list[tuple[str, str, str]] = [("state", f"{what}: {more}" if more else what, STATE_STYLES[pod.state])]
    if pod.what:
        facts.append(("verdict", _verdict(pod), ""))
    facts += _numbers(pod)
    facts += _limits(pod, snapshot.detail if snapshot.detail is not None and snapshot.detail.key == pod.key else None)
    facts += _record(pod)
    if pod.protected is not None:
        facts.append(("protected", f"{pod.protected}; the daemon never touches it", "protected"))
    about = f"{pod.qos}, {pod.workload}" + (f", priority {pod.priority:+d}" if pod.priority else "")
    facts.append(("pod", f"{about}, uid {pod.uid}", "dim"))
    facts.append(("cgroup", printable(pod.key.path), "dim"))
    lines: list[Line] = []
    for name, text, style in facts:
        pieces = wrap(text, max(width - 12, 1))
        lines += [
            [(f" {name if number == 0 else '':<10} ", "label"), (piece, style)] for number, piece in enumerate(pieces)
        ]
    return lines


def _verdict(pod: SeenPod) -> str:
    """Return the policy's verdict now; the pod's state has the owner and reason of a pause."""
    if pod.paused is not None and pod.what.startswith("stays paused"):
        by_hand = pod.paused.owner is Owner.MANUAL
        return "stays paused: the daemon leaves it alone" if by_hand else "stays paused by the daemon"
    # Under reserve, the numbers on the next line are the reason.
    return f"{pod.what}: {pod.why}" if pod.why and pod.place is None else pod.what


def _numbers(pod: SeenPod) -> list[tuple[str, str, str]]:
    place = pod.place
    if place is None:
        rank = "not a candidate" if pod.rank is None else f"rank {pod.rank} by memory.current"
        return [("order", rank, "")]
    claim = "no limit" if math.isinf(place.claim) else size(place.claim)
    rank = "not a candidate to be paused" if pod.rank is None else f"rank {pod.rank} of those that may be paused"
    text = (
        f"claim {claim}, rate {growth(place.rate)}/s, needs {growth(place.need)} (by {place.basis}) of "
        f"{size(place.left)} left; {rank}{', goes first' if place.first else ''}"
    )
    return [("numbers", text, "")]


def _limits(pod: SeenPod, detail: PodDetail | None) -> list[tuple[str, str, str]]:
    current = "?" if pod.current_bytes is None else size(pod.current_bytes)
    memory = f"{current} of {size(pod.max_bytes)}, {size(pod.reclaimable_bytes)} of it page cache"
    cpu = f"{millicores(pod.cpu_millicores)}, held back {milliseconds(pod.throttled_ms)} a second"
    if detail is not None:
        if detail.oom_kills is not None:
            memory += f"; {detail.oom_kills} OOM kills"
        if detail.pressure is not None:
            memory += f"; stalls some {detail.pressure.some_avg10:.1f} % full {detail.pressure.full_avg10:.1f} %"
        if detail.cpu_max is not None:
            cpu += f"; cpu.max {_quota(detail.cpu_max)}"
        if detail.cpu_weight is not None:
            cpu += f"; request {cpu_units.request_text(detail.cpu_weight)}"
        if detail.throttled_usec is not None and detail.nr_throttled is not None and detail.nr_periods is not None:
            part = cpu_units.throttled_text(detail.nr_throttled, detail.nr_periods)
            total = durations.shown(detail.throttled_usec / 1e6)
            cpu += f"; throttled {detail.nr_throttled} times ({part}), {total} in all"
        if detail.processes is not None:
            cpu += f"; {detail.processes} processes"
    return [("memory", memory, ""), ("cpu", cpu, "")]


def _quota(cpu_max: CpuMax) -> str:
    return f"{cpu_max} ({'no limit' if cpu_max.quota_us is None else cpu_units.limit_text(cpu_max)})"


def _record(pod: SeenPod) -> list[tuple[str, str, str]]:
    record = pod.paused
    if record is None:
        return []
    wrote = [] if record.written is None else [f"cpu.max {_quota(record.written)}"]
    wrote += ["cgroup.freeze 1"] if record.mechanism is Mechanism.FREEZE else []
    text = f"{' and '.join(wrote)} written; what comes back is cpu.max {_quota(record.original)}"
    return [("record", text, "paused")]


def help_lines(width: int, glyphs: Glyphs) -> list[Line]:
    """Return the lines of the help: the keys, and the meaning of columns and marks."""
    named = max(width_of(name) for name, _ in HELP)
    shown = (*HELP, ("", ""), *LEGEND)
    return [cut([(f"  {fit(name, named, glyphs)}  ", "label"), (text, "")], width, glyphs) for name, text in shown]
