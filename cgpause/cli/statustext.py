"""The text of `cgpause status`."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table

from cgpause.cli import output
from cgpause.cli.usage import Format
from cgpause.core import cpu_units, durations
from cgpause.core.errors import printable
from cgpause.core.model import Mechanism, Owner
from cgpause.core.parse import parse_cpu_max
from cgpause.kernel.find_daemon import DaemonState

_DAEMON = {
    DaemonState.RUNNING: "running",
    DaemonState.LOOKING_ON: "its unit runs, but has not locked this tree: a dry run?",
    DaemonState.STOPPED: "not running, so nothing pauses or resumes pods (systemctl start cgpause)",
    DaemonState.UNKNOWN: "unknown: cgpause cannot see here whether one runs",
}


def print_status(status: dict[str, Any], form: Format | None) -> None:
    """Print a status as `read_status` returns it."""
    if form is Format.JSON:
        output.print_json(status)
    else:
        to = output.console()
        to.print(text(status, to.width, wide=form is Format.WIDE))


def text(status: dict[str, Any], width: int, *, wide: bool) -> Group:
    """Return a status as `read_status` returns it as text for a terminal of this width, with all columns if `wide`."""
    node = status["node"]
    pressure, pid, kubepods, totals = node["pressure"], status["daemon"]["pid"], status["kubepods"], status["totals"]
    stalled = "unknown (psi=0)"
    if pressure is not None:
        stalled = f"some {pressure['some_avg10']:.2f} %, full {pressure['full_avg10']:.2f} %"
    total, available, headroom = (
        output.memory(node[f"{name}_bytes"]) for name in ("memory_total", "memory_available", "headroom")
    )
    lines = [
        f"node      {total}, {available} available, {headroom} headroom, {node['used_pct']:.1f} % used",
        f"pressure  {stalled}",
        f"daemon    {_DAEMON[status['daemon']['state']]}" + ("" if pid is None else f" (pid {pid})"),
    ]
    if kubepods is None:
        return Group(*lines, "kubepods  none on this node (yet)")
    limit = kubepods["memory_max_bytes"]
    of = "without a limit" if limit is None else f"of {output.memory(limit)}"
    used = output.memory(totals["memory_current_bytes"])
    errors = f", {totals['errors']} with an error" if totals["errors"] else ""
    lines += [
        f"kubepods  {output.memory(kubepods['memory_current_bytes'])} {of}, {printable(kubepods['cgroup'])}",
        f"pods      {totals['pods']}: {totals['paused']} paused, {totals['protected']} protected{errors}; {used} used",
        "",
    ]
    return Group(*lines, output.Trimmed(_table(status["pods"], width, wide=wide)))


def _table(pods: list[dict[str, Any]], width: int, *, wide: bool) -> Table:
    # A narrow terminal shows fewer columns, so that name and state stay legible.
    wide = wide or width >= output.WIDE
    extra = ("QOS", "CLASS") if wide else ()
    numbers = ("MEMORY", "LIMIT")
    if wide or width >= output.NARROW:
        numbers += ("CPU REQ", "CPU LIM", *(("THR",) if wide else ()))
    table = output.table_of("POD", *extra, *numbers, "STATE", right=numbers, fold=("POD",))
    for pod in pods:
        label = f"{pod['namespace']}/{pod['name']}" if pod["name"] is not None else pod["uid"]
        current, stat = pod["memory_current_bytes"], pod["cpu_stat"]
        class_ = f"{pod['workload']} {pod['priority']:+d}" if pod["priority"] else pod["workload"]
        cells = [
            "?" if current is None else output.memory(current),
            output.memory(pod["memory_max_bytes"]),
            "?" if pod["cpu_weight"] is None else cpu_units.request_text(pod["cpu_weight"]),
            _cpu_limit(pod),
            "?" if stat is None else cpu_units.throttled_text(stat["nr_throttled"], stat["nr_periods"]),
        ]
        kinds = (pod["qos"], class_) if wide else ()
        state = printable(_state(pod))
        table.add_row(printable(label), *kinds, *cells[: len(numbers)], state, style=_style(pod))
    return table


def _style(pod: dict[str, Any]) -> str:
    """Return the style of a pod's row: colours for what an operator looks for."""
    if pod["error"] is not None or (pod["paused"] is not None and not pod["paused"]["in_force"]):
        return "bold red"
    if pod["paused"] is not None:
        return "yellow"
    return "dim" if pod["protected"] is not None else ""


def _cpu_limit(pod: dict[str, Any]) -> str:
    """Return the pod's CPU limit as text: the original one while a pause is in force."""
    paused = pod["paused"]
    cpu_max = paused["original_cpu_max"] if paused is not None and paused["in_force"] else pod["cpu_max"]
    return "?" if cpu_max is None else cpu_units.limit_text(parse_cpu_max(cpu_max.encode()))


def _state(pod: dict[str, Any]) -> str:
    if pod["error"] is not None:
        return f"error: {pod['error']}"
    paused = pod["paused"]
    if paused is not None:
        left = "" if paused["expires_in_s"] is None else f", {durations.left(paused['expires_in_s'])}"
        written = paused["written_cpu_max"]
        held = paused["mechanism"]
        if written is not None:
            throttled = f"throttle to {cpu_units.limit_text(parse_cpu_max(written.encode()))}"
            held = f"freeze and {throttled}" if held == Mechanism.FREEZE else throttled
        since = durations.shown(paused["since_s"])
        if not paused["in_force"]:
            wrote = "thawed it" if paused["mechanism"] == Mechanism.FREEZE else f"wrote cpu.max {pod['cpu_max']}"
            return (
                f"not paused any more: another program {wrote}; paused ({held}) {Owner(paused['owner']).by} "
                f"for {since}{left}: {paused['reason']}"
            )
        return f"paused ({held}, {Owner(paused['owner']).by}) for {since}{left}: {paused['reason']}"
    return f"protected: {pod['protected']}" if pod["protected"] is not None else "running"
