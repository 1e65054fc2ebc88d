"""The lab's pure parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.bed.daemon_process import DaemonLog
from lab.bed.kubelet import count_oom_kills
from lab.bed.kubepods import MIB, PodSpec, Tier, make_uid, pod_slice, scope_name
from lab.demo.report import Arm, Daemon, Machine, Plan, Restored, Result, broken_claims, render, to_json

from cgpause.core import cgroup_names
from cgpause.kernel import logfmt
from cgpause.offline.simulate.kubelet import Backoff


@pytest.mark.parametrize(
    ("scale", "runs_s", "waits_s"),
    [
        pytest.param(1, [1] * 8, [1, 10, 20, 40, 80, 160, 300, 300], id="doubles-up-to-five-minutes"),
        pytest.param(0.05, [1] * 4, [0.05, 0.5, 1.0, 2.0], id="scales"),
        pytest.param(1, [1, 1, 599.9], [1, 10, 20], id="just-below-ten-minutes"),
        pytest.param(1, [1, 1, 600.0], [1, 10, 1], id="begins-anew-after-ten-minutes"),
        pytest.param(0.05, [1, 1, 30.0], [0.05, 0.5, 0.05], id="begins-anew-after-ten-scaled-minutes"),
    ],
)
def test_backoff_is_kubelets(scale: float, runs_s: list[float], waits_s: list[float]) -> None:
    backoff = Backoff(scale=scale)

    assert [backoff.after_kill(ran_s) for ran_s in runs_s] == waits_s


@pytest.mark.parametrize(
    ("events", "kills"),
    [
        pytest.param({"oom": 1, "oom_kill": 2, "oom_group_kill": 1}, 1, id="group-kill-counts-its-process-twice"),
        pytest.param({"oom": 1, "oom_kill": 3}, 3, id="kernel-without-group-counter"),
        pytest.param({}, 0, id="nothing"),
    ],
)
def test_oom_kills_are_counted_once_each(events: dict[str, int], kills: int) -> None:
    assert kills == count_oom_kills(events)


@pytest.mark.parametrize("tier", list(Tier))
def test_the_trees_names_are_those_cgpause_knows(tier: Tier) -> None:
    uid = make_uid("a", 1)
    spec = PodSpec("job-01", uid, 32 * MIB, tier)
    path = pod_slice(spec)

    assert uid == cgroup_names.pod_uid(path.name)
    assert len(path.parts) == (1 if tier is Tier.GUARANTEED else 2)
    if tier is not Tier.GUARANTEED:
        assert cgroup_names.tier_class(path.parts[0]) is not None
    assert cgroup_names.container_id(scope_name("0" * 64)) == "0" * 64


def test_the_daemons_log_is_counted_as_it_is_written() -> None:
    log = DaemonLog()
    paused = logfmt.fields(pod="demo/a", uid="u1", reason='memory "use" >= upper')
    for line in (
        "info: started version=0.1.0",
        f"info: paused {paused}",
        "<6>paused pod=demo/b uid=u2 reason=x",
        "info: resumed pod=demo/a uid=u1 paused_s=1.5 reason=y",
        "info: asserted again pod=demo/b uid=u2",
        "warning: sacrificed pod=demo/b uid=u2",
        "",
    ):
        log.take(line)

    assert (log.started, log.pauses, log.resumes, log.sacrifices) == (True, 2, 1, 1)
    assert (log.ended_pauses, log.paused_s) == ([("u1", 1.5)], [1.5])
    assert {"u2"} == log.paused_now


def make_result() -> Result:
    """Return a demo result that confirms all claims."""
    arm = Arm(30, 60.0, 26, 26, 12.5, 10.0, 20.0, Restored(30))
    return Result(
        plan=Plan(),
        machine=Machine("6.1.0", "in a VM, emulated (TCG)", 2),
        work=1000,
        without=arm,
        with_cgpause=replace(arm, total_s=48.0, oom_kills=2, restarts=2, lost_cpu_s=0.5),
        daemon=Daemon(120, 210.0, 6.1, 0, 0, 8, Restored(18)),
        seconds=120.0,
    )


def test_nothing_fails_when_every_claim_holds() -> None:
    assert broken_claims(make_result()) == []
    assert to_json(make_result())["ok"] is True


@pytest.mark.parametrize(
    ("part", "changes", "says"),
    [
        pytest.param("without", {"finished": 29}, "all 30 jobs finish", id="unfinished-without"),
        pytest.param("with_cgpause", {"finished": 29}, "all 30 jobs finish", id="unfinished-with"),
        pytest.param("without", {"oom_kills": 0, "restarts": 0}, "OOM-killed", id="no-pressure"),
        pytest.param("with_cgpause", {"restarts": 26}, "fewer restarts", id="no-fewer-restarts"),
        pytest.param("with_cgpause", {"ended": Restored(30, ("job-07",))}, "job-07", id="wrong-at-end"),
        pytest.param("daemon", {"after_stop": Restored(18, ("stop-02",))}, "stop-02", id="wrong-after-stop"),
        pytest.param("daemon", {"after_stop": Restored(0)}, "after the daemon stopped", id="nobody-to-look-at"),
        pytest.param("daemon", {"paused_at_stop": 0}, "while pods were paused", id="paused-none"),
        pytest.param("daemon", {"pauses": 0}, "paused a pod", id="no-pauses"),
        pytest.param("daemon", {"exit_code": 6}, "exits with 0", id="exit-code"),
    ],
)
def test_each_broken_claim_is_named(part: str, changes: dict[str, object], says: str) -> None:
    result = make_result()
    result = replace(result, **{part: replace(getattr(result, part), **changes)})

    broken = broken_claims(result)

    assert any(says in text for text in broken)
    assert to_json(result)["ok"] is False
    assert f"FAILED: {broken[0]}" in render(result)
