"""What `cgpause status` shows: the node, kubepods and every pod, read once, as JSON-ready values."""

from __future__ import annotations

from typing import Any

from cgpause.actuate import now_ns
from cgpause.cgroupfs import Cgroup
from cgpause.errors import CgpauseError, CgroupGoneError
from cgpause.ledger import read_record
from cgpause.model import Headroom, PauseRecord, Pressure
from cgpause.parse import parse_cpu_max, parse_number
from cgpause.psi import read_node_pressure, read_pressure
from cgpause.sampler import Sampler
from cgpause.tree import PodTree, TrackedPod

SCHEMA = 1


def read_status(tree: PodTree, sampler: Sampler) -> dict[str, Any]:
    """Everything about the node; `tree` has been refreshed.

    Raises:
        MalformedError, KernelReadError: the memory of node or kubepods cannot be read.
    """
    headroom = sampler.headroom()
    pods = [_pod(tracked) for tracked in tree.pods.values()]
    pods.sort(key=lambda pod: (pod["memory_current_bytes"] or 0, pod["cgroup"]))
    return {
        "schema": SCHEMA,
        "node": {
            "memory_total_bytes": headroom.node_total_bytes,
            "memory_available_bytes": headroom.node_available_bytes,
            "headroom_bytes": headroom.available_bytes,
            "used_pct": round(headroom.used_pct, 2),
            "pressure": _pressure_values(read_node_pressure()),
        },
        "kubepods": None if tree.kubepods is None else _kubepods(tree, tree.kubepods, headroom),
        "pods": pods,
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


def _pod(tracked: TrackedPod) -> dict[str, Any]:
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
        "workload": pod.workload,
        "priority": pod.priority,
        "protected": pod.protected,
        "paused": None,
        "error": tracked.trouble,
    }
    try:  # one bad pod never hides the others
        shown["memory_current_bytes"] = parse_number(tracked.cgroup.read("memory.current"), "memory.current")
        shown["cpu_max"] = str(parse_cpu_max(tracked.cgroup.read("cpu.max")))
        record = read_record(tracked.cgroup)
        shown["paused"] = None if record is None else _paused(record)
    except CgpauseError as e:
        shown["error"] = str(e)
    return shown


def _paused(record: PauseRecord) -> dict[str, Any]:
    at_ns = now_ns()
    return {
        "mechanism": record.mechanism,
        "owner": record.owner,
        "reason": record.reason,
        "since_s": round((at_ns - record.since_ns) / 1e9, 3),
        "expires_in_s": None if record.expires_ns is None else round((record.expires_ns - at_ns) / 1e9, 3),
        "original_cpu_max": str(record.original),
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
