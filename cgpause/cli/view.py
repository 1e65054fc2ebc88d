"""The values of `cgpause status`: the node, kubepods and every pod, read once and ready for JSON."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from cgpause.cli.context import Globals
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, CgroupGoneError, PodLookupError
from cgpause.core.lookup import find_pods
from cgpause.core.model import CgroupId, Headroom, PauseRecord, Pressure
from cgpause.core.parse import parse_cpu_max, parse_cpu_stat, parse_number
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.find_daemon import RunningDaemon, find_daemon
from cgpause.kernel.psi import read_node_pressure, read_pressure
from cgpause.ledger.ledger import is_in_force, read_record
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree

SCHEMA = 1


def read_chosen(given: Globals, refs: Sequence[str] | None) -> tuple[dict[str, Any], list[PodLookupError]]:
    """Return the status as `read_status` does, with the pods that `refs` and --namespace choose.

    With it come the errors of the references that no pod matches.

    Raises:
        CgpauseError: the configuration or the tree cannot be read, or no pod matches any reference.
    """
    with given.tree(given.config()) as tree, Sampler(tree) as sampler:
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


def read_status(tree: PodTree, sampler: Sampler, only: Container[CgroupId] | None = None) -> dict[str, Any]:
    """Return node, daemon, kubepods and pods, ready for JSON; the caller has refreshed `tree`.

    The paused pods come first, then those with the most memory. With `only`, other pods are left out.

    Raises:
        MalformedError, KernelReadError: the memory of node or kubepods cannot be read.
    """
    headroom = sampler.headroom()
    pods = [pod_values(tracked) for key, tracked in tree.pods.items() if only is None or key in only]
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
        "daemon": _daemon_values(find_daemon(tree.root)),
        "kubepods": None if tree.kubepods is None else _kubepods(tree, tree.kubepods, headroom),
        "totals": {
            "pods": len(pods),
            "paused": sum(pod["paused"] is not None for pod in pods),
            "protected": sum(pod["protected"] is not None for pod in pods),
            "errors": sum(pod["error"] is not None for pod in pods),
            "memory_current_bytes": sum(pod["memory_current_bytes"] or 0 for pod in pods),
        },
        "pods": pods,
    }


def _daemon_values(daemon: RunningDaemon) -> dict[str, Any]:
    return {"state": daemon.state, "pid": daemon.pid}


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
        "cpu_weight": None,
        "cpu_stat": None,
        "workload": pod.workload,
        "priority": pod.priority,
        "own_word": tracked.kind.word,
        "protected": pod.protected,
        "paused": None,
        "error": tracked.trouble,
    }
    try:  # so that a pod with an error does not hide the others
        shown["memory_current_bytes"] = parse_number(tracked.cgroup.read("memory.current"), "memory.current")
        shown["cpu_max"] = str(parse_cpu_max(tracked.cgroup.read("cpu.max")))
        shown["cpu_weight"] = read_weight(tracked.cgroup)
        shown["cpu_stat"] = _cpu_stat(tracked.cgroup)
        record = read_record(tracked.cgroup)
        shown["paused"] = None if record is None else _paused(record, in_force=is_in_force(tracked.cgroup, record))
    except CgpauseError as e:
        shown["error"] = str(e)
    return shown


def read_weight(cgroup: Cgroup) -> int | None:
    """Return `cpu.weight`, or None if it cannot be read: it is for display only."""
    try:
        return parse_number(cgroup.read("cpu.weight"), "cpu.weight")
    except CgpauseError:
        return None


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
    if pressure is None:
        return None
    return {
        "some_avg10": pressure.some_avg10,
        "some_total_us": pressure.some_total_us,
        "full_avg10": pressure.full_avg10,
        "full_total_us": pressure.full_total_us,
    }
