"""Metrics: the gauges of each snapshot, their publishing, and that an error costs metrics and nothing else."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fixtures import Log, Patch
from helpers.nodes import S
from helpers.refusals import failing
from helpers.trees import FakeTree, pause_pod, wait_until

from cgpause.config.settings import Config, MetricsConfig
from cgpause.core.clock import NEVER_NS, now_ns
from cgpause.core.model import Mechanism, Owner, Pressure
from cgpause.core.paths import METRICS_FILE
from cgpause.daemon import publisher
from cgpause.daemon.brake import Brake
from cgpause.daemon.gauges import gather
from cgpause.daemon.intake import Intake
from cgpause.daemon.publisher import Publisher
from cgpause.kernel import wholefile
from cgpause.kernel.inotify import Watch
from cgpause.kernel.psi import PsiTriggers
from cgpause.ledger import ledger
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.telemetry import published
from cgpause.telemetry.counts import Counts
from cgpause.telemetry.events import EventKind, make_event
from cgpause.telemetry.metrics import BY_NAME, MetricType, Values
from cgpause.telemetry.published import PublishedError, Stamp

GIB = 1 << 30
PRESSURE = "".join(f"{word} avg10=0.00 avg60=0.00 avg300=0.00 total=1\n" for word in ("some", "full"))
ON = MetricsConfig(publish=True)


class Bench:
    """A made tree, followed, the parts that its metrics come from, and a publisher of them."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        self.fake = FakeTree(folder)
        self.tree = PodTree(str(self.fake.root), str(self.fake.log_dir), Config())
        self.counts = Counts(now_ns())
        self.sampler = Sampler(self.tree, kubelet_config="/nonexistent")
        self._epoll = select.epoll()
        psi, brake = PsiTriggers(self._epoll), Brake(self.tree, watch)
        actuator: Any = SimpleNamespace(counts=self.counts)
        unread: Any = None
        self.intake = Intake(self.tree, unread, watch, psi, actuator, brake, unread)
        self.folder = folder / "run"
        self.folder.mkdir()
        self.path = str(self.folder / METRICS_FILE)
        self.publisher = Publisher(self.path, self.intake, self.sampler)

    def close(self) -> None:
        self.publisher.close()
        self.sampler.close()
        self.tree.close()
        self._epoll.close()

    def refresh(self, *new_pods: str) -> None:
        for name in new_pods:
            self.fake.add_pod(name)
        self.tree.refresh(now_ns())

    def tracked(self, name: str) -> TrackedPod:
        return next(tracked for tracked in self.tree.pods.values() if tracked.pod.name == name)

    def pause(
        self, pod: str | TrackedPod, owner: Owner = Owner.DAEMON, ago_s: float = 0, how: Mechanism = Mechanism.THROTTLE
    ) -> None:
        tracked = self.tracked(pod) if isinstance(pod, str) else pod
        pause_pod(self.fake.root, Path(tracked.cgroup.path), owner, how, since_ns=now_ns() - int(ago_s * S))
        tracked.pod = replace(tracked.pod, paused=ledger.read_record(tracked.cgroup))

    def values(self) -> Values:
        return gather(self.intake, self.sampler, 1.0, now_ns())

    def shown(self, name: str) -> dict[tuple[str, ...], float]:
        return {tuple(map(str, figure.labels)): figure.value for figure in self.values().get(name, [])}

    def one(self, name: str) -> float | None:
        return self.shown(name).get(())

    def published(self) -> Stamp | None:
        try:
            return published.read(self.path)[0]
        except PublishedError:
            return None

    def tick(self, at_s: int) -> None:
        """Run one tick of the loop and wait for the publisher's thread to finish its work."""
        self.publisher.tick(at_s * S)
        self.wait_written()

    def wait_written(self) -> None:
        thread = self.publisher._thread
        assert thread is not None
        wait_until(lambda: not thread.waiting, "the write")


@pytest.fixture
def bench(tmp_path: Path, watch: Watch, caplog: Log) -> Iterator[Bench]:
    caplog.set_level(logging.INFO)
    made = Bench(tmp_path, watch)
    caplog.clear()
    yield made
    made.close()


