"""A dry run logs every action and writes nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from helpers.actuating import CONFIG, THROTTLE, Bench, lines
from helpers.commandline import snapshot
from helpers.fixtures import Log

from cgpause.core.model import Mechanism, Owner
from cgpause.kernel.cgroupfs import DryCgroup
from cgpause.kernel.inotify import Watch
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest


def test_a_dry_run_says_everything_and_writes_nothing(tmp_path: Path, watch: Watch, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, watch, dry_run=True)
    before = snapshot(bench.fake.root)
    bench.pause("a", "b")
    bench.pause("b")
    assert bench.paused() == ["a", "b"]
    bench.resume("a")
    bench.freeze("a", "b")
    bench.freeze("b")
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)
    bench.sacrifice("b")
    bench.read_record("c")
    assert bench.paused() == []
    assert snapshot(bench.fake.root) == before
    said = [" ".join(line.split()[:4]) for line in lines(caplog)]
    assert said == [
        "would have paused pod=default/a",
        "would have paused pod=default/b",
        "would have resumed pod=default/a",
        "would have frozen pod=default/b",
        "would have sacrificed pod=default/b",
        "would have resumed pod=default/b",
    ]
    bench.tree.close()


def test_a_dry_run_leaves_a_real_pause_and_says_what_it_would_do(tmp_path: Path, watch: Watch, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, watch, dry_run=True)
    request = PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.DAEMON, "a predecessor's", since_ns=1)
    ledger.pause(bench.tracked("a").cgroup, request)
    before = snapshot(bench.fake.root)
    bench.read_record("a")
    assert bench.paused() == ["a"]
    bench.resume("a")
    assert snapshot(bench.fake.root) == before
    assert [line.split(" uid=")[0] for line in lines(caplog)] == ["would have resumed pod=default/a"]
    bench.tree.close()


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("cpu_max", ["max 100000", "50000 100000", "2000 1000000"])
def test_a_dry_run_remembers_what_a_pause_would_have_recorded(bench: Bench, cpu_max: str, mechanism: Mechanism) -> None:
    (bench.folders["b"] / "cpu.max").write_text(f"{cpu_max}\n")
    (bench.folders["b"] / "cpu.max.burst").write_text("2000\n")
    cgroup = bench.tracked("b").cgroup
    request = PauseRequest(mechanism, THROTTLE, Owner.DAEMON, "test", since_ns=1)
    with DryCgroup(bench.tree.root, cgroup.id.path) as dry:
        pretended = [ledger.pause(dry, request), ledger.freeze(dry, "it grows"), ledger.freeze(dry, "again")]
    real = [ledger.pause(cgroup, request), ledger.freeze(cgroup, "it grows"), ledger.freeze(cgroup, "again")]
    assert pretended == real
