"""`cgpause status`: the node, kubepods and every pod, read once, as text or ready for JSON."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Group
from rich.table import Table

from cgpause.cli import output
from cgpause.cli.context import Globals
from cgpause.cli.exits import exits, fail, said
from cgpause.cli.usage import Format
from cgpause.core import durations
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, CgroupGoneError, Exit, PodLookupError, printable
from cgpause.core.lookup import find_pods
from cgpause.core.model import CgroupId, Headroom, Mechanism, Owner, PauseRecord, Pressure
from cgpause.core.parse import parse_cpu_max, parse_cpu_stat, parse_number
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.find_daemon import DaemonState, find_daemon
from cgpause.kernel.psi import read_node_pressure, read_pressure
from cgpause.ledger.ledger import is_in_force, read_record
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree

SCHEMA = 1


def show(given: Globals, refs: Sequence[str] | None, form: Format | None) -> None:
    """Print the status of the pods that `refs` and --namespace choose; exit with an error if a reference has no pod."""
    with exits():
        status, failed = read_chosen(given, refs)
    if form is Format.JSON:
        output.print_json(status)
    else:
        to = output.console()
        to.print(text(status, to.width, wide=form is Format.WIDE))
    if given.namespace is not None and not status["pods"]:
        typer.echo(f"cgpause: no pod in namespace '{printable(given.namespace)}'", err=True)
    if failed:
        fail("\n".join(map(said, failed)), Exit.NO_SUCH_POD)


def read_chosen(given: Globals, refs: Sequence[str] | None) -> tuple[dict[str, Any], list[PodLookupError]]:
    """Return the status as `read_status` does, with the pods that `refs` and --namespace choose.

    With it come the errors of the references that no pod matches.

    Raises:
        CgpauseError: the configuration or the tree cannot be read, or no pod matches any reference.
    """
    with given.tree(given.config()) as tree, Sampler(tree) as sampler:
        output.warn_of_unread_words(tree)
        pods = [tracked.pod for tracked in tree.pods.values()]
        if not refs:
            chosen = {pod.cgroup for pod in pods if given.namespace in (None, pod.namespace)}
            return read_status(tree, sampler, chosen), []
        chosen, failed = set(), []
        for ref in refs:
            try:
                chosen.update(pod.cgroup for pod in find_pods(ref, pods, tree.root, given.namespace))
            except PodLookupError as e:
                failed.append(e)
        if not chosen:
            raise PodLookupError("\n".join(map(str, failed)))
        return read_status(tree, sampler, chosen), failed


def read_status(tree: PodTree, sampler: Sampler, chosen: Container[CgroupId]) -> dict[str, Any]:
    """Return node, daemon, kubepods and the chosen pods, ready for JSON; the caller has refreshed `tree`.

    The paused pods come first, then those with the most memory.

    Raises:
        MalformedError, KernelReadError: the memory of node or kubepods cannot be read.
    """
    headroom, daemon = sampler.headroom(), find_daemon(tree.root)
    read = [(tracked, pod_values(tracked)) for key, tracked in tree.pods.items() if key in chosen]
    # Pods end at any time: that is no error.
    pods = [values for tracked, values in read if values["error"] is None or tracked.cgroup.exists()]
    pods.sort(key=lambda pod: (pod["paused"] is None, -(pod["memory_current_bytes"] or 0), pod["cgroup"]))
    return {
        "schema": SCHEMA,
        "node": {
            "memory_total_bytes": headroom.node_total_bytes,
            "memory_available_bytes": headroom.node_available_bytes,
            "headroom_bytes": headroom.available_bytes,
            "used_pct": round(headroom.used_pct, 2),
            "pressure": _pressure_values(read_node_pressure()),
        },
        "daemon": {"state": daemon.state, "pid": daemon.pid},
        "kubepods": None if tree.kubepods is None else _kubepods(tree, tree.kubepods, headroom),
        "totals": totals(pods),
        "pods": pods,
    }


def totals(pods: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the counts of pods by state, and their memory in bytes."""
    return {
        "pods": len(pods),
        "paused": sum(pod["paused"] is not None for pod in pods),
        "protected": sum(pod["protected"] is not None for pod in pods),
        "errors": sum(pod["error"] is not None for pod in pods),
        "memory_current_bytes": sum(pod["memory_current_bytes"] or 0 for pod in pods),
    }


def _kubepods(tree: PodTree, kubepods: Cgroup, headroom: Headroom) -> dict[str, Any] | None:
    try:
        current = parse_number(kubepods.read("memory.current"), "memory.current")
    except CgroupGoneError:
        return None
    return {
        "cgroup": kubepods.id.path,
        "driver": tree.driver,
        "memory_current_bytes": current,
        "memory_used_bytes": headroom.kubepods_used_bytes,
        "memory_max_bytes": headroom.kubepods_max_bytes,
        "pressure": _pressure_values(read_pressure(kubepods)),
    }


