"""A trial's pure parts: its load, its arms' configurations, and its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.bed.arms import ARMS, Setting, cgpause_config, nohang_config, oomd_config
from lab.bed.kubelet import JobTimes, Outcome
from lab.bed.kubepods import MIB
from lab.bed.stage import make_jobs
from lab.bed.trial import JOBS, Plan, capacity_bytes, load_of, main, of_jobs
from lab.vm.host import LabError

from cgpause.config.load import parse_config
from cgpause.config.settings import Config, HowPaused
from cgpause.core.model import Policy
from cgpause.offline.simulate.kubelet import oom_score_adj

PLAN = Plan(setting=Setting.KUBEPODS, share=16, oversubscription=1.5, arm="none", seed=1, work=1000)


@pytest.mark.parametrize("share", list(JOBS))
def test_the_load_is_the_papers(share: int) -> None:
    load = load_of(replace(PLAN, share=share), 384 * MIB)

    assert load.limit_bytes == 384 * MIB // share
    assert load.unit_bytes * 8 == load.limit_bytes
    assert load.jobs == {16: 33, 8: 17, 4: 8}[share]


def test_every_arm_has_the_same_jobs_for_a_seed() -> None:
    jobs = {arm: make_jobs(load_of(replace(PLAN, arm=arm), 384 * MIB), Path("w")) for arm in ARMS}

    assert all(jobs["none"] == others for others in jobs.values())


@pytest.mark.parametrize(
    ("changes", "available_mib", "expected_mib"),
    [
        pytest.param({}, 1300, 384, id="kubepods"),
        pytest.param({"capacity_mib": 256}, 1300, 256, id="kubepods-as-asked"),
        pytest.param({"setting": Setting.NODE}, 428, 384, id="node-less-a-rest"),
        pytest.param({"setting": Setting.NODE}, 684, 384, id="node-with-ballast"),
    ],
)
def test_capacity_is_what_can_be_allotted(changes: dict[str, object], available_mib: int, expected_mib: int) -> None:
    plan = replace(PLAN, **changes)  # type: ignore[arg-type]

    assert expected_mib * MIB == capacity_bytes(plan, available_mib * MIB)


@pytest.mark.parametrize(
    ("changes", "available_mib"),
    [
        pytest.param({}, 400, id="kubepods"),
        pytest.param({"arm": "unlimited"}, 600, id="unlimited-needs-what-limits-add-up-to"),
        pytest.param({"setting": Setting.NODE}, 427, id="node"),
        pytest.param({"setting": Setting.NODE}, 685, id="node-that-ballast-would-fill"),
    ],
)
def test_a_machine_that_does_not_fit_is_refused(changes: dict[str, object], available_mib: int) -> None:
    with pytest.raises(LabError, match="available memory"):
        capacity_bytes(replace(PLAN, **changes), available_mib * MIB)  # type: ignore[arg-type]


def test_the_stock_arm_has_the_defaults() -> None:
    assert parse_config(cgpause_config("stock"), "stock") == Config()


def test_the_watermark_arm_has_the_papers_parameters() -> None:
    config = parse_config(cgpause_config("watermark"), "watermark")
    marks = config.watermark

    assert (config.policy, config.mechanism, config.memory_high.enabled) == (
        Policy.WATERMARK,
        HowPaused.THROTTLE,
        False,
    )
    assert (marks.upper_pct, marks.lower_pct, marks.interval_s, marks.patience, marks.batch) == (90, 80, 1, 3, 2)
    assert config.throttle.quota_us == 1000


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
    jobs = {
        "a": JobTimes(waiting_s=1, running_s=2, restarts=3, cpu_s=1.5, lost_cpu_s=1),
        "b": JobTimes(waiting_s=3, running_s=4, cpu_s=0.5),
    }
    told = of_jobs(Outcome(finished=2, total_s=9, restarts=3, oom_kills=1, lost_cpu_s=1, jobs=jobs), jobs=2)

    assert (told["restarts"], told["oom_kills"], told["peer_kills"]) == (3, 1, 2)
    assert (told["waiting_mean_s"], told["waiting_max_s"], told["running_mean_s"]) == (2, 3, 3)
    assert (told["cpu_s"], told["lost_cpu_s"], told["timed_out"]) == (2, 1, False)


def test_a_trial_that_did_not_finish_timed_out() -> None:
    outcome = Outcome(finished=1, total_s=9, restarts=0, oom_kills=0, lost_cpu_s=0, jobs={"a": JobTimes()})

    assert of_jobs(outcome, jobs=2)["timed_out"] is True


def test_an_arm_without_meaning_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    words = ["run", "--setting", "node", "--share", "16", "--oversub", "1.5", "--arm", "unlimited", "--seed", "1"]

    assert main([*words, "--work", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "unlimited has no meaning in the setting node" in said.err
