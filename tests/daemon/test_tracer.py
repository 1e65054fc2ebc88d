"""The daemon's trace: samples from the loop are written, and an error costs the trace and nothing else."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from helpers.trees import FakeTree, rewrite, wait_until

from cgpause.config.settings import Config, TraceConfig
from cgpause.core.clock import NEVER_NS
from cgpause.core.model import Headroom
from cgpause.daemon import tracer
from cgpause.daemon.tracer import Tracer
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.trace.gather import Gatherer, interval_ns
from cgpause.telemetry.trace.read import load_trace
from cgpause.telemetry.trace.write import TraceFiles

S = 1_000_000_000
MIB = 1 << 20
ON = TraceConfig(record=True)


class Bench:
    """A tree with one pod, and the part of the daemon that records it."""

    def __init__(self, fake: FakeTree) -> None:
        self.fake = fake
        self.web = fake.add_pod("web")
        self.tree = PodTree(str(fake.root), str(fake.log_dir), Config())
        self.tree.refresh(0)
        self.path = fake.folder / "trace.jsonl.gz"
        self.sampler = Sampler(self.tree)
        self.tracer = Tracer(str(self.path), self.tree, self.sampler)

    def turns(self, begin: int, end: int) -> None:
        for at_s in range(begin, end):
            self.tracer.turn(at_s * S, None)


@pytest.fixture
def bench(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(tracer, "_LAST_WAIT_S", 60)  # machines are slow
    made = Bench(tree)
    yield made
    made.tracer.close()
    made.sampler.close()
    made.tree.close()


def test_nothing_is_recorded_unless_configured(bench: Bench) -> None:
    bench.tracer.configure(TraceConfig())
    bench.turns(1, 9)

    assert bench.tracer.due_ns == NEVER_NS
    assert not bench.path.exists()


def test_what_is_recorded_can_be_read(bench: Bench) -> None:
    bench.tracer.configure(ON)
    for at_s in range(1, 21):
        rewrite(bench.web / "memory.current", f"{at_s * MIB:020}\n")
        bench.tracer.turn(at_s * S, None)
        bench.tracer.turn(at_s * S + S // 2, None)  # not due
    bench.tracer.close()

    trace = load_trace(str(bench.path))
    assert trace.headers[0].by_daemon
    amounts = [moment.sample.pods[0].memory_current_bytes // MIB for moment in trace.moments()]
    assert amounts == list(range(1, 21))


def test_the_loops_own_sample_is_taken_where_it_is_of_now(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.tracer.configure(ON)
    sample = bench.sampler.sample(5 * S)
    monkeypatch.setattr(bench.sampler, "sample", lambda _: pytest.fail("read again"))
    bench.tracer.turn(5 * S, sample)
    bench.tracer.close()

    assert load_trace(str(bench.path)).samples == 1


def test_hashes_stand_for_names(bench: Bench) -> None:
    bench.tracer.configure(replace(ON, hash_names=True))
    bench.turns(1, 3)
    bench.tracer.close()

    (pod,) = {usage.pod for moment in load_trace(str(bench.path)).moments() for usage in moment.sample.pods}
    assert pod.name is not None
    assert "web" not in pod.name
    assert bench.fake.uids["web"] not in pod.uid


def test_what_cannot_be_written_is_said_once_and_ends_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(TraceFiles, "write", fail)
    with caplog.at_level(logging.WARNING):
        bench.tracer.configure(ON)
        bench.turns(1, 8)
        wait_until(lambda: bool(caplog.records), "the warning")
        bench.turns(8, 40)

    said = f'file={bench.path} error="No space left on device" advice="make room"'
    assert [record.getMessage() for record in caplog.records] == [f"trace not written any more {said}"]
    assert bench.tracer.due_ns == NEVER_NS

    monkeypatch.undo()
    bench.tracer.configure(ON)
    bench.turns(40, 60)
    bench.tracer.close()
    assert load_trace(str(bench.path)).samples == 20, "a reload tries again"


@pytest.mark.parametrize("what", ["folder", "missing", "link", "fifo"])
def test_what_lies_in_its_place_is_left_alone(what: str, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    target = bench.fake.folder / "target"
    match what:
        case "folder":
            bench.path.mkdir()
        case "missing":
            bench.tracer = Tracer(str(bench.fake.folder / "no/x.gz"), bench.tree, bench.sampler)
        case "link":
            bench.path.symlink_to(target)
        case _:
            os.mkfifo(bench.path)
    with caplog.at_level(logging.WARNING):
        bench.tracer.configure(ON)
        wait_until(lambda: bool(caplog.records), "the warning")
        bench.turns(1, 20)

    assert len(caplog.records) == 1
    assert not target.exists()
    assert bench.tracer.due_ns == NEVER_NS


def test_a_disk_that_hangs_holds_nobody_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, write = threading.Event(), TraceFiles.write

    def wait(self: TraceFiles, lines: tuple[str, ...], *, begins: bool) -> None:
        go_on.wait(30)
        write(self, lines, begins=begins)

    monkeypatch.setattr(TraceFiles, "write", wait)
    monkeypatch.setattr(tracer, "_WAITING", 3)
    bench.tracer.configure(ON)
    bench.turns(1, 200)
    go_on.set()
    # The dropped samples are a gap; later samples do not depend on them.
    writer = bench.tracer._writer
    assert writer is not None
    wait_until(lambda: not writer._thread.waiting, "all is written that there was room for")
    bench.turns(200, 260)
    bench.tracer.close()

    trace = load_trace(str(bench.path))
    assert 20 < trace.samples < 259
    assert len(trace.headers) > 1


def writers() -> int:
    return sum(thread.name == "trace" for thread in threading.enumerate())


def test_a_reload_loses_nothing_of_what_was_gathered(bench: Bench) -> None:
    bench.tracer.configure(ON)
    bench.turns(1, 4)  # less than a block
    bench.tracer.configure(replace(ON, hash_names=True))
    bench.turns(4, 9)
    bench.tracer.configure(replace(ON, record=False))
    bench.turns(9, 12)
    bench.tracer.configure(ON)
    bench.turns(12, 14)
    bench.tracer.close()

    trace = load_trace(str(bench.path))
    assert [moment.sample.at_ns // S for moment in trace.moments()] == [*range(1, 9), 12, 13]
    assert [header.interval_s for header in trace.headers] == [1.0, 1.0, 1.0]


def test_reloads_while_the_disk_hangs_start_no_second_writer_and_wait_for_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = writers()
    begun, go_on, write = threading.Event(), threading.Event(), TraceFiles.write

    def wait(self: TraceFiles, lines: tuple[str, ...], *, begins: bool) -> None:
        begun.set()
        assert go_on.wait(60), "whoever reloads waits for the disk"
        write(self, lines, begins=begins)

    monkeypatch.setattr(TraceFiles, "write", wait)
    bench.tracer.configure(ON)
    bench.turns(1, 8)
    assert begun.wait(60)
    for at_s in range(8, 12, 2):
        bench.tracer.configure(replace(ON, hash_names=True))
        bench.turns(at_s, at_s + 1)
        bench.tracer.configure(TraceConfig())
        bench.tracer.configure(ON)
        bench.turns(at_s + 1, at_s + 2)
        assert writers() == before + 1
    go_on.set()
    bench.tracer.close()

    assert writers() == before
    assert [moment.sample.at_ns // S for moment in load_trace(str(bench.path)).moments()] == list(range(1, 12))


def test_memory_that_cannot_be_read_is_left_to_the_loop(bench: Bench) -> None:
    bench.tracer.configure(ON)
    rewrite(bench.fake.kubepods / "memory.current", f"{'rubbish':20}\n")
    bench.turns(1, 4)
    bench.fake.set_used(0)
    bench.turns(4, 6)
    bench.tracer.close()

    assert load_trace(str(bench.path)).samples == 2


def test_a_bug_costs_the_trace_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Gatherer, "moment", lambda *_: 1 // 0)
    bench.tracer.configure(ON)
    bench.turns(1, 5)

    assert [record.getMessage() for record in caplog.records] == ["trace not written any more"]
    assert bench.tracer.due_ns == NEVER_NS


def test_near_the_limit_it_looks_more_often() -> None:
    calm, tight = Headroom(100, 26, None, 0), Headroom(100, 24, None, 0)

    assert (interval_ns(calm, 1.0), interval_ns(tight, 1.0)) == (S, S // 5)


def test_oom_kills_are_asked_of_kubepods_first(bench: Bench) -> None:
    events = "low 0\nhigh 0\nmax 0\noom {}\noom_kill {}\noom_group_kill 0\n"
    kubepods = bench.fake.kubepods / "memory.events"
    kubepods.write_text(events.format(0, 0))
    gatherer, key = Gatherer(bench.tree), next(iter(bench.tree.pods))

    def kills(at_s: int) -> tuple[int, int]:
        moment = gatherer.moment(bench.sampler.sample(at_s * S), 0.0)
        return moment.oom_kills.get(key, 0), moment.own_ooms.get(key, 0)

    assert kills(1) == (0, 0)
    rewrite(bench.web / "memory.events", events.format(1, 2))
    assert kills(2) == (0, 0), "kubepods does not count it: nobody reads the pods'"
    rewrite(kubepods, events.format(1, 2))
    assert kills(3) == (2, 1)


def test_where_kubepods_does_not_tell_the_pods_are_asked_in_turn(bench: Bench) -> None:
    gatherer, key = Gatherer(bench.tree), next(iter(bench.tree.pods))
    gatherer.moment(bench.sampler.sample(S), 0.0)
    rewrite(bench.web / "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 3\noom_group_kill 0\n")

    assert gatherer.moment(bench.sampler.sample(12 * S), 0.0).oom_kills == {key: 3}
