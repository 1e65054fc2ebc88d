"""Figures that the daemon gathers each time it publishes, from its own state and a few small files.

A figure that cannot be read is left out: a gap in a graph is true, and a 0 is not.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import suppress
from zlib import crc32

from cgpause import __version__
from cgpause.config.settings import Config
from cgpause.core.errors import CgpauseError
from cgpause.core.model import Mechanism, Owner, Pressure
from cgpause.core.parse import parse_flat_keyed
from cgpause.daemon.intake import Intake
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.psi import read_node_pressure, read_pressure
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.counts import MAX_PODS, pod_label
from cgpause.telemetry.metrics import Figure, Values


def gather(intake: Intake, sampler: Sampler, started_at: float, at_ns: int) -> Values:
    """Return all figures as they are now, under the names of `metrics.FAMILIES`; never wait for a disk.

    It adds the paused time until `at_ns` to the counters. `started_at` is the start of the daemon in Unix seconds.
    """
    tree, psi, brake, counts = intake.tree, intake.psi, intake.brake, intake.actuator.counts
    counts.count_paused((tracked.pod for tracked in tree.pods.values()), at_ns)
    memory = _memory(sampler)
    degraded = {
        "inotify": intake.watch.degraded,
        "psi": not psi.on_node or (tree.kubepods is not None and not psi.on_kubepods),
        "memory": not memory,
    }
    return {
        **_process(started_at, tree.config),
        **memory,
        **_pressure("cgpause_node_memory_pressure", read_node_pressure()),
        **_kubepods(tree.kubepods),
        **_pods(tree, at_ns),
        **counts.values(),
        "cgpause_drifts_total": _by_file(counts.drifts, brake.drifts),
        "cgpause_drift_surrenders_total": _by_file(counts.surrenders, brake.surrenders),
        "cgpause_degraded": [Figure((part,), int(is_degraded)) for part, is_degraded in degraded.items()],
    }


def _one(value: float) -> list[Figure]:
    return [Figure((), value)]


def _by_file(cpu_max: int, memory_high: int) -> list[Figure]:
    return [Figure(("cpu.max",), cpu_max), Figure(("memory.high",), memory_high)]


def _process(started_at: float, config: Config) -> Values:
    values = {
        "cgpause_build_info": [Figure((__version__, ".".join(map(str, sys.version_info[:3]))), 1)],
        "cgpause_config_info": [Figure((config.policy, config.mechanism, f"{crc32(repr(config).encode()):08x}"), 1)],
        "cgpause_process_start_time_seconds": _one(round(started_at, 3)),
        "cgpause_process_cpu_seconds_total": _one(round(time.process_time(), 3)),
    }
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:
        pages = int(file.read(128).split()[1])
        values["cgpause_process_resident_memory_bytes"] = _one(pages * os.sysconf("SC_PAGE_SIZE"))
    return values


def _memory(sampler: Sampler) -> Values:
    try:
        headroom = sampler.headroom()
    except CgpauseError:
        return {}
    values = {
        "cgpause_headroom_bytes": _one(headroom.available_bytes),
        "cgpause_capacity_bytes": _one(headroom.capacity_bytes),
        "cgpause_eviction_threshold_bytes": _one(headroom.eviction_bytes),
        "cgpause_node_memory_bytes": _one(headroom.node_total_bytes),
        "cgpause_node_memory_available_bytes": _one(headroom.node_available_bytes),
    }
    if sampler.kubepods.current_bytes is not None:
        values["cgpause_kubepods_memory_used_bytes"] = _one(headroom.kubepods_used_bytes)
    if headroom.kubepods_max_bytes is not None:
        values["cgpause_kubepods_memory_limit_bytes"] = _one(headroom.kubepods_max_bytes)
    return values


def _pressure(name: str, pressure: Pressure | None) -> Values:
    if pressure is None:
        return {}
    return {
        f"{name}_waiting_seconds_total": _one(pressure.some_total_us / 1e6),
        f"{name}_stalled_seconds_total": _one(pressure.full_total_us / 1e6),
    }


def _kubepods(kubepods: Cgroup | None) -> Values:
    if kubepods is None:
        return {}
    values = _pressure("cgpause_kubepods_memory_pressure", read_pressure(kubepods))
    for name, file, key in (
        ("cgpause_kubepods_oom_kills_total", "memory.events", "oom_kill"),
        ("cgpause_kubepods_limit_ooms_total", "memory.events.local", "oom"),
    ):
        with suppress(CgpauseError):
            events = parse_flat_keyed(kubepods.read(file), file)
            if key in events:
                values[name] = _one(events[key])
    return values


def _pods(tree: PodTree, at_ns: int) -> Values:
    states = Counter(dict.fromkeys(("running", "paused", "protected"), 0))
    paused = Counter({(str(owner), str(how)): 0 for owner in Owner for how in Mechanism})
    oldest = []
    damaged = 0
    for tracked in tree.pods.values():
        record = tracked.pod.paused
        states["paused" if record else "running" if tracked.pod.protected is None else "protected"] += 1
        damaged += tracked.damaged
        if record is not None:
            paused[record.owner, record.mechanism] += 1
            oldest.append((record.since_ns, tracked.pod.label, str(record.owner), str(record.mechanism)))
    oldest.sort()
    wall_s = time.time()
    starts: dict[tuple[str, ...], float] = {}
    for since_ns, label, owner, how in oldest[:MAX_PODS]:
        # The duration is measured on the boot clock: setting the wall clock must not change it.
        start = round(wall_s - (at_ns - since_ns) / 1e9, 3)
        starts.setdefault((*pod_label(label), owner, how), start)  # two UIDs can share a name: the older pause counts
    return {
        "cgpause_pods": [Figure((state,), count) for state, count in states.items()],
        "cgpause_paused_pods": [Figure(labels, count) for labels, count in paused.items()],
        "cgpause_damaged_pods": _one(damaged),
        "cgpause_pod_pause_start_time_seconds": [Figure(labels, start) for labels, start in starts.items()],
    }
