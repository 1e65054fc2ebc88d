"""A replay repeats the policy's decisions and reports kills as recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.simpods import service, worker
from helpers.traces import MIB, S, make_pod, moment, written
from hypothesis import given
from hypothesis import strategies as st

from cgpause.config.settings import Config, HowPaused, WatermarkConfig
from cgpause.core.model import Action, Freeze, Owner, PodUsage, Policy, Sample
from cgpause.offline.simulate.node import SimNode
from cgpause.offline.simulate.pods import SimPod
from cgpause.offline.trace.estimate import Track, estimate
from cgpause.offline.trace.keeper import Keeper, ReplayPause
from cgpause.offline.trace.replay import replay
from cgpause.policy.decide import Decision, State
from cgpause.telemetry.trace.read import Trace, load_trace
from cgpause.telemetry.trace.values import TracedSample, pause_seen

T0 = 1_000_000_000.0
"""Unix time at which the recordings of `written` begin."""
CONFIGS = {
    Policy.RESERVE: Config(),
    Policy.WATERMARK: Config(policy=Policy.WATERMARK, watermark=WatermarkConfig(sacrifice=False)),
}
by_policy = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def saved(path: Path, moments: Sequence[TracedSample]) -> Trace:
    path.write_text("".join(written(moments)))
    return load_trace(str(path))


def simulated(config: Config, *, limit_mib: int, seed: int = 1) -> tuple[list[TracedSample], list[Decision], SimNode]:
    """Return the simulated daemon's samples with kill counts, its decisions, and the node."""
    moments: list[TracedSample] = []
    decisions: list[Decision] = []

    def observe(sample: Sample, _: State, decision: Decision) -> None:
        kills = {pod.facts.cgroup: pod.oom_kills for pod in node.pods if pod.facts is not None and pod.oom_kills}
        moments.append(TracedSample(sample, kills))
        decisions.append(decision)

    pods = [
        SimPod(f"job-{n}", worker(330 * MIB, seed=seed + n), limit_bytes=330 * MIB, start_s=0.4 * n) for n in range(6)
    ]
    pods.append(SimPod("web", service(60 * MIB), limit_bytes=100 * MIB))
    node = SimNode(pods, config=config, kubepods_max_bytes=limit_mib * MIB, cpus=2, seed=seed, observe=observe)
    node.run(90)
    return moments, decisions, node


def done(decision: Decision) -> list[tuple[str, str]]:
    return [(type(action).__name__, action.pod.uid) for action in decision.actions]


@by_policy
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_decides_as_the_daemon_did_until_a_pod_was_paused(config: Config, seed: int, tmp_path: Path) -> None:
    moments, decisions, _ = simulated(config, limit_mib=1500, seed=seed)
    first = next(number for number, decision in enumerate(decisions) if decision.actions)
    paused = {uid for what, uid in done(decisions[first]) if what == "Pause"}
    assert paused, "a pod was paused, or this shows nothing"
    # Replay only up to the decision: later samples come from a node on which these pods were paused.
    outcome = replay(saved(tmp_path / "x", moments[: first + 1]), config)

    assert {pause.pod.removeprefix("default/") for pause in outcome.pauses} == paused
    at_s = T0 + (moments[first].sample.at_ns - moments[0].sample.at_ns) / S
    assert [pause.start_s for pause in outcome.pauses] == pytest.approx([at_s] * len(paused), abs=1e-5)


@by_policy
def test_where_no_pod_has_to_be_paused_none_is(config: Config, tmp_path: Path) -> None:
    moments, decisions, _ = simulated(config, limit_mib=8000)
    assert not [decision for decision in decisions if decision.actions]
    trace = saved(tmp_path / "x", moments)
    outcome, guess = replay(trace, config), estimate(trace, config)

    assert (outcome.decisions, outcome.pauses, outcome.kills) == (len(moments), (), ())
    assert (guess.pauses, guess.ends_with_kill) == ((), False)
    assert guess.lowest_bytes == guess.recorded_lowest_bytes, "without a pause it is the record"


def test_a_node_that_nobody_watched_is_replayed_under_each_policy(tmp_path: Path) -> None:
    """The recording daemon pauses no pod, because its thresholds are out of reach."""
    nobody = Config(policy=Policy.WATERMARK, watermark=WatermarkConfig(upper_pct=100, lower_pct=99, interval_s=60))
    moments, _, node = simulated(nobody, limit_mib=1500)
    assert node.oom_kills > 0, "the load is too much for the node"
    trace = saved(tmp_path / "x", moments)
    outcome = replay(trace, Config())
    guess = estimate(trace, Config())

    killed = [kill for kill in outcome.kills if not kill.own_limit]
    assert sum(kill.count for kill in killed) == node.oom_kills
    assert killed[0].lead_s is not None
    assert killed[0].lead_s > 0
    assert killed[0].paused > 0
    assert killed[0].spared_bytes > 0
    assert guess.ends_with_kill
    assert guess.until_s == pytest.approx(killed[0].at_s)
    assert guess.last_bytes > guess.recorded_last_bytes


