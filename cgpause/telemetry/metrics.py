"""The metrics: name, kind and meaning of each; values only.

Only FAMILIES names and describes metrics. The table in docs/metrics.md follows from it. `counts` and `gauges` make the
figures, `published` carries them from the daemon to `exporter`, and `exporter` adds the two that only it can know:
cgpause_up and cgpause_snapshot_timestamp_seconds.

Prometheus' conventions: base units, `_total` for counters, no label with a meaningless sum over its values
(https://prometheus.io/docs/practices/naming). A label value that is not a Kubernetes name begins with an underscore, as
no Kubernetes name does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """A metric's type, as in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; all its time series share this name and these label names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the last, infinite one."""


class Figure(NamedTuple):
    """Value of one time series."""

    labels: tuple[str, ...]
    value: float
    """Value; of a histogram the sum of all observations."""
    counts: tuple[int, ...] = ()
    """Observations in each bucket of a histogram, not cumulative; one item more than `Family.buckets`."""


Values = dict[str, list[Figure]]
"""Figures by name of the family; a family without a known value is absent."""


class State(StrEnum):
    """State of a pod, for `cgpause_pods`."""

    RUNNING = "running"
    PAUSED = "paused"
    PROTECTED = "protected"


class File(StrEnum):
    """Kernel files that both the daemon and other programs write."""

    CPU_MAX = "cpu.max"
    MEMORY_HIGH = "memory.high"


class Part(StrEnum):
    """Sources that the daemon can do without, for `cgpause_degraded`."""

    INOTIFY = "inotify"
    PSI = "psi"
    MEMORY = "memory"


_POD = ("namespace", "pod", "mechanism")
_NAMESPACE = ("namespace", "mechanism")
_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

FAMILIES = (
    Family("cgpause_up", _G, "Whether the daemon runs and publishes: 1 if what it published last is recent."),
    Family("cgpause_snapshot_timestamp_seconds", _G, "When the daemon published these values."),
    Family("cgpause_build_info", _G, "The daemon's version, and that of its Python; 1.", ("version", "python_version")),
    Family("cgpause_config_info", _G, "What the daemon is configured to do; 1.", ("policy", "mechanism")),
    Family("cgpause_process_start_time_seconds", _G, "When the daemon started."),
    Family("cgpause_process_cpu_seconds_total", _C, "CPU time the daemon has used."),
    Family("cgpause_process_resident_memory_bytes", _G, "Memory the daemon holds."),
    # Memory
    Family(
        "cgpause_headroom_bytes",
        _G,
        "What the pods can still take before somebody is killed: the tighter of node and kubepods.",
    ),
    Family(
        "cgpause_capacity_bytes",
        _G,
        "The memory that can fill up: the node's, or the limit of kubepods where that is smaller.",
    ),
    Family("cgpause_eviction_threshold_bytes", _G, "kubelet evicts pods once less than this is available."),
    Family("cgpause_node_memory_bytes", _G, "The node's memory (MemTotal)."),
    Family("cgpause_node_memory_available_bytes", _G, "What is available of it (MemAvailable)."),
    Family("cgpause_kubepods_memory_limit_bytes", _G, "memory.max of kubepods; absent where that is max."),
    Family(
        "cgpause_kubepods_memory_used_bytes",
        _G,
        "memory.current of kubepods less what reclaim can take back: page cache and slab.",
    ),
    Family(
        "cgpause_node_memory_pressure_waiting_seconds_total",
        _C,
        "Time in which some task of the node waited for memory (PSI some).",
    ),
    Family(
        "cgpause_node_memory_pressure_stalled_seconds_total",
        _C,
        "Time in which all tasks of the node waited for memory (PSI full).",
    ),
    Family(
        "cgpause_kubepods_memory_pressure_waiting_seconds_total",
        _C,
        "Time in which some task of a pod waited for memory (PSI some); starts anew with kubepods.",
    ),
    Family(
        "cgpause_kubepods_memory_pressure_stalled_seconds_total",
        _C,
        "Time in which all tasks of all pods waited for memory (PSI full); starts anew with kubepods.",
    ),
    Family("cgpause_pressure_wakeups_total", _C, "How often the kernel woke the daemon because of pressure (PSI)."),
    # Pods
    Family(
        "cgpause_pods",
        _G,
        "Pods: running, paused (by whomever), or protected (by a rule or mark, or left alone after trouble).",
        ("state",),
    ),
    Family(
        "cgpause_paused_pods",
        _G,
        "Paused pods: who paused them (daemon; manual: cgpause pause), and how they are held.",
        ("owner", "mechanism"),
    ),
    Family(
        "cgpause_damaged_pods",
        _G,
        "Pods whose record is damaged or was taken away, and which could not be resumed without.",
    ),
    Family("cgpause_pauses_total", _C, "Pauses by the daemon.", _NAMESPACE),
    Family("cgpause_paused_seconds_total", _C, "Time the daemon held pods, all pods together.", _NAMESPACE),
    Family("cgpause_pod_pauses_total", _C, "Pauses by the daemon, of the pods it held last.", _POD),
    Family("cgpause_pod_paused_seconds_total", _C, "Time the daemon held a pod, of the pods it held last.", _POD),
    Family(
        "cgpause_pod_pause_start_time_seconds",
        _G,
        "When a pause began, of the pods that are paused now; of the longest, as many as [metrics] max_pods.",
        ("namespace", "pod", "owner", "mechanism"),
    ),
    Family(
        "cgpause_resumes_total",
        _C,
        "Pauses that ended while the daemon ran, by how (docs/cli.md has the words); operator: somebody else ended it.",
        ("cause",),
    ),
    Family(
        "cgpause_pause_duration_seconds",
        _H,
        "How long the daemon held a pod at a stretch, of pauses that are over.",
        buckets=(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0),
    ),
    Family("cgpause_freezes_total", _C, "Pods frozen because they grew although throttled."),
    Family("cgpause_sacrifices_total", _C, "Pods whose containers the daemon killed to free memory."),
    # Trouble
    Family("cgpause_pause_failures_total", _C, "Times a pod could not be paused or frozen."),
    Family("cgpause_resume_failures_total", _C, "Times a pod could not be resumed; it is tried again."),
    Family("cgpause_drifts_total", _C, "Foreign writes to what the daemon had written, answered.", ("file",)),
    Family(
        "cgpause_drift_surrenders_total",
        _C,
        "Times the daemon gave in to another writer that kept changing what it had written.",
        ("file",),
    ),
    Family(
        "cgpause_kubepods_oom_kills_total",
        _C,
        "Processes of pods that the OOM killer killed, at whatever limit (memory.events); starts anew with kubepods.",
    ),
    Family(
        "cgpause_kubepods_limit_ooms_total",
        _C,
        "Times kubepods itself had reached its limit and could reclaim nothing (memory.events.local).",
    ),
    Family(
        "cgpause_kubepods_container_restarts_total",
        _C,
        "Containers kubelet started again in pods that were there, whatever the cause; absent where it keeps no logs.",
    ),
    Family(
        "cgpause_degraded",
        _G,
        "1 for what the daemon has to do without: inotify, PSI triggers, or reading the node's memory.",
        ("what",),
    ),
    # How quick
    Family(
        "cgpause_tick_duration_seconds",
        _H,
        "From waking to having looked, decided and acted.",
        buckets=(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    ),
    Family(
        "cgpause_reaction_latency_seconds",
        _H,
        "From when a look at memory was due, or the kernel told of pressure, to a pause that was in force after it.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}
