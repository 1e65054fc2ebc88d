"""The paper's Algorithms 1 and 2, line by line (Kang & Yu 2024; the docstring of cgpause/policy/watermark.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.nodes import START_NS, TOTAL_BYTES, Node, S, names, pod, record, sample

from cgpause.config.settings import Config, HowPaused, PauseConfig, WatermarkConfig
from cgpause.core.model import Mechanism, Owner, Pause, PodUsage, Policy, Resume, Sacrifice
from cgpause.policy.watermark import WatermarkState, step, why_it_runs

RULES = WatermarkConfig(upper_pct=90, lower_pct=80, interval_s=1, patience=3, batch=2, sacrifice=True)
CONFIG = Config(policy=Policy.WATERMARK, watermark=RULES, pause=PauseConfig(max_pause_s=86400))
NOW = START_NS


def running(*currents: int) -> list[PodUsage]:
    return [PodUsage(current, pod(f"r{number}")) for number, current in enumerate(currents)]


def paused(*ages_s: float) -> list[PodUsage]:
    """Return pods paused that long ago, oldest first."""
    return [PodUsage(TOTAL_BYTES, pod(f"p{n}", paused=record(NOW - int(age * S)))) for n, age in enumerate(ages_s)]


def run(
    state: WatermarkState,
    used_pct: float,
    candidates: list[PodUsage],
    paused: list[PodUsage],
    *,
    all_paused: bool | None = None,
    rules: WatermarkConfig = RULES,
) -> tuple[WatermarkState, dict[str, list[str]]]:
    """Run one step; return the new state, and the names of pods by kind of action."""
    after, actions = step(
        state,
        sample(NOW, used_pct),
        candidates=candidates,
        paused=paused,
        all_paused=not candidates if all_paused is None else all_paused,
        config=replace(CONFIG, watermark=rules),
    )
    kinds = {"pause": Pause, "resume": Resume, "sacrifice": Sacrifice}
    return after, {word: found for word, kind in kinds.items() if (found := names(actions, kind))}


def looked(used_pct: float, intervals: int = 0, ago_s: float = 1) -> WatermarkState:
    return WatermarkState(NOW - int(ago_s * S), used_pct, intervals)


# Algorithm 1: "if usage >= Mupper: pause the R that use the least"


@pytest.mark.parametrize(
    ("used_pct", "expected"),
    [
        pytest.param(89.5, {}, id="just-below"),
        pytest.param(90, {"pause": ["r0", "r1"]}, id="at"),
        pytest.param(120, {"pause": ["r0", "r1"]}, id="over-the-limit"),
    ],
)
def test_pausing_starts_at_the_upper_mark(used_pct: float, expected: dict[str, list[str]]) -> None:
    state, done = run(WatermarkState(), used_pct, running(1, 2, 3), [])
    assert done == expected
    assert state == (WatermarkState(NOW, used_pct, 0) if expected else WatermarkState())


@pytest.mark.parametrize(("batch", "expected"), [(1, ["r0"]), (4, ["r0", "r1", "r2"])], ids=["R-1", "R-more-than-all"])
def test_r_pods_are_paused_at_a_time(batch: int, expected: list[str]) -> None:
    _, done = run(WatermarkState(), 95, running(1, 2, 3), [], rules=replace(RULES, batch=batch))
    assert done == {"pause": expected}


@pytest.mark.parametrize("all_paused", [False, True])
def test_an_empty_c_pauses_nobody_and_kills_nobody(all_paused: bool) -> None:
    """Without a pause by the daemon there is no pod to sacrifice."""
    _, done = run(WatermarkState(), 99, [], [], all_paused=all_paused)
    assert done == {}


def test_a_pause_says_why_with_its_numbers_and_mechanism() -> None:
    config = replace(CONFIG, mechanism=HowPaused.FREEZE)
    _, actions = step(
        WatermarkState(), sample(NOW, 91.5), candidates=running(5, 6, 7), paused=[], all_paused=False, config=config
    )
    first = actions[0]
    assert isinstance(first, Pause)
    assert first.reason == "memory use 91.5 % >= upper 90 %, rank 1 of 3 by memory.current"
    assert (first.memory_current_bytes, first.mechanism) == (5, Mechanism.FREEZE)


# Algorithm 2: "every interval", "if usage <= Mlower: resume all", "after T intervals without improvement: pause R more"

TOO_EARLY = looked(95, 2, ago_s=0.999)
RESUMED = {"resume": ["p0", "p1", "p2"]}
PAUSED = {"pause": ["r0", "r1"]}


@pytest.mark.parametrize(
    ("before", "used_pct", "done", "after"),
    [
        pytest.param(TOO_EARLY, 10, {}, TOO_EARLY, id="just-before-the-interval-is-over"),
        pytest.param(looked(95), 10, RESUMED, WatermarkState(), id="the-interval-is-over"),
        pytest.param(looked(95, ago_s=1.001), 10, RESUMED, WatermarkState(), id="just-after"),
        pytest.param(looked(95), 80, RESUMED, WatermarkState(), id="at-the-lower-mark"),
        pytest.param(looked(95), 80.5, {}, WatermarkState(NOW, 80.5, 0), id="above-the-lower-mark"),
        pytest.param(looked(95, 1), 95, {}, WatermarkState(NOW, 95, 2), id="T-1-intervals"),
        pytest.param(looked(95, 2), 95, PAUSED, WatermarkState(NOW, 95, 0), id="T-intervals"),
        pytest.param(looked(95, 3), 95, PAUSED, WatermarkState(NOW, 95, 0), id="T+1-intervals"),
        pytest.param(looked(95, 1), 94.5, {}, WatermarkState(NOW, 94.5, 0), id="use-fell"),
        pytest.param(looked(95, 1), 95.5, {}, WatermarkState(NOW, 95.5, 2), id="use-rose"),
    ],
)
def test_algorithm_2_acts_once_an_interval(
    before: WatermarkState, used_pct: float, done: dict[str, list[str]], after: WatermarkState
) -> None:
    assert run(before, used_pct, running(1, 2, 3), paused(3, 2, 1)) == (after, done)


# Algorithm 2: "when nothing is left to pause: remove the R paused last"


@pytest.mark.parametrize(
    ("batch", "killed"), [(1, ["p2"]), (2, ["p1", "p2"]), (3, ["p0", "p1", "p2"]), (9, ["p0", "p1", "p2"])]
)
def test_with_everything_paused_the_last_paused_are_sacrificed(batch: int, killed: list[str]) -> None:
    state, done = run(looked(95, 2), 95, [], paused(3, 2, 1), rules=replace(RULES, batch=batch))
    assert done == {"sacrifice": killed}
    assert state == WatermarkState(NOW, 95, 0)


def test_the_last_paused_are_told_by_time_not_by_memory() -> None:
    node = Node(CONFIG)
    node.add(pod("old", paused=record(NOW - 30 * S)), TOTAL_BYTES)
    node.add(pod("new", paused=record(NOW - 10 * S)), 1)
    node.add(pod("oldest", paused=record(NOW - 40 * S)), 500)
    node.state = node.state._replace(watermark=looked(95, 2))
    assert names(node.step(95).actions, Sacrifice) == ["old", "new"]


@pytest.mark.parametrize(
    ("candidates", "all_paused", "sacrifice"),
    [
        pytest.param([], True, False, id="turned-off"),
        pytest.param([], False, True, id="somebody-can-be-paused-soon"),
        pytest.param(running(1), False, True, id="somebody-can-be-paused-now"),
    ],
)
def test_nobody_is_sacrificed(candidates: list[PodUsage], all_paused: bool, sacrifice: bool) -> None:
    rules = replace(RULES, sacrifice=sacrifice)
    _, done = run(looked(95, 2), 95, candidates, paused(3), all_paused=all_paused, rules=rules)
    assert "sacrifice" not in done


@pytest.mark.parametrize(
    ("used_pct", "held_bytes", "kills"),
    [
        pytest.param(89.5, TOTAL_BYTES, False, id="just-below-the-upper-mark"),
        pytest.param(90, TOTAL_BYTES, True, id="at-the-upper-mark"),
        pytest.param(95, TOTAL_BYTES * 5 // 100, False, id="would-not-bring-it-below"),
        pytest.param(95, TOTAL_BYTES * 5 // 100 + 1, True, id="would-just-bring-it-below"),
    ],
)
def test_nobody_is_killed_where_it_would_not_help(used_pct: float, held_bytes: int, kills: bool) -> None:
    _, done = run(looked(used_pct, 2), used_pct, [], [PodUsage(held_bytes, paused(3)[0].pod)])
    assert ("sacrifice" in done) is kills


def test_a_sacrifice_says_why() -> None:
    _, actions = step(looked(95, 2), sample(NOW, 95), candidates=[], paused=paused(3), all_paused=True, config=CONFIG)
    assert actions[0].reason == ("memory use 95.0 %, no improvement for 3 intervals of 1 s, and every pod is paused")


# Beyond the paper: predecessors, operators, pods that vanish


def test_an_adopted_pause_gets_a_whole_interval_first() -> None:
    assert run(WatermarkState(), 10, running(1), paused(100)) == (WatermarkState(NOW, 10, 0), {})
    assert run(looked(10), 10, running(1), paused(100)) == (WatermarkState(), {"resume": ["p0"]})


def test_when_the_paused_pods_vanish_algorithm_1_watches_again() -> None:
    state, done = run(looked(95, 2, ago_s=0.1), 95, running(1, 2, 3), [])
    assert done == {"pause": ["r0", "r1"]}
    assert state == WatermarkState(NOW, 95, 0)
    assert run(looked(95, 2), 85, running(1), []) == (WatermarkState(), {})


def test_a_whole_story_follows_the_paper() -> None:
    """Five pods, use that never falls: pause R, T intervals, R more, T intervals, the last, T intervals, kill two."""
    node = Node(CONFIG)
    for number in range(5):
        node.add(pod(f"c{number}"), TOTAL_BYTES + number)
    story = []
    for second in range(14):
        decision = node.step(95)
        story += [(second, type(action).__name__, action.pod.uid) for action in decision.actions]
        node.at_ns += S
        if len(story) >= 7:
            break
    assert story == [
        (0, "Pause", "c0"),
        (0, "Pause", "c1"),
        (3, "Pause", "c2"),
        (3, "Pause", "c3"),
        (6, "Pause", "c4"),
        (9, "Sacrifice", "c3"),
        (9, "Sacrifice", "c4"),
    ]
    assert node.paused() == {"c0", "c1", "c2"}


def test_manual_pauses_are_neither_resumed_nor_sacrificed_nor_counted() -> None:
    node = Node(CONFIG)
    node.add(pod("manual", paused=record(NOW - 5 * S, Owner.MANUAL)))
    node.add(pod("mine"), TOTAL_BYTES)
    assert names(node.step(95).actions, Pause) == ["mine"]
    for _ in range(3):
        node.at_ns += S
        actions = node.step(95).actions
    assert names(actions, Sacrifice) == ["mine"]
    node.at_ns += S
    assert node.step(10).actions == ()
    assert node.paused() == {"manual"}


@pytest.mark.parametrize(
    ("used_pct", "text"),
    [
        (89.9, "memory use 89.9 % is below upper 90 %"),
        (90, "rank 3; 2 are paused at a time, and more after 3 intervals of 1 s without improvement"),
    ],
)
def test_it_says_why_a_pod_runs(used_pct: float, text: str) -> None:
    assert why_it_runs(3, sample(NOW, used_pct), CONFIG) == text
