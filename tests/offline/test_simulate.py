"""The simulation: its jobs and its kubelet match the experiment's, and runs are reproducible."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest
from helpers.fixtures import Patch
from helpers.nodes import S
from helpers.trees import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.bed import stage
from lab.measure.policy_loads import leak

from cgpause.config.settings import Config, ThrottleConfig
from cgpause.core.memory_units import MIB
from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord, Sacrifice, Sample
from cgpause.offline.simulate.cluster import Cluster
from cgpause.offline.simulate.engine import START_S
from cgpause.offline.simulate.load import Jobs, Load, Machine, make_pods
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import PAGE, SimPod, Step, fill
from cgpause.offline.simulate.run import simulate
from cgpause.offline.simulate.worker import OVERHEAD_BYTES, job_seeds, splitmix64, volatile
from cgpause.pods.programs import LOOK_NS
from cgpause.policy.decide import Decision, State

SMALL = Load(
    "small",
    Machine(capacity_bytes=384 * MIB, cpus=1, page_s=50e-6, make_s=0.01, backoff_scale=0.2),
    oversubscription=1.5,
    jobs=(Jobs("job", 17, 48 * MIB, 6 * MIB, rounds=3, unit_s=0.2),),
)


def test_splitmix64_gives_the_published_numbers() -> None:
    """The reference implementation (Vigna, splitmix64.c) gives these numbers for the seed 1234567."""
    assert list(islice(splitmix64(1234567), 5)) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_jobs_have_the_seeds_that_the_experiment_gives_them() -> None:
    load = stage.Load(jobs=5, limit_bytes=48 * MIB, unit_bytes=6 * MIB, rounds=3, work=1, seed=7)
    seeds = [int(job.argv[-1]) for job in stage.make_jobs(load, Path("worker"))]
    assert job_seeds(7, 5) == seeds


@given(st.integers(0, 2**63 - 1), st.integers(4, 2048), st.integers(1, 16))
def test_a_job_holds_half_of_its_limit_and_never_reaches_it(seed: int, limit_mib: int, units: int) -> None:
    limit = limit_mib * MIB
    held, peak, least = 0.0, 0.0, float(limit)
    steps = list(volatile(Jobs("job", 1, limit, limit // units, rounds=3, unit_s=0.2), SMALL.machine, seed)())
    for step in steps:
        held += step.grow_bytes - step.free_bytes
        peak, least = max(peak, held), min(least, held)
    assert held == least == limit // 2 // PAGE * PAGE
    assert peak <= limit - OVERHEAD_BYTES
    assert sum(step.free_bytes > 0 or step == Step() for step in steps) == 3, "each round gives back what it took"


def short(name: str, request_mib: int, cpu_s: float) -> SimPod:
    return SimPod(name, lambda: iter([fill(MIB), Step(cpu_s=cpu_s)]), request_bytes=request_mib * MIB)


def test_a_job_that_fits_nowhere_waits_and_so_do_those_behind_it() -> None:
    large, larger, small = short("large", 60, 5), short("larger", 70, 1), short("small", 10, 1)
    node = SimNode([], config=None, cpus=4)
    Cluster([node], [large, larger, small], 100 * MIB).run(START_S + 100)
    assert [pod.waiting_s for pod in (large, larger, small)] == [0, pytest.approx(5, abs=0.01), larger.waiting_s]


@pytest.mark.parametrize("config", [None, Config()], ids=["none", "reserve"])
def test_a_node_may_have_more_than_a_terabyte(config: Config | None) -> None:
    half = 1 << 39
    pods = [SimPod(str(number), lambda: iter([fill(half)]), limit_bytes=half + MIB) for number in range(4)]
    node = SimNode(pods, config=config, kubepods_max_bytes=5 * half, cpus=4)
    node.run(400)
    assert [pod.finished_s is not None for pod in pods] == [True] * 4
    assert node.oom_kills == 0
    assert not any(node.pause_spans(pod) for pod in pods)


def test_no_time_passes_after_the_last_job() -> None:
    service = SimPod("service", lambda: iter([Step(cpu_s=99)]), request_bytes=60 * MIB, lasts_s=20.0)
    nodes = [SimNode([], config=None) for _ in range(2)]
    Cluster(nodes, [service, short("job", 60, 5)], 100 * MIB).run(START_S + 100)
    assert [node.now_s - START_S for node in nodes] == [pytest.approx(5, abs=0.01)] * 2


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0.1, 50)), min_size=1, max_size=20), st.integers(1, 3))
def test_no_more_is_ever_admitted_than_fits_and_all_jobs_finish(jobs: list[tuple[int, float]], count: int) -> None:
    pods = [short(str(number), request, cpu_s) for number, (request, cpu_s) in enumerate(jobs)]

    class Node(SimNode):
        def add(self, pod: SimPod) -> None:
            super().add(pod)
            assert sum(pod.request_bytes or 0 for pod in self.admitted) <= 100 * MIB

    nodes = [Node([], config=None) for _ in range(count)]
    Cluster(nodes, pods, 100 * MIB).run(START_S + 3600)
    assert all(pod.finished_s is not None for pod in pods)
    assert sum(len(node.gone) for node in nodes) == len(pods)
    assert sum(cpu_s for _, cpu_s in jobs) == pytest.approx(sum(pod.cpu_s for pod in pods), rel=0.01)


def test_nobody_is_hurried_or_killed_where_limits_fit() -> None:
    outcome = simulate(replace(SMALL, oversubscription=1.0), None, seed=1)
    assert (outcome.finished, outcome.restarts, outcome.lost_cpu_s) == (17, 0, 0)
    # One CPU, and kubelet uses it for each container.
    assert outcome.total_s == pytest.approx(outcome.cpu_s + 17 * 0.01, abs=1e-6)


@pytest.mark.parametrize(("frees_after_s", "killed"), [(0.44, []), (0.46, ["keeper"])])
def test_a_kill_comes_only_after_18_attempts_to_reclaim(frees_after_s: float, killed: list[str]) -> None:
    """Each attempt looks into two pods, 10 ms each, so all of them take 0.36 s of the CPU time of the pod that asks."""
    keeper = SimPod("keeper", lambda: iter([fill(60 * MIB), Step(cpu_s=frees_after_s), Step(50 * MIB, cpu_s=9)]))
    asks = SimPod("asks", lambda: iter([fill(50 * MIB), Step(cpu_s=1)]), start_s=0.1)
    node = SimNode([keeper, asks], config=None, kubepods_max_bytes=100 * MIB, cpus=2, reclaim_s=0.01)
    node.run(0.6)
    assert [pod.name for pod in (keeper, asks) if pod.oom_kills] == killed
    assert asks.used_bytes == pytest.approx(50 * MIB), "it goes on where it was"
    node.run(5)
    assert asks.cpu_s == pytest.approx(1.38, abs=0.01)


def test_a_throttled_pod_has_the_configured_quota_and_is_no_faster_than_one_cpu() -> None:
    quotas = (1001, 20_000, 80_000, 10**5, 10**6)
    *parts, one, ten = (simulate(SMALL, Config(throttle=ThrottleConfig(quota_us=quota)), seed=1) for quota in quotas)
    assert len({outcome.total_s for outcome in parts}) == len(parts) == 3
    assert all(outcome.pauses for outcome in parts)
    assert one == ten


def test_a_run_that_is_given_up_counts_what_has_run_and_waited_so_far() -> None:
    outcome = simulate(replace(SMALL, timeout_s=5.0), None, seed=1)
    assert (outcome.finished, outcome.total_s) == (0, 5)
    assert 0 < outcome.running_max_s <= 5
    assert (outcome.jobs, outcome.groups[0].pods) == (17, 12)
    assert outcome.waiting_max_s == 5, "five were never admitted"


def test_a_frozen_pod_goes_on_only_after_the_resume() -> None:
    """Its sleep ends meanwhile, as a timer does, but its program frees memory and ends only when it runs."""
    steps = [fill(20 * MIB), Step(sleep_s=1.0), Step(free_bytes=20 * MIB, sleep_s=1.0)]
    pod = SimPod("pod", lambda: iter(steps), limit_bytes=30 * MIB)
    node = SimNode([pod], config=None, kubepods_max_bytes=100 * MIB)
    node.run(0.5)
    assert pod.facts is not None
    running = pod.facts
    record = PauseRecord(Mechanism.FREEZE, Owner.DAEMON, "test", 0, None, CpuMax(None, 100_000), 0, None)
    pod.facts = replace(running, paused=record)
    node.engine.regroup(pod)
    node.run(5)
    assert pod.used_bytes == pytest.approx(20 * MIB)
    pod.facts = running
    node.engine.regroup(pod)
    assert pod.used_bytes == 0
    node.run(0.9)
    assert pod.finished_s is None
    node.run(0.2)
    assert pod.finished_s == pytest.approx(6.5)


def test_a_back_off_counts_as_far_as_the_run_goes() -> None:
    slow = replace(SMALL.machine, backoff_scale=20.0)
    runs = [simulate(replace(SMALL, machine=slow, timeout_s=seconds), None, seed=1) for seconds in (18.0, 19.0)]
    assert [run.restarts for run in runs] == [2, 2]
    first_s, longer_s = (run.waiting_mean_s * run.jobs for run in runs)
    queued = [run.jobs - run.groups[0].pods for run in runs]
    assert queued[0] == queued[1]
    assert longer_s == pytest.approx(first_s + 2 + queued[0]), "each that waits does so for one second more"


def test_pods_are_made_anew_for_each_run() -> None:
    first, second = make_pods(SMALL, 1), make_pods(SMALL, 1)
    assert not {id(pod.backoff) for pod in first} & {id(pod.backoff) for pod in second}
    assert [pod.name for pod in first] == [pod.name for pod in second]


def test_in_back_off_there_is_nothing_to_sacrifice(monkeypatch: Patch) -> None:
    def later(sample: Sample) -> bool:
        return sample.at_ns > (START_S + 0.5) * 1e9

    def kill_who_holds_nothing(state: State, sample: Sample, _: Config) -> Decision:
        killed = tuple(Sacrifice(pod, 0, "test") for current, pod in sample.pods if current == 0 and later(sample))
        return Decision(state, killed, 300_000_000, tight=False, tight_below_bytes=0)

    pod = SimPod("greedy", lambda: iter([fill(20 * MIB)]))
    monkeypatch.setattr("cgpause.offline.simulate.daemon.decide", kill_who_holds_nothing)
    node = SimNode([pod], config=Config(), kubepods_max_bytes=10 * MIB)
    node.run(9)
    assert (pod.oom_kills, pod.sacrifices, pod.waiting_s) == (2, 0, 11)


def test_a_pod_is_spared_while_it_waits_for_its_next_container() -> None:
    """The daemon sees that no program of it runs (`PodTree.check_programs`)."""
    pod = SimPod("pod", leak(100 * MIB, 1e9), limit_bytes=200 * MIB)
    node = SimNode([pod], config=Config(), kubepods_max_bytes=1000 * MIB)
    node.run(5)
    for count, backoff_s in enumerate((1, 10)):
        node.kill(pod)
        assert pod.facts is not None
        assert pod.facts.no_program, count
        node.run(backoff_s + 0.01)
        assert not pod.facts.no_program, count


@pytest.mark.parametrize("look_ns", [LOOK_NS, 10 * S], ids=["seen", "too-late"])
def test_pods_that_start_on_an_empty_node_are_seen_before_they_fill_it(monkeypatch: Patch, look_ns: int) -> None:
    """The next sample would come two seconds later."""
    monkeypatch.setattr("cgpause.offline.simulate.daemon.LOOK_NS", look_ns)
    pods = [
        SimPod(f"pod-{n}", lambda: iter([fill(300 * MIB, 1.0)]), limit_bytes=400 * MIB, start_s=1 + n / 10)
        for n in range(6)
    ]
    node = SimNode(pods, config=Config(), kubepods_max_bytes=1000 * MIB)
    node.run(60)
    assert any(pod.oom_kills for pod in pods) is (look_ns > LOOK_NS)
    assert all(pod.finished_s is not None for pod in pods)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_nothing_is_simulated_any_longer_once_the_command_has_ended(how: signal.Signals, tmp_path: Path) -> None:
    """The command leaves no process that would compute for minutes, however it ends."""
    workload = tmp_path / "long.toml"
    workload.write_text(
        "[nodes]\ncpus = 2\noversubscription_pct = 150\n[[jobs]]\nname = 'j'\ncount = 9000\nlimit_mib = 2048\n"
    )
    # A shell starts background jobs with SIGINT ignored.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    interruptible = f"{listen}; from cgpause.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", interruptible, "simulate", str(workload), "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        began = psutil.Process(command.pid)

        def both_compute() -> bool:
            assert command.poll() is None, "it ended by itself"
            return sum(child.cpu_times().user > 0 for child in began.children()) >= 2

        try:
            wait_until(both_compute, "two processes that compute", 120)
            children = began.children()
            command.send_signal(how)
            assert command.wait(timeout=120) != 0
        finally:
            command.kill()
    gone, left = psutil.wait_procs(children, timeout=120)
    assert left == []
    assert len(gone) == len(children)
