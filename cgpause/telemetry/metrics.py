"""The metrics: name, kind and meaning of each; values only.

Only FAMILIES names and describes metrics. The table in docs/metrics.md follows from it. `counts` and `gauges` make the
figures, `published` writes them in Prometheus' text format, and `exporter` serves that.

Prometheus' conventions: base units, `_total` for counters, no label with a meaningless sum over its values
(https://prometheus.io/docs/practices/naming). A label value that is not a Kubernetes name begins with an underscore, as
no Kubernetes name does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class MetricType(StrEnum):
    """A metric's type, as in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; all its time series share this name and these label names."""

    name: str
    kind: MetricType
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


_POD = ("namespace", "pod", "mechanism")
_NAMESPACE = ("namespace", "mechanism")
_G, _C, _H = MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM

FAMILIES = (
    Family("cgpause_up", _G, "1 if the daemon runs and has published recently, else 0."),
    Family("cgpause_snapshot_timestamp_seconds", _G, "Time at which the daemon published these values."),
    Family(
        "cgpause_build_info",
        _G,
        "1; the labels have the versions of the daemon and of Python.",
        ("version", "python_version"),
    ),
    Family(
        "cgpause_config_info",
        _G,
        "1; the labels have the configured policy and mechanism, and a hash of all options that are in force.",
        ("policy", "mechanism", "hash"),
    ),
    Family(
        "cgpause_config_last_reload_successful", _G, "0 if the daemon refused its configuration at the last SIGHUP."
    ),
    Family("cgpause_process_start_time_seconds", _G, "Start time of the daemon."),
    Family("cgpause_process_cpu_seconds_total", _C, "CPU time that the daemon has used."),
    Family("cgpause_process_resident_memory_bytes", _G, "Resident memory of the daemon."),
    # Memory
    Family(
        "cgpause_headroom_bytes",
        _G,
        "Memory that pods can still take before the kernel kills a process: the tighter of node and kubepods.",
    ),
    Family(
        "cgpause_capacity_bytes",
        _G,
        "Memory that pods share: the node's memory, or the limit of kubepods if that is smaller.",
    ),
    Family("cgpause_eviction_threshold_bytes", _G, "kubelet evicts pods if less memory than this is available."),
    Family("cgpause_node_memory_bytes", _G, "The node's memory (MemTotal)."),
    Family("cgpause_node_memory_available_bytes", _G, "Available memory of the node (MemAvailable)."),
    Family("cgpause_kubepods_memory_limit_bytes", _G, "memory.max of kubepods; absent if that is max."),
    Family(
        "cgpause_kubepods_memory_used_bytes",
        _G,
        "memory.current of kubepods less reclaimable memory: page cache and slab.",
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
        "Time in which some task of a pod waited for memory (PSI some); 0 again in a new kubepods.",
    ),
    Family(
        "cgpause_kubepods_memory_pressure_stalled_seconds_total",
        _C,
        "Time in which all tasks of all pods waited for memory (PSI full); 0 again in a new kubepods.",
    ),
    Family(
        "cgpause_pressure_wakeups_total", _C, "Times that the kernel woke the daemon because of memory pressure (PSI)."
    ),
    # Pods
    Family(
        "cgpause_pods",
        _G,
        "Pods by state: running, paused (by the daemon or an operator), or protected (by rule, mark or error).",
        ("state",),
    ),
    Family(
        "cgpause_paused_pods",
        _G,
        "Paused pods by owner (daemon; manual: cgpause pause) and mechanism.",
        ("owner", "mechanism"),
    ),
    Family("cgpause_damaged_pods", _G, "Pods that cannot be resumed because their record is damaged or missing."),
    Family("cgpause_pauses_total", _C, "Pauses by the daemon.", _NAMESPACE),
    Family(
        "cgpause_paused_seconds_total", _C, "Time for which the daemon paused pods, summed over all pods.", _NAMESPACE
    ),
    Family("cgpause_pod_pauses_total", _C, "Pauses by the daemon, for the pods that it paused last.", _POD),
    Family(
        "cgpause_pod_paused_seconds_total",
        _C,
        "Time for which the daemon paused a pod, for the pods that it paused last.",
        _POD,
    ),
    Family(
        "cgpause_pod_pause_start_time_seconds",
        _G,
        "Start of a pause, for pods that are paused now: the longest pauses, at most 100.",
        ("namespace", "pod", "owner", "mechanism"),
    ),
    Family(
        "cgpause_resumes_total",
        _C,
        "Pauses that ended while the daemon ran, by cause (docs/cli.md explains them); operator: an operator ended it, "
        "or changed how pods are paused.",
        ("cause",),
    ),
    Family(
        "cgpause_pause_duration_seconds",
        _H,
        "Length of finished pauses by the daemon.",
        buckets=(0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0),
    ),
    Family("cgpause_freezes_total", _C, "Throttled pods that the daemon froze because they still grew."),
    Family("cgpause_sacrifices_total", _C, "Pods with containers that the daemon killed to free memory."),
    # Errors
    Family("cgpause_pause_failures_total", _C, "Failed attempts to pause or freeze a pod."),
    Family("cgpause_resume_failures_total", _C, "Failed attempts to resume a pod; the daemon tries again."),
    Family(
        "cgpause_drifts_total",
        _C,
        "Times that the daemon wrote its value again after another program had changed it.",
        ("file",),
    ),
    Family(
        "cgpause_drift_surrenders_total",
        _C,
        "Times that the daemon gave up a file because another program kept changing it.",
        ("file",),
    ),
    Family(
        "cgpause_kubepods_oom_kills_total",
        _C,
        "Processes of pods that the OOM killer killed, at any limit (memory.events); 0 again in a new kubepods.",
    ),
    Family(
        "cgpause_kubepods_limit_ooms_total",
        _C,
        "Times that kubepods reached its own limit and could reclaim nothing (memory.events.local).",
    ),
    Family(
        "cgpause_degraded",
        _G,
        "1 for a source that does not work now: inotify, PSI triggers, or the node's memory.",
        ("what",),
    ),
    # Speed
    Family(
        "cgpause_tick_duration_seconds",
        _H,
        "Time from waking to the end of the actions: sample, decide, act.",
        buckets=(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    ),
    Family(
        "cgpause_reaction_latency_seconds",
        _H,
        "Time from a due sample, or from when the daemon runs after the kernel woke it, until a pause is in force.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}