# --- by hand ---------------------------------------------------------------------------------------------------------


ONE, TWO = (make_pod(n, name=f"p{n}", memory_max_bytes=4000 * MIB) for n in (1, 2))
MARKS = Config(policy=Policy.WATERMARK, watermark=WatermarkConfig(upper_pct=80, lower_pct=50, batch=1, sacrifice=False))


def filling(kill: bool = True) -> list[TracedSample]:  # noqa: FBT001, FBT002 - a switch of this test alone
    """Return moments: one stays at 300 MiB, two grows from 400 MiB by 50 MiB/s, and is killed at 8 s if `kill`."""
    found = [moment(t, {ONE: 300, TWO: 400 + 50 * t}) for t in range(8)]
    if kill:
        found += [moment(t, {ONE: 300, TWO: 10}, oom_kills={TWO.cgroup: 1}) for t in range(8, 12)]
    return found


def test_a_kill_is_told_with_the_pods_that_were_paused_and_grew(tmp_path: Path) -> None:
    outcome = replay(saved(tmp_path / "x", filling()), MARKS)

    (kill,) = outcome.kills
    assert (kill.at_s, kill.pod, kill.count, kill.own_limit) == (T0 + 8, "default/p2", 1, False)
    # Use reaches 80 % (800 MiB) at 2 s: the policy pauses the smaller pod then, and the other after three intervals.
    assert (kill.lead_s, kill.paused) == (6.0, 2)
    assert (kill.grew, kill.grew_bytes) == ("default/p2", 350 * MIB)
    assert kill.grew_paused_s == kill.paused_s == pytest.approx(3.0)
    assert kill.spared_bytes == 100 * MIB, "from 650 MiB at 5 s to 750 MiB at the last sample before the kill"
    pauses = [(pause.pod, pause.start_s - T0, pause.end_reason) for pause in outcome.pauses]
    assert pauses[0][:2] == ("default/p1", 2.0)
    assert pauses[1] == ("default/p2", 5.0, "a process in it was OOM-killed")
    assert outcome.forewarned == 1


def test_pauses_before_another_kill_are_not_counted_twice(tmp_path: Path) -> None:
    once = {TWO.cgroup: 1}
    again = [moment(t, {ONE: 300, TWO: 550}, oom_kills=once) for t in range(9, 14)]
    again += [moment(14, {ONE: 300, TWO: 550}, oom_kills={TWO.cgroup: 2})]
    outcome = replay(saved(tmp_path / "x", [*filling()[:9], *again]), MARKS)

    assert [kill.at_s - T0 for kill in outcome.kills] == [8, 14]
    first, second = outcome.kills
    assert first.lead_s == 6.0
    assert second.lead_s is not None
    assert 0 < second.lead_s <= 6.0, "from the first kill at most"


@pytest.mark.parametrize(("calm_s", "lead_s"), [(20, 25.0), (40, None)])
def test_pauses_belong_together_unless_no_pod_is_paused_for_long(
    calm_s: int, lead_s: float | None, tmp_path: Path
) -> None:
    full = [moment(t, {ONE: 300, TWO: 550}) for t in range(5)]
    calm = [moment(5 + t, {ONE: 300, TWO: 10}) for t in range(calm_s)]
    kill = moment(5 + calm_s, {ONE: 300, TWO: 5}, oom_kills={TWO.cgroup: 1})
    (found,) = replay(saved(tmp_path / "x", [*full, *calm, kill]), MARKS).kills

    assert found.paused == 0
    assert found.lead_s == lead_s


def test_a_kill_at_a_pods_own_limit_is_told_apart(tmp_path: Path) -> None:
    moments = [moment(0, {ONE: 100}), moment(1, {ONE: 5}, oom_kills={ONE.cgroup: 2}, own_ooms={ONE.cgroup: 1})]
    trace = saved(tmp_path / "x", moments)

    (kill,) = replay(trace, MARKS).kills
    assert (kill.count, kill.own_limit, kill.lead_s) == (2, True, None)
    assert replay(trace, MARKS).forewarned == 0
    assert not estimate(trace, MARKS).ends_with_kill, "nobody could have prevented it, and the others did not notice"


