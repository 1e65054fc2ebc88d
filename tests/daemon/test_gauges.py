"""Gauges read for each snapshot, on a plain tree; tests/vm reads the kernel's own counters."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.metering import Metered
from helpers.nodes import S

from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Mechanism, Owner, Pressure
from cgpause.daemon.gauges import gather
from cgpause.kernel.inotify import Watch
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.pods.tracked import TrackedPod
from cgpause.telemetry.events import EventKind, make_event
from cgpause.telemetry.metrics import BY_NAME, MetricType, Values

GIB = 1 << 30
PRESSURE = "".join(f"{word} avg10=0.00 avg60=0.00 avg300=0.00 total=1\n" for word in ("some", "full"))


class Bench(Metered):
    """Metrics of pods that the test pauses."""

    def tracked(self, name: str) -> TrackedPod:
        return next(tracked for tracked in self.tree.pods.values() if tracked.pod.name == name)

    def hold(
        self, pod: str | TrackedPod, owner: Owner = Owner.DAEMON, ago_s: float = 0, how: Mechanism = Mechanism.THROTTLE
    ) -> None:
        tracked = self.tracked(pod) if isinstance(pod, str) else pod
        request = PauseRequest(how, CpuMax(1000, 100_000), owner, "test", now_ns() - int(ago_s * S))
        record, _ = ledger.pause(tracked.cgroup, request)
        tracked.pod = replace(tracked.pod, paused=record)

    def values(self) -> Values:
        return gather(self.intake, self.sampler, 1.0, now_ns())

    def shown(self, name: str) -> dict[tuple[str, ...], float]:
        return {tuple(map(str, figure.labels)): figure.value for figure in self.values().get(name, [])}

    def one(self, name: str) -> float | None:
        return self.shown(name).get(())


@pytest.fixture
def bench(tmp_path: Path, watch: Watch) -> Iterator[Bench]:
    made = Bench(tmp_path, watch)
    yield made
    made.close()


def test_everything_that_has_a_name_is_gathered_as_it_is_described(bench: Bench, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.daemon.gauges.read_node_pressure", lambda: Pressure(0, 0, 0, 0))
    (bench.fake.kubepods / "memory.pressure").write_text(PRESSURE)
    for file in ("memory.events", "memory.events.local"):
        (bench.fake.kubepods / file).write_text("oom 1\noom_kill 1\n")
    bench.fake.add_pod("web")
    bench.refresh()
    bench.hold("web")
    pod, record = bench.tracked("web").pod, bench.tracked("web").pod.paused
    bench.counts.count(make_event(EventKind.PAUSED, pod, "test", record))

    values = bench.values()

    for name, figures in values.items():
        family = BY_NAME[name]
        for figure in figures:
            assert len(figure.labels) == len(family.labels), name
            assert bool(figure.counts) == (family.kind is MetricType.HISTOGRAM), name
        assert len({figure.labels for figure in figures}) == len(figures), name
    assert set(BY_NAME) - set(values) == {"cgpause_up", "cgpause_snapshot_timestamp_seconds"}


def test_memory_is_what_the_kernel_says_now(bench: Bench, monkeypatch: Patch) -> None:
    bench.fake.set_used(GIB // 4, reclaimable_bytes=GIB // 8)
    bench.refresh()

    assert bench.one("cgpause_kubepods_memory_limit_bytes") == GIB
    assert bench.one("cgpause_kubepods_memory_used_bytes") == GIB // 4
    assert bench.one("cgpause_headroom_bytes") == GIB - GIB // 4
    assert bench.one("cgpause_capacity_bytes") == GIB
    bench.fake.set_used(GIB // 2)
    assert bench.one("cgpause_headroom_bytes") == GIB // 2
    (bench.fake.kubepods / "memory.max").write_text("max\n")
    assert bench.one("cgpause_kubepods_memory_limit_bytes") is None
    assert bench.one("cgpause_capacity_bytes") == bench.one("cgpause_node_memory_bytes")


def test_pods_by_state_add_up_to_all_pods(bench: Bench) -> None:
    for name in ("a", "b", "c", "d"):
        bench.fake.add_pod(name)
    bench.fake.add_pod("dns", namespace="kube-system")
    bench.refresh()
    bench.hold("a")
    bench.hold("b", how=Mechanism.FREEZE)
    bench.hold("c", Owner.MANUAL)

    assert bench.shown("cgpause_pods") == {("running",): 1, ("paused",): 3, ("protected",): 1}
    assert bench.shown("cgpause_paused_pods") == {
        ("daemon", "throttle"): 1,
        ("daemon", "freeze"): 1,
        ("manual", "throttle"): 1,
        ("manual", "freeze"): 0,
    }


def test_when_a_pause_began_is_told_of_the_longest(bench: Bench, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.daemon.gauges.MAX_PODS", 2)
    for name, ago_s, owner in (("new", 1, Owner.DAEMON), ("old", 50, Owner.MANUAL), ("older", 500, Owner.DAEMON)):
        bench.fake.add_pod(name)
        bench.refresh()
        bench.hold(name, owner, ago_s)

    found = bench.shown("cgpause_pod_pause_start_time_seconds")

    assert set(found) == {("default", "older", "daemon", "throttle"), ("default", "old", "manual", "throttle")}
    assert found["default", "older", "daemon", "throttle"] == pytest.approx(time.time() - 500, abs=60)
    difference = found["default", "old", "manual", "throttle"] - found["default", "older", "daemon", "throttle"]
    assert difference == pytest.approx(450, abs=20)


def test_two_pods_of_one_name_are_one_series(bench: Bench) -> None:
    """kubelet never makes two such pods, but any process with write access to the log folder can fake one."""
    bench.fake.add_pod("web")
    bench.fake.add_pod("twin", log=False)
    (bench.fake.log_dir / "pods" / f"default_web_{bench.fake.uids['twin']}").mkdir()
    bench.refresh()
    for tracked in bench.tree.pods.values():
        bench.hold(tracked)

    assert list(bench.shown("cgpause_pod_pause_start_time_seconds")) == [("default", "web", "daemon", "throttle")]


def test_time_is_counted_of_pods_that_the_daemon_holds(bench: Bench) -> None:
    for name in ("ours", "mine"):
        bench.fake.add_pod(name)
    bench.refresh()
    bench.hold("ours")
    bench.hold("mine", Owner.MANUAL)
    bench.values()

    first = bench.shown("cgpause_paused_seconds_total")
    time.sleep(0.01)
    second = bench.shown("cgpause_paused_seconds_total")

    assert list(first) == [("default", "throttle"), ("default", "freeze")]
    assert first["default", "freeze"] == 0
    assert second["default", "throttle"] > first["default", "throttle"]


def test_pressure_is_in_seconds(bench: Bench, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.daemon.gauges.read_node_pressure", lambda: Pressure(0, 2_500_000, 0, 1_000_000))
    (bench.fake.kubepods / "memory.pressure").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=4000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n"
    )
    bench.refresh()

    assert bench.one("cgpause_node_memory_pressure_waiting_seconds_total") == 2.5
    assert bench.one("cgpause_node_memory_pressure_stalled_seconds_total") == 1
    assert bench.one("cgpause_kubepods_memory_pressure_waiting_seconds_total") == 4
    assert bench.one("cgpause_kubepods_memory_pressure_stalled_seconds_total") == 3


def test_ooms_are_the_kernels_own_count(bench: Bench) -> None:
    (bench.fake.kubepods / "memory.events").write_text("oom 5\noom_kill 7\noom_group_kill 2\n")
    (bench.fake.kubepods / "memory.events.local").write_text("oom 3\noom_kill 0\n")
    bench.refresh()

    assert bench.one("cgpause_kubepods_oom_kills_total") == 7
    assert bench.one("cgpause_kubepods_limit_ooms_total") == 3


@pytest.mark.parametrize("file", ["memory.max", "memory.current", "memory.stat"])
def test_memory_that_cannot_be_read_is_left_out_and_said(bench: Bench, file: str) -> None:
    bench.refresh()
    (bench.fake.kubepods / file).write_text("garbage\n")

    assert not {name for name in bench.values() if name.endswith("_bytes")} - {"cgpause_process_resident_memory_bytes"}
    assert bench.shown("cgpause_degraded")["memory",] == 1
    bench.fake.set_used(0)
    (bench.fake.kubepods / "memory.max").write_text("max\n")
    assert bench.shown("cgpause_degraded")["memory",] == 0


@pytest.mark.parametrize("name", ["memory.events", "memory.events.local", "memory.pressure"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\x00\xff", b"oom_kill -1\n", b"some total=x\n"])
def test_a_file_that_cannot_be_read_costs_its_own_figures(bench: Bench, name: str, content: bytes | None) -> None:
    for each in ("memory.events", "memory.events.local"):
        (bench.fake.kubepods / each).write_text("oom 1\noom_kill 1\n")
    (bench.fake.kubepods / "memory.pressure").write_text(PRESSURE)
    bench.refresh()
    before = set(bench.values())
    (bench.fake.kubepods / name).unlink()
    if content is not None:
        (bench.fake.kubepods / name).write_bytes(content)

    lost = before - set(bench.values())

    assert 1 <= len(lost) <= 2
    assert all("kubepods" in name for name in lost)


def test_a_node_without_kubepods_has_figures_of_the_node(bench: Bench) -> None:
    os.rename(bench.fake.kubepods, bench.fake.folder / "hidden")
    bench.refresh()

    assert bench.one("cgpause_node_memory_bytes")
    assert not {name for name in bench.values() if name.startswith("cgpause_kubepods")}
    assert sum(bench.shown("cgpause_pods").values()) == 0


def test_what_the_daemon_has_to_do_without_is_said(bench: Bench) -> None:
    bench.refresh()
    assert bench.shown("cgpause_degraded")["inotify",] == 0
    bench.intake.watch.note_failure()

    assert bench.shown("cgpause_degraded")["inotify",] == 1
    assert bench.shown("cgpause_degraded")["psi",] == 1  # a plain tree has no PSI


def test_damaged_pods_are_counted(bench: Bench) -> None:
    bench.fake.add_pod("web")
    bench.refresh()
    assert bench.one("cgpause_damaged_pods") == 0
    bench.tracked("web").damaged = True

    assert bench.one("cgpause_damaged_pods") == 1