def pod_values(tracked: TrackedPod) -> dict[str, Any]:
    """Return one pod's values, read now; `error` has the message if a file cannot be read."""
    pod = tracked.pod
    shown: dict[str, Any] = {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "qos": pod.qos,
        "cgroup": pod.cgroup.path,
        "memory_current_bytes": None,
        "memory_max_bytes": pod.memory_max_bytes,
        "cpu_max": None,
        "cpu_stat": None,
        "class": pod.kind,
        "priority": pod.priority,
        "own_word": tracked.word,
        "protected": pod.protected,
        "paused": None,
        "error": tracked.error,
    }
    try:  # so that a pod with an error does not hide the others
        shown["memory_current_bytes"] = parse_number(tracked.cgroup.read("memory.current"), "memory.current")
        shown["cpu_max"] = str(parse_cpu_max(tracked.cgroup.read("cpu.max")))
        shown["cpu_stat"] = _cpu_stat(tracked.cgroup)
        record = read_record(tracked.cgroup)
        shown["paused"] = None if record is None else _paused(record, in_force=is_in_force(tracked.cgroup, record))
    except CgpauseError as e:
        shown["error"] = str(e)
    return shown


def _cpu_stat(cgroup: Cgroup) -> dict[str, int] | None:
    try:
        stat = parse_cpu_stat(cgroup.read("cpu.stat"))
    except CgpauseError:
        return None
    return {"nr_periods": stat.nr_periods, "nr_throttled": stat.nr_throttled, "throttled_usec": stat.throttled_usec}


def _paused(record: PauseRecord, *, in_force: bool) -> dict[str, Any]:
    at_ns = now_ns()
    return {
        "mechanism": record.mechanism,
        "owner": record.owner,
        "reason": record.reason,
        "since_s": round((at_ns - record.since_ns) / 1e9, 3),
        "expires_in_s": None if record.expires_ns is None else round((record.expires_ns - at_ns) / 1e9, 3),
        "original_cpu_max": str(record.original),
        "written_cpu_max": None if record.written is None else str(record.written),
        "in_force": in_force,
    }


def _pressure_values(pressure: Pressure | None) -> dict[str, Any] | None:
    return None if pressure is None else asdict(pressure)


_DAEMON = {
    DaemonState.RUNNING: "running",
    DaemonState.DRY_RUN: "its unit runs, but has not locked this tree: a dry run?",
    DaemonState.STOPPED: "not running, so nothing pauses or resumes pods (systemctl start cgpause)",
    DaemonState.UNKNOWN: "unknown: cgpause cannot see here whether one runs",
}


def text(status: dict[str, Any], width: int, *, wide: bool) -> Group:
    """Return a status as `read_status` returns it as text for a terminal of this width, with all columns if `wide`."""
    node = status["node"]
    pressure, pid, kubepods, totals = node["pressure"], status["daemon"]["pid"], status["kubepods"], status["totals"]
    stalled = "unknown (psi=0)"
    if pressure is not None:
        stalled = f"some {pressure['some_avg10']:.2f} %, full {pressure['full_avg10']:.2f} %"
    total, headroom = output.memory(node["memory_total_bytes"]), output.memory(node["headroom_bytes"])
    node_pct = 100 * (1 - node["memory_available_bytes"] / node["memory_total_bytes"])
    lines = [
        f"node      {node_pct:.1f} % of {total} used, {headroom} headroom",
        f"pressure  {stalled}",
        f"daemon    {_DAEMON[status['daemon']['state']]}" + ("" if pid is None else f" (pid {pid})"),
    ]
    if kubepods is None:
        return Group(*lines, "kubepods  none on this node (yet)")
    limit = kubepods["memory_max_bytes"]
    of = "" if limit is None else f" of {output.memory(limit)}"
    kubepods_used = kubepods["memory_used_bytes"]
    cache = output.memory(max(kubepods["memory_current_bytes"] - kubepods_used, 0))
    used = output.memory(totals["memory_current_bytes"])
    errors = f", {totals['errors']} with an error" if totals["errors"] else ""
    lines += [
        f"kubepods  {output.memory(kubepods_used)}{of}, +{cache} cache, {printable(kubepods['cgroup'])}",
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
        numbers += ("CPU LIM", *(("THR",) if wide else ()))
    table = output.table_of("POD", *extra, *numbers, "STATE", right=numbers, fold=("POD",))
    for pod in pods:
        label = f"{pod['namespace']}/{pod['name']}" if pod["name"] is not None else pod["uid"]
        current, stat = pod["memory_current_bytes"], pod["cpu_stat"]
        class_ = f"{pod['class']} {pod['priority']:+d}" if pod["priority"] else pod["class"]
        cells = [
            "?" if current is None else output.memory(current),
            output.memory(pod["memory_max_bytes"]),
            _cpu_limit(pod),
            "?" if stat is None else output.throttled(stat),
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
    return "?" if cpu_max is None else output.cpu_limit(cpu_max)


def _state(pod: dict[str, Any]) -> str:
    if pod["error"] is not None:
        return f"error: {pod['error']}"
    paused = pod["paused"]
    if paused is not None:
        left = "" if paused["expires_in_s"] is None else f", {durations.left(paused['expires_in_s'])}"
        written = paused["written_cpu_max"]
        mechanism = paused["mechanism"]
        if written is not None:
            throttled = f"throttle to {output.cpu_limit(written)}"
            mechanism = f"freeze and {throttled}" if mechanism == Mechanism.FREEZE else throttled
        by = Owner(paused["owner"]).by
        since = f"for {durations.shown(paused['since_s'])}{left}: {paused['reason']}"
        if not paused["in_force"]:
            wrote = "thawed it" if paused["mechanism"] == Mechanism.FREEZE else f"wrote cpu.max {pod['cpu_max']}"
            return f"not paused any more: another program {wrote}; paused ({mechanism}) {by} {since}"
        return f"paused ({mechanism}, {by}) {since}"
    return f"protected: {pod['protected']}" if pod["protected"] is not None else "running"