def test_counts_from_before_the_record_are_no_kills(tmp_path: Path) -> None:
    trace = saved(tmp_path / "x", [moment(t, {ONE: 100}, oom_kills={ONE.cgroup: 7}) for t in range(3)])

    assert replay(trace, MARKS).kills == ()


def test_an_estimate_lets_paused_pods_stand_still(tmp_path: Path) -> None:
    frozen = replace(MARKS, mechanism=HowPaused.FREEZE)
    guess = estimate(saved(tmp_path / "x", filling()), frozen)

    # Frozen at 5 s with 650 MiB, it does not take the 100 MiB by which it grows in the record until 7 s.
    assert guess.last_bytes - guess.recorded_last_bytes == 100 * MIB
    assert (guess.until_s, guess.ends_with_kill) == (T0 + 8, True)
    assert [pause.pod for pause in guess.pauses] == ["default/p1", "default/p2"]


def test_a_pod_that_stood_still_is_there_for_longer(tmp_path: Path) -> None:
    """The estimate frees the pod's memory later than the record does."""
    grows = [moment(t, {ONE: 300, TWO: 400 + 50 * t}) for t in range(8)]
    ends = [moment(t, {ONE: 300}) for t in range(8, 20)]
    soon = estimate(saved(tmp_path / "x", [*grows, *ends[:1]]), MARKS)
    assert soon.last_bytes < 700 * MIB, "p2 is still there"
    guess = estimate(saved(tmp_path / "y", [*grows, *ends]), MARKS)
    assert guess.last_bytes <= guess.recorded_last_bytes


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([0.0, 0.01, 1.0])), min_size=1))
def test_of_a_record_what_lies_behind_its_pod_is_not_kept(steps: list[tuple[int, int, float]]) -> None:
    """Each step: seconds that pass, the pod's use after them, and the share of its full speed that it had meanwhile."""
    track, at_ns = Track(), 0
    whole: list[tuple[int, PodUsage]] = []
    for passed_s, amount, share in steps:
        at_ns += passed_s * S
        track.lag_ns += int(passed_s * S * (1 - share)) if whole else 0
        whole.append((at_ns, PodUsage(amount, ONE)))
        track.add(*whole[-1])

        own_ns = at_ns - track.lag_ns
        assert track.then(at_ns) == [usage for when, usage in whole if when <= own_ns][-1]
        assert len(track) <= 1 + sum(when > own_ns for when, _ in whole)


def test_a_gap_ends_all_pauses_and_is_no_time(tmp_path: Path) -> None:
    trace = saved(tmp_path / "x", [*filling(kill=False), *(moment(t, {ONE: 300, TWO: 400}) for t in range(500, 503))])
    outcome = replay(trace, MARKS)

    assert {pause.end_reason for pause in outcome.pauses} == {"the record has a gap"}
    assert {pause.end_s for pause in outcome.pauses} == {T0 + 7}


def test_pauses_of_the_recording_daemon_are_not_the_replays(tmp_path: Path) -> None:
    paused = replace(TWO, paused=pause_seen(MARKS.mechanism.first, Owner.DAEMON, 0))
    mine = replace(ONE, paused=pause_seen(MARKS.mechanism.first, Owner.MANUAL, 0))
    full = [moment(t, {mine: 300, paused: 550}) for t in range(5)]
    outcome = replay(saved(tmp_path / "x", full), MARKS)

    assert [(pause.pod, pause.start_s) for pause in outcome.pauses] == [("default/p2", T0)], (
        "the other one is an operator's"
    )


def test_containers_that_change_end_a_pause(tmp_path: Path) -> None:
    changed = replace(TWO, changed_at_ns=100 * S)
    moments = [*filling(kill=False), moment(8, {ONE: 300, changed: 760})]
    outcome = replay(saved(tmp_path / "x", moments), MARKS)

    ended: list[ReplayPause] = [pause for pause in outcome.pauses if pause.end_reason == "its containers changed"]
    assert [pause.pod for pause in ended] == ["default/p2"]


def test_growth_that_the_record_has_is_no_reason_to_freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    done: list[Action] = []
    apply = Keeper.apply

    def noted(keeper: Keeper, actions: Sequence[Action], *rest: Any) -> None:  # noqa: ANN401 - passed on
        done.extend(actions)
        apply(keeper, actions, *rest)

    monkeypatch.setattr(Keeper, "apply", noted)
    trace = saved(tmp_path / "x", [moment(t / 4, {ONE: 450 + 9 * t, TWO: 400 + 9 * t}) for t in range(16)])

    assert replay(trace, config).pauses
    assert not any(isinstance(action, Freeze) and action.grew for action in done)
