"""A sacrifice kills containers, never the sandbox, and never a pod that an operator paused."""

from __future__ import annotations

import errno
import re
import shutil

import pytest
from helpers.actuating import CONFIG, Bench, lines
from helpers.fixtures import Log
from helpers.processes import containers, killed
from helpers.trees import lock_held

from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.model import Owner, Resume, Sacrifice
from cgpause.pods.sampler import Sampler
from cgpause.policy.decide import State, decide


def test_a_sacrifice_kills_containers_not_the_sandbox_and_resumes_the_pod(bench: Bench, caplog: Log) -> None:
    bench.pause("a", "b")
    began_ns = now_ns()
    bench.sacrifice("b")
    assert killed(bench.folders["b"]) == {containers(bench.folders["b"])[1].name}
    assert killed(bench.folders["a"]) == set()
    assert (bench.paused(), bench.cpu_max()[1]) == (["a"], "50000 100000")
    assert bench.actuator.counts.sacrifices == 1
    assert began_ns + int(CONFIG.pause.settle_s * NS_PER_S) <= bench.tracked("b").pod.settled_at_ns
    assert bench.tracked("b").pod.settled_at_ns <= now_ns() + int(CONFIG.pause.settle_s * NS_PER_S)
    (said,) = (record for record in caplog.records if record.getMessage().startswith("sacrificed"))
    assert said.levelname == "WARNING"
    (container_id,) = re.findall(r"[0-9a-f]{64}", containers(bench.folders["b"])[1].name)
    assert f"containers={container_id[:12]} " in said.getMessage()


def test_the_sacrifice_of_a_running_pod_ends_no_pause(bench: Bench) -> None:
    bench.sacrifice("b")

    assert killed(bench.folders["b"]) == {containers(bench.folders["b"])[1].name}
    assert not any(bench.actuator.counts.causes.values())
    assert bench.tracked("b").pod.distress is None


@pytest.mark.parametrize("before", [True, False], ids=["taken-over", "paused-meanwhile"])
def test_what_an_operator_holds_by_now_is_not_sacrificed(bench: Bench, before: bool) -> None:
    if before:
        bench.pause("b")
    decided = Sacrifice(bench.tracked("b").pod, 1, "test")
    if before:
        bench.take_over("b")
    else:
        bench.pause_by_hand("b")
    bench.apply(decided)
    assert killed(bench.folders["b"]) == set()
    assert bench.record("b").owner is Owner.MANUAL


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EACCES], ids=errno.errorcode.get)
def test_a_sacrifice_the_kernel_refuses_is_told_once_and_not_counted(bench: Bench, caplog: Log, code: int) -> None:
    bench.pause("a", "b")
    with bench.refusing("b", code, "cgroup.kill"):
        for _ in range(3):
            bench.sacrifice("b")
    assert bench.actuator.counts.sacrifices == 0
    assert len(lines(caplog, "could not sacrifice")) == 1
    bench.sacrifice("a")
    assert killed(bench.folders["a"])


def test_a_restarted_container_is_killed_too(bench: Bench) -> None:
    """The new container's id is newer than the last reading of the log folders (before 1.28: no memory.oom.group)."""
    folder = bench.folders["b"]
    old = containers(folder)[1]
    logs = bench.fake.log_dir / "containers"
    logs.mkdir(parents=True)
    (old / "memory.oom.group").write_text("0\n")
    (logs / f"b_default_main-{old.name.removeprefix('cri-containerd-').removesuffix('.scope')}.log").touch()
    bench.fake.add_pod("new")
    bench.tree.refresh(1)  # reads the names
    new = folder / f"cri-containerd-{'e' * 64}.scope"
    shutil.copytree(old, new)
    (logs / f"b_default_side-{'e' * 64}.log").touch()
    bench.pause("b")
    bench.sacrifice("b")
    assert killed(folder) == {old.name, new.name}


def test_a_sacrificed_pod_that_could_not_be_resumed_is_resumed_by_the_next_decision(bench: Bench) -> None:
    """A paused pod cannot start a process, and its killed processes end slowly."""
    bench.pause("b")
    with lock_held(bench.folders["b"]):
        bench.sacrifice("b")
    assert bench.paused() == ["b"]
    with Sampler(bench.tree) as sampler:
        decision = decide(State(), sampler.sample(now_ns()), CONFIG)
    assert [type(action) for action in decision.actions if action.pod.name == "b"] == [Resume]