def test_everything_that_has_a_name_is_gathered_as_it_is_described(bench: Bench, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.daemon.gauges.read_node_pressure", lambda: Pressure(0, 0, 0, 0))
    (bench.fake.kubepods / "memory.pressure").write_text(PRESSURE)
    for file in ("memory.events", "memory.events.local"):
        (bench.fake.kubepods / file).write_text("oom 1\noom_kill 1\n")
    bench.refresh("web")
    bench.pause("web")
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


def test_memory_is_what_the_kernel_says_now(bench: Bench) -> None:
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
    bench.fake.add_pod("dns", namespace="kube-system")
    bench.refresh("a", "b", "c", "d")
    bench.pause("a")
    bench.pause("b", how=Mechanism.FREEZE)
    bench.pause("c", Owner.MANUAL)
    bench.tracked("c").damaged = True

    assert bench.one("cgpause_damaged_pods") == 1
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
        bench.refresh(name)
        bench.pause(name, owner, ago_s)

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
        bench.pause(tracked)

    assert list(bench.shown("cgpause_pod_pause_start_time_seconds")) == [("default", "web", "daemon", "throttle")]


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


# --- publishing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_path", [True, False])
def test_nothing_is_published_unless_configured_with_a_place(bench: Bench, has_path: bool) -> None:
    publisher = Publisher(bench.path if has_path else None, bench.intake, bench.sampler)
    publisher.configure(MetricsConfig() if has_path else ON)
    publisher.tick(S)

    assert publisher.due_ns == NEVER_NS
    assert list(bench.folder.iterdir()) == []
    wait_until(lambda: "metrics" not in {thread.name for thread in threading.enumerate()}, "no thread to be left")


def test_what_a_killed_daemon_has_published_is_removed_where_nothing_is_to_be_published(bench: Bench) -> None:
    Path(bench.path).touch()
    bench.publisher.configure(MetricsConfig())

    wait_until(lambda: not os.path.exists(bench.path), "the file to go")


def test_it_is_published_at_once_and_then_when_it_is_due(bench: Bench) -> None:
    bench.publisher.configure(ON)
    for at_s, due_s in ((10, 15), (14, 15), (15, 20), (99, 104)):
        bench.tick(at_s)
        assert bench.publisher.due_ns == due_s * S

    found = bench.published()
    assert found is not None
    assert (found.at_ns, found.interval_s) == (99 * S, 5.0)


def test_a_folder_that_is_missing_is_told_once_with_who_makes_it_and_tried_again(bench: Bench, caplog: Log) -> None:
    bench.folder.rmdir()
    bench.publisher.configure(ON)
    for at_s in range(10, 60, 10):
        bench.tick(at_s)
    bench.folder.mkdir()
    bench.tick(60)
    bench.tick(70)

    first, second = caplog.messages
    assert first.startswith(f"metrics not published file={bench.path} error=")
    assert f"create {bench.folder}" in first
    assert second == f"metrics published again file={bench.path}"
    assert bench.published() is not None


def test_nobody_waits_for_a_folder_that_hangs(bench: Bench, caplog: Log, monkeypatch: Patch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    real = wholefile.replace

    def hang(path: str, data: bytes) -> None:
        reached.set()
        assert go_on.wait(60)
        real(path, data)

    gathered: list[object] = []

    def gather(*parts: object) -> Values:
        gathered.append(parts[-1])
        return {}

    monkeypatch.setattr(wholefile, "replace", hang)
    monkeypatch.setattr(publisher, "gather", gather)
    bench.publisher.configure(ON)
    bench.publisher.tick(10 * S)
    assert reached.wait(60)

    for at_s in range(20, 100, 10):
        bench.publisher.tick(at_s * S)

    assert gathered == [10 * S], "it costs nothing while nobody takes it"
    assert caplog.messages == [f'metrics not published file={bench.path} error="writing takes too long"']
    go_on.set()
    bench.wait_written()
    assert caplog.messages[1:] == [f"metrics published again file={bench.path}"]
    bench.tick(100)
    found = bench.published()
    assert found is not None
    assert found.at_ns == 100 * S


def test_a_bug_in_what_is_gathered_ends_only_publishing(bench: Bench, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(publisher, "gather", lambda *_: 1 // 0)
    bench.publisher.configure(ON)

    bench.publisher.tick(10 * S)
    bench.publisher.tick(20 * S)

    assert caplog.messages == ["metrics are not published any more"]
    assert bench.publisher.due_ns == NEVER_NS


def test_without_a_thread_nothing_is_published(bench: Bench, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(threading.Thread, "start", failing(RuntimeError("can't start new thread")))
    bench.publisher.configure(ON)
    bench.publisher.tick(10 * S)

    assert bench.publisher.due_ns == NEVER_NS
    assert caplog.messages == [f'metrics not published file={bench.path} error="can\'t start new thread"']
