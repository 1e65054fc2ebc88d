"""Values for tests of `cgpause top`: pods, snapshots, and frames as plain text."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta, timezone
from typing import Any

from rich.segment import SegmentLines

from cgpause.cli.top.values import GraphPoint, Kubepods, Levels, NodeView, PodDetail, PodState, SeenPod
from cgpause.config.settings import Config, HowPaused
from cgpause.core.model import (
    CgroupId,
    CpuMax,
    Headroom,
    Mechanism,
    Owner,
    PauseRecord,
    Pod,
    PodKind,
    PodUsage,
    Pressure,
    QosClass,
)
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon
from cgpause.policy.demand import Basis
from cgpause.policy.explain import Verdict
from cgpause.policy.serving import Place
from cgpause.telemetry.events import Event

MIB = 1 << 20
GIB = 1 << 30
S = 1_000_000_000
AT = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""
AT_NS = 5000 * S


def key_of(label: str) -> CgroupId:
    return CgroupId(f"kubepods.slice/{label}", sum(map(ord, label)) + len(label) * 100_000)


def pause(
    seconds: float,
    *,
    owner: Owner = Owner.DAEMON,
    mechanism: Mechanism = Mechanism.THROTTLE,
    reason: str = "needs 5.0Mi of 3.0Mi left",
    left_s: float | None = None,
) -> PauseRecord:
    return PauseRecord(
        mechanism=mechanism,
        owner=owner,
        reason=reason,
        since_ns=AT_NS - int(seconds * S),
        expires_ns=None if left_s is None else AT_NS + int(left_s * S),
        original=CpuMax(50_000, 100_000),
        original_burst_us=0,
        written=CpuMax(1001, 100_000) if mechanism is Mechanism.THROTTLE else None,
    )


def make_place(demand: float, headroom: float, *, first: bool = False) -> Place:
    bare = Pod(CgroupId("x", 1), "x", QosClass.BURSTABLE, None, None, None, None)
    return Place(PodUsage(0, bare), 64 * MIB, demand * 10, demand, headroom, Basis.LIMIT, 0.0, runs=True, first=first)


def make_pod(label: str = "default/web", state: PodState = PodState.RUNNING, **changes: object) -> SeenPod:
    """Return a pod; `changes` are fields of `SeenPod`, and of its `Pod` and its `Verdict`."""
    namespace, _, name = label.rpartition("/")
    values: dict[str, Any] = {
        "cgroup": key_of(label),
        "namespace": namespace,
        "name": name,
        "uid": "00000001-0000-4000-8000-000000000001",
        "qos": QosClass.BURSTABLE,
        "state": state,
        "current_bytes": 100 * MIB,
        "reclaimable_bytes": 5 * MIB,
        "memory_max_bytes": 256 * MIB,
        "growth": 0.0,
        "cpu_millicores": 250.0,
        "throttled_ms": 0.0,
        "protected": None,
        "error": None,
        "rank": 1,
        "what": "runs",
        "place": make_place(0, 400 * MIB),
    }
    values |= changes

    def of(kind: type[Any]) -> dict[str, Any]:
        return {field.name: values[field.name] for field in fields(kind) if field.name in values}

    assert changes.keys() <= {field.name for kind in (Pod, Verdict, SeenPod) for field in fields(kind)}
    pod = Pod(**of(Pod))
    verdict = Verdict(PodUsage(values["current_bytes"] or 0, pod), **of(Verdict))
    return SeenPod(pod, verdict, **of(SeenPod))


def make_snapshot(*pods: SeenPod, **changes: object) -> NodeView:
    moments = tuple(
        GraphPoint(AT_NS / S - 180 + second, 20.0 * (second % 30 == 0), 5.0 * (second % 60 == 0), (200 + second) * MIB)
        for second in range(181)
    )
    values: dict[str, Any] = {
        "at": AT,
        "at_ns": AT_NS,
        "zone": timezone(timedelta(hours=1)),
        "host": "node-1",
        "config": Config(mechanism=HowPaused.THROTTLE),
        "daemon": FoundDaemon(DaemonState.RUNNING, 812),
        "headroom": Headroom(8 * GIB, 3 * GIB, 4 * GIB, 4 * GIB - 380 * MIB, 100 * MIB),
        "levels": Levels(141 * MIB, 1100 * MIB, 100 * MIB),
        "kubepods": Kubepods(4 * GIB - 180 * MIB, 4000 * MIB, high_is_ours=True, oom_kills=0),
        "pressure": Pressure(1.25, 1000, 0.4, 100),
        "moments": moments,
        "pods": pods,
        "events": (),
    }
    return NodeView(**(values | changes))


def busy_snapshot() -> NodeView:
    """Return a snapshot with one pod of every kind."""
    grows: dict[str, Any] = {"growth": 12.0 * MIB, "reclaimable_bytes": 0}
    pods = (
        make_pod("default/idle", kind=PodKind.SERVICE),
        make_pod(
            "batch/report-1",
            PodState.PAUSED,
            paused=pause(12),
            what="stays paused by the daemon (x)",
            place=make_place(30 * MIB, 3 * MIB),
            throttled_ms=890.0,
            cpu_millicores=10.0,
            **grows,
        ),
        make_pod(
            "batch/report-2",
            PodState.WOULD_PAUSE,
            what="would pause (throttle)",
            acts=True,
            place=make_place(20 * MIB, 3 * MIB),
            why="needs 20.0Mi of 3.0Mi left",
            **grows,
        ),
        make_pod(
            "prod/checkout-7d9f8b6c5d-x2k4p",
            PodState.NEXT,
            growth=2.0 * MIB,
            place=make_place(2 * MIB, 33 * MIB),
            why="needs 2.0Mi of 33.0Mi left",
            current_bytes=250 * MIB,
        ),
        make_pod("batch/first", growth=6.0 * MIB, what="runs first", place=make_place(64 * MIB, 100 * MIB, first=True)),
        make_pod("kube-system/dns", PodState.PROTECTED, rank=None, what="runs", protected="namespace kube-system"),
        make_pod(
            "default/broken",
            PodState.ERROR,
            error="its cgroup cannot be read: EIO",
            rank=None,
            what="",
            place=None,
            current_bytes=None,
            memory_max_bytes=None,
            cpu_millicores=None,
            throttled_ms=None,
            growth=None,
        ),
        make_pod(
            "ops/debug",
            PodState.PAUSED,
            rank=None,
            what="stays paused by hand (x)",
            place=None,
            paused=pause(
                3700, owner=Owner.MANUAL, mechanism=Mechanism.FREEZE, reason="cgpause top by alice", left_s=90
            ),
        ),
    )
    events = (
        Event(AT - 60, "paused", "batch/report-1", "", "needs 9.0Mi of 4.0Mi left"),
        Event(AT - 30, "resumed", "batch/report-1", "", "was paused: needs 9.0Mi of 4.0Mi left", paused_s=30.0),
        Event(AT - 12, "paused", "batch/report-1", "", "needs 5.0Mi of 3.0Mi left"),
    )
    return make_snapshot(*pods, events=events)


PAST = (
    Event(AT - 60, "paused", "batch/report-1", "", "needs 9.0Mi of 4.0Mi left"),
    Event(AT - 30, "resumed", "batch/report-1", "", "fits again", paused_s=30.0),
)


def make_detail(pod: SeenPod) -> PodDetail:
    values = {
        "memory_current_bytes": pod.current_bytes,
        "memory_max_bytes": pod.pod.memory_max_bytes,
        "cpu_max": "1001 100000",
        "cpu_stat": {"nr_periods": 168, "nr_throttled": 42, "throttled_usec": 71_000_000},
        "paused": {
            "mechanism": "throttle",
            "in_force": True,
            "original_cpu_max": "50000 100000",
            "written_cpu_max": "1001 100000",
        },
    }
    return PodDetail(pod.key, values, 1, Pressure(3.5, 1, 0.5, 1), 7, PAST)


def text_of(frame: SegmentLines) -> list[str]:
    """Return the frame's lines without styles and trailing blanks."""
    return ["".join(text for text, _, _ in line).rstrip() for line in frame.lines]


def many_pods(count: int) -> NodeView:
    return make_snapshot(
        *(make_pod(f"default/pod-{number:03}", current_bytes=(count - number) * MIB) for number in range(count))
    )
