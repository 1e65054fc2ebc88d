"""A trial's pure parts: its arms' configurations, and its counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.bed.arms import nohang_config, oomd_config
from lab.bed.kubelet import JobTimes, Outcome
from lab.bed.kubepods import MIB
from lab.bed.stage import calibrate
from lab.bed.trial import main, of_jobs
from lab.vm.host import LabError

from cgpause.offline.simulate.kubelet import oom_score_adj


def test_nohangs_patience_is_scaled_and_nothing_else() -> None:
    packaged = "max_sleep = 3\nmax_soft_exit_time = 10\npost_soft_action_delay = 3\n"

    assert nohang_config(packaged, 0.05) == "max_sleep = 3\nmax_soft_exit_time = 0.5\npost_soft_action_delay = 0.15\n"
    assert "post_soft_action_delay = 0.1\n" in nohang_config(packaged, 0.01)  # nohang's smallest value
    with pytest.raises(LabError, match="post_soft_action_delay"):
        nohang_config("max_soft_exit_time = 10\n", 0.05)


def test_oomd_watches_the_capacity_it_is_told() -> None:
    text = str(oomd_config("x.slice/kubepods.slice", 400 * MIB, 0.05))

    assert "'threshold': '380M'" in text
    assert "x.slice/kubepods.slice/kubepods-burstable.slice/" in text


@pytest.mark.parametrize(
    ("request_mib", "expected"),
    [pytest.param(0, 999, id="almost-nothing"), pytest.param(16, 959, id="some"), pytest.param(384, 3, id="all")],
)
def test_oom_score_adj_is_kubelets_for_burstable(request_mib: int, expected: int) -> None:
    assert expected == oom_score_adj(request_mib * MIB, 384 * MIB)


def test_restarts_the_kernel_did_not_cause_are_the_peers() -> None:
    jobs = {"a": JobTimes(restarts=3, cpu_s=1.5, lost_cpu_s=1), "b": JobTimes(cpu_s=0.5)}
    outcome = Outcome(finished=2, total_s=9, restarts=3, oom_kills=1, lost_cpu_s=1, jobs=jobs)
    told = of_jobs(outcome, jobs=2)

    assert (told["restarts"], told["oom_kills"], told["peer_kills"]) == (3, 1, 2)
    assert (told["cpu_s"], told["lost_cpu_s"], told["timed_out"]) == (2, 1, False)
    assert of_jobs(outcome, jobs=3)["timed_out"] is True


def test_a_clock_that_stands_still_does_not_make_a_unit_of_work_endless(tmp_path: Path) -> None:
    worker = tmp_path / "worker"
    worker.write_text(
        f"#!/bin/sh\necho >>{tmp_path}/runs\nset -- 0 20000000 90 20000000 30000000\n"
        f"shift $(($(wc -l <{tmp_path}/runs) - 1))\necho $1\n"
    )
    worker.chmod(0o755)

    assert calibrate(worker, unit_cpu_ms=10) == 10_000_000


@pytest.mark.parametrize(
    "plan",
    [
        "x",
        "[]",
        '{"setting": "kubepods"}',
        '{"setting": "moon", "share": 4, "oversubscription": 1.5, "arm": "none", "seed": 1, "work": 1}',
        '{"setting": "kubepods", "share": 4, "oversubscription": 1.5, "arm": "moon", "seed": 1, "work": 1}',
        '{"setting": "kubepods", "share": 5, "oversubscription": 1.5, "arm": "none", "seed": 1, "work": 1}',
    ],
)
def test_what_is_no_plan_is_a_usage_error(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", plan]) == 2
    assert f"not a plan: {plan}" in capsys.readouterr().err
