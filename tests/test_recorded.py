"""A recorded node gone through again: without a daemon as it was, and with one everybody does what they did, later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import S, record, write
from simpods import cache_reader, service

from cgpause.config import Config, Policy, WatermarkConfig
from cgpause.model import CgroupId, Headroom, Mechanism, Owner, Pod, PodUsage, QosClass, Sample, Workload
from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import MIB, SimPod
from cgpause.simulate.recorded import (
    AS_RECORDED,
    SHIFT_S,
    Life,
    Point,
    RecordedNode,
    Recording,
    draw,
    simulate_recording,
)
from cgpause.simulate.worker import Work, volatile
from cgpause.trace.curves import Curve, _near
from cgpause.trace.lives import load_recording
from cgpause.trace.values import Moment, TraceError, pause_seen

FROZEN = Config(mechanism=Mechanism.FREEZE)
POLICIES = [None, Config(), Config(policy=Policy.WATERMARK, watermark=WatermarkConfig(batch=1))]


def jobs(count: int = 6, seed: int = 7, every_s: float = 2.0) -> list[SimPod]:
    limit, work = 330 * MIB, Work(1.0, 1.7e-6)
    pods = [
        SimPod(f"job-{n}", volatile(limit, 40 * MIB, 3, seed + n, work), limit_bytes=limit, start_s=1 + every_s * n)
        for n in range(count)
    ]
    return [*pods, SimPod("web", service(60 * MIB), limit_bytes=100 * MIB, workload=Workload.SERVICE)]


def crowd(seed: int) -> list[SimPod]:
    """More than there is room for, but for half of their limits."""
    return jobs(7, seed, every_s=0.7)


def node(room_mib: int, pods: Sequence[SimPod] | None = None, config: Config | None = None) -> SimNode:
    return SimNode(jobs() if pods is None else pods, config=config, kubepods_max_bytes=room_mib * MIB, cpus=16, seed=1)


def killed(pods: Sequence[SimPod]) -> list[tuple[str, int]]:
    """Who was killed how often, in the order in which they finished."""
    done = sorted((pod for pod in pods if pod.finished_s is not None), key=lambda pod: pod.finished_s or 0.0)
    return [
        (pod.name.removeprefix("default/"), pod.oom_kills) for pod in done if pod.name.removeprefix("default/") != "web"
    ]


@pytest.mark.parametrize("room_mib", [900, 950, 1000, 1250, 1500])
def test_without_a_daemon_it_goes_as_it_was_recorded(room_mib: int, tmp_path: Path) -> None:
    truth = node(room_mib)
    moments = record(truth, 60)
    recording = load_recording(write(tmp_path / "x", moments))
    again = RecordedNode(recording, None, 0)
    kills = [one.sample.at_ns for one in moments if one.oom_kills]
    off = 0
    for one in moments:
        if kills and one.sample.at_ns >= kills[0] - S:
            break  # from here on who is killed a moment sooner comes back a moment sooner
        again.pass_until(one.sample.at_ns / S)
        # When between two samples somebody came is not recorded.
        near = [other.sample.headroom for other in moments if abs(other.sample.at_ns - one.sample.at_ns) <= 1.01 * S]
        least, most = (pick(headroom.kubepods_used_bytes for headroom in near) for pick in (min, max))
        used = again.headroom.kubepods_used_bytes
        off = max(off, least - used, used - most)
    again.run(120)

    assert truth.oom_kills == recording.oom_kills
    assert (truth.oom_kills > 0) == (room_mib < 1200), "both are shown"
    assert killed(again.all_pods) == killed(truth.all_pods)
    assert off < (0.05 if kills else 0.01) * room_mib * MIB


@pytest.mark.parametrize(
    ("recorded", "config"),
    [*((None, config) for config in POLICIES), (Config(), None)],
    ids=["none to none", "none to reserve", "none to watermark", "reserve to none"],
)
def test_restarts_are_about_those_of_the_node_under_that_policy(
    recorded: Config | None, config: Config | None, tmp_path: Path
) -> None:
    """Under the reserve only leaps quicker than a sample are left, which no recording has: there are rather fewer."""
    truth = again = 0
    for seed in range(0, 600, 100):
        recording = load_recording(write(tmp_path / "x", record(node(1500, crowd(seed), recorded), 80)))
        again += simulate_recording(recording, config, 0).restarts
        there = node(1500, crowd(seed), config)
        there.run(100)
        truth += sum(pod.restarts for pod in there.all_pods)

    assert truth > 3
    assert again <= 1.35 * truth
    if config is None or config.policy is Policy.WATERMARK:
        assert again >= 0.65 * truth


def test_page_cache_is_no_memory_that_is_held(tmp_path: Path) -> None:
    """A gigabyte of it comes and goes; what is read only now and then must not look like a pod that grows."""
    pods = [SimPod("reader", cache_reader(50 * MIB, cache_bytes=40 * MIB)), *jobs(2)]
    moments = record(node(3000, pods), 40)
    seldom = []
    for number, one in enumerate(moments):
        read = moments[number - number % 10]
        known = {usage.pod.cgroup: usage.pod.reclaimable_bytes for usage in read.sample.pods}
        usages = tuple(
            PodUsage(amount, replace(pod, reclaimable_bytes=known.get(pod.cgroup, 0)))
            for amount, pod in one.sample.pods
        )
        seldom.append(replace(one, sample=replace(one.sample, pods=usages, read_at_ns=read.sample.at_ns)))
    recording = load_recording(write(tmp_path / "x", seldom))
    reader = next(life for life in recording.lives if life.name == "default/reader")

    assert moments[-1].sample.pods[0].memory_current_bytes > 500 * MIB, "there was cache"
    assert max(point.held_bytes for point in reader.curve) < 100 * MIB


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_pod_that_is_held_does_later_what_it_did(seed: int, tmp_path: Path) -> None:
    recording = load_recording(write(tmp_path / "x", record(node(1150), 60)))
    again = RecordedNode(recording, FROZEN, seed)
    again.run(300)
    lengths = {pod.name: life.length_s for life, pod in draw(recording, seed)}

    assert again.pauses > 0
    assert not [pod for pod in again.all_pods if pod.restarts]
    for pod in again.gone:
        held_s = sum(end_s - since_s for since_s, end_s in again.hold_spans(pod))
        assert pod.finished_s == pytest.approx(pod.start_s + lengths[pod.name] + held_s)


def test_what_stayed_stays_and_a_run_ends_when_all_is_done(tmp_path: Path) -> None:
    recording = load_recording(write(tmp_path / "x", record(node(1500), 60)))
    outcome = simulate_recording(recording, None, 0)
    again = RecordedNode(recording, None, 0)
    again.run(200)

    assert (outcome.pods, outcome.through, outcome.restarts) == (7, 7, 0)
    assert outcome.total_s == pytest.approx(sum(life.length_s for life in recording.lives))
    assert [pod.name for pod in again.pods] == ["default/web"]
    assert again.pods[0].held_bytes == pytest.approx(60 * MIB, rel=0.02)


def test_who_is_killed_after_all_was_done_is_not_counted_twice(tmp_path: Path) -> None:
    again = RecordedNode(load_recording(write(tmp_path / "x", record(node(1500), 30))), None, 0)
    again.run(40)
    assert again.left == 0
    again.kill(again.pods[0], "by hand")
    again.run(100)

    assert again.left == 0


@pytest.mark.parametrize("config", POLICIES, ids=["none", "reserve", "watermark"])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_seed_gives_the_same(config: Config | None, seed: int, tmp_path: Path) -> None:
    recording = load_recording(write(tmp_path / "x", record(node(1100), 60)))

    assert simulate_recording(recording, config, seed) == simulate_recording(recording, config, seed)


# --- by hand ---------------------------------------------------------------------------------------------------------

ONE, TWO = (
    Pod(CgroupId(f"burstable/uid-{n}", n), f"uid-{n}", QosClass.BURSTABLE, "default", f"p{n}", 4000 * MIB, None)
    for n in (1, 2)
)


def seen(at_s: float, amounts: dict[Pod, float], limit_mib: int = 1000, **more: object) -> Moment:
    used = int(sum(amounts.values()) * MIB)
    headroom = Headroom(64 << 30, 60 << 30, limit_mib * MIB, used)
    sample = Sample(int(at_s * S), headroom, tuple(PodUsage(int(mib * MIB), one) for one, mib in amounts.items()))
    return replace(Moment(sample), **more)  # type: ignore[arg-type]


def lives(path: Path, moments: list[Moment]) -> dict[str, Life]:
    return {life.name.removeprefix("default/"): life for life in load_recording(write(path, moments)).lives}


def shape(life: Life) -> list[tuple[float, int]]:
    return [(round(own_s, 3), round(held / MIB)) for own_s, held in life.curve]


def test_who_comes_begins_at_zero_and_who_was_there_with_what_it_had(tmp_path: Path) -> None:
    moments = [seen(t, {ONE: 300} if t < 4 or t > 7 else {ONE: 300, TWO: 50 * (t - 3)}) for t in range(12)]
    found = lives(tmp_path / "x", moments)

    assert (found["p1"].arrives_s, found["p1"].was_there, found["p1"].stays) == (0, True, True)
    assert shape(found["p1"]) == [(0, 300), (11, 300)]
    assert (found["p2"].arrives_s, found["p2"].was_there, found["p2"].ended) == (3, False, True)
    assert shape(found["p2"]) == [(0, 0), (4, 200), (5, 200)]


@pytest.mark.parametrize(("mechanism", "owner"), [("freeze", "daemon"), ("throttle", "manual")])
def test_the_time_in_which_a_pod_was_held_is_taken_out(mechanism: str, owner: str, tmp_path: Path) -> None:
    """It grows by 10 MiB a second, but from 5.5 s to 25.5 s it is held."""
    held = replace(TWO, paused=pause_seen(Mechanism(mechanism), Owner(owner), int(5.5 * S)))
    moments = [seen(t, {TWO: 10 * t}) for t in range(6)] + [seen(t, {held: 55}) for t in range(6, 26)]
    moments += [seen(t, {TWO: 10 * (t - 20)}) for t in range(26, 32)]
    recording = load_recording(write(tmp_path / "x", moments))
    (life,) = recording.lives

    assert recording.held == 1
    assert life.length_s == pytest.approx(11, abs=0.25), "throttled it has 1 % of its time"
    middle = next(point for point in life.curve if point.own_s > 5)
    assert middle.held_bytes == pytest.approx(10 * MIB * middle.own_s, abs=3 * MIB)


def killed_at(own: bool, *, goes_on: bool) -> list[Moment]:  # noqa: FBT001 - a switch of these tests alone
    """It grows by 50 MiB a second and is killed at 8 s; from 18 s on it grows again, for 14 s."""
    two = [*(50 * t for t in range(1, 8)), *([1] * 10), *((50 * t) for t in range(1, 15 if goes_on else 4))]
    kills = {TWO.cgroup: 1}
    return [seen(0, {ONE: 250})] + [
        seen(t, {ONE: 250, TWO: mib}, oom_kills=kills if t >= 8 else {}, own_ooms=kills if own and t >= 8 else {})
        for t, mib in enumerate(two, start=1)
    ]


def test_of_a_pod_that_was_killed_the_longest_life_is_what_it_does(tmp_path: Path) -> None:
    life = lives(tmp_path / "x", killed_at(own=False, goes_on=True))["p2"]

    assert shape(replace(life, curve=(*life.curve[:1], life.curve[-1]))) == [(0, 0), (14, 700)]
    assert all(a.held_bytes <= b.held_bytes for a, b in pairwise(life.curve)), "the life that was cut off is left out"


def test_a_pod_that_is_known_only_up_to_a_kill_wanted_more_than_there_was(tmp_path: Path) -> None:
    """600 MiB were used of 1000; then it does what it did after the kill."""
    moments = killed_at(own=False, goes_on=False)
    life = lives(tmp_path / "x", moments)["p2"]
    recording = load_recording(write(tmp_path / "y", moments))

    assert max(mib for _, mib in shape(life)) == 350 + 400 + 1
    assert shape(life)[-1] == (11, 150)
    assert simulate_recording(recording, None, 0).restarts > 0, "so it is killed here as well"


def test_one_that_was_killed_and_never_began_anew_ends_there(tmp_path: Path) -> None:
    moments = killed_at(own=False, goes_on=True)[:15]
    found = lives(tmp_path / "x", moments)

    assert not found["p2"].stays
    assert found["p1"].stays


def test_a_kill_at_a_pods_own_limit_is_part_of_its_curve(tmp_path: Path) -> None:
    recording = load_recording(write(tmp_path / "x", killed_at(own=True, goes_on=True)))
    life = recording.lives[1]

    assert recording.oom_kills == 0
    assert life.length_s == 31
    assert [round(mib) for own_s, mib in shape(life) if 8 <= own_s <= 17] == [1, 1]
    assert simulate_recording(recording, None, 0).restarts == 0


def test_a_limit_is_never_reached_by_what_was_only_recorded(tmp_path: Path) -> None:
    small = replace(TWO, memory_max_bytes=200 * MIB)
    recording = load_recording(write(tmp_path / "x", [seen(t, {small: min(40 * t, 200)}) for t in range(20)]))

    assert simulate_recording(recording, None, 0).restarts == 0


def test_the_longest_part_between_gaps_is_taken(tmp_path: Path) -> None:
    moments = [seen(t, {ONE: 300}) for t in range(5)] + [seen(t, {TWO: 100}) for t in range(200, 220)]
    recording = load_recording(write(tmp_path / "x", moments))

    assert (recording.stretches, recording.length_s) == (2, 19)
    assert [life.name for life in recording.lives] == ["default/p2"]


def test_what_else_is_on_the_node_takes_what_it_took(tmp_path: Path) -> None:
    """Of 1000 MiB of kubepods 980 are used, 30 by nobody; of 2000 MiB of the node 90 are left."""
    headroom = Headroom(2000 * MIB, 90 * MIB, 1000 * MIB, 980 * MIB, eviction_bytes=5 * MIB)
    usages = (PodUsage(950 * MIB, ONE),)
    moments = [Moment(Sample(t * S, headroom, usages)) for t in range(5)]
    again = RecordedNode(load_recording(write(tmp_path / "x", moments)), None, 0)
    again.run(3)

    assert again.headroom.node_available_bytes == 90 * MIB
    assert again.headroom.available_bytes == 20 * MIB
    assert again.headroom.eviction_bytes == 5 * MIB


@pytest.mark.parametrize(
    ("moments", "said"),
    [
        pytest.param([seen(0, {ONE: 5})], "no two samples without a gap", id="one sample"),
        pytest.param([seen(t, {}) for t in range(9)], "there is no pod in it", id="no pods"),
        pytest.param(
            [seen(t, {replace(ONE, paused=pause_seen(Mechanism.FREEZE, Owner.MANUAL, 0)): 5}) for t in range(9)],
            "held all the time",
            id="held",
        ),
    ],
)
def test_too_little_is_said_to_be(moments: list[Moment], said: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=said):
        load_recording(write(tmp_path / "x", moments))


def test_a_job_whose_end_was_not_seen_goes_and_a_service_stays(tmp_path: Path) -> None:
    web = replace(ONE, workload=Workload.SERVICE)
    moments = [seen(t, {web: 100, TWO: 10 * t} if t else {}) for t in range(10)]
    recording = load_recording(write(tmp_path / "x", moments))
    again = RecordedNode(recording, None, 0)
    again.run(100)

    assert [(life.ended, life.stays) for life in recording.lives] == [(False, True), (False, False)]
    assert [pod.name for pod in again.pods] == ["default/p1"]
    assert again.left == 0


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds_move_pods_and_draw_curves_among_their_kind(tmp_path: Path) -> None:
    recording = load_recording(write(tmp_path / "x", record(node(1500), 60)))
    lengths = {
        life.kind: {other.curve for other in recording.lives if other.kind == life.kind} for life in recording.lives
    }
    same, other = set(), 0
    for seed in range(1, 20):
        for before, (life, pod) in zip(recording.lives, draw(recording, seed), strict=True):
            assert abs(pod.start_s - before.arrives_s) <= SHIFT_S
            assert life.curve in lengths[before.kind]
            other += life.curve != before.curve
            same.add(pod.start_s)
    assert other > 0
    assert len(same) > 50


@pytest.mark.parametrize("seed", [0, AS_RECORDED, 7 * AS_RECORDED])
def test_every_thousandth_seed_is_the_recording_itself(seed: int, tmp_path: Path) -> None:
    recording = load_recording(write(tmp_path / "x", record(node(1500), 60)))

    assert [life for life, _ in draw(recording, seed)] == list(recording.lives)
    assert [pod.start_s for _, pod in draw(recording, seed)] == [life.arrives_s for life in recording.lives]


def test_who_was_there_keeps_its_curve() -> None:
    """Or the node might be full before anything has happened."""
    there = [
        Life(f"p{n}", 0.0, (Point(0, n * MIB), Point(10, 2 * n * MIB)), None, was_there=True, stays=True)
        for n in range(9)
    ]
    recording = Recording("x", 10.0, 1 << 30, 0, None, 0, tuple(there), 0, 0, 1)

    assert [life for life, _ in draw(recording, 1)] == there


# --- whatever comes --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0.001, 10), st.integers(0, 2000)), min_size=1, max_size=60))
def test_a_curve_is_near_everything_that_it_was_made_of(steps: list[tuple[float, int]]) -> None:
    curve, at_s, points = Curve(), 0.0, []
    for step_s, mib in steps:
        points.append(Point(at_s, mib * MIB))
        curve.add(*points[-1])
        at_s += step_s
    kept = curve.points()

    assert (kept[0], kept[-1]) == (points[0], points[-1])
    for own_s, held in points:
        after = next(number for number, point in enumerate(kept) if point.own_s >= own_s)
        a, b = kept[max(after - 1, 0)], kept[after]
        share = 1.0 if a == b else (own_s - a.own_s) / (b.own_s - a.own_s)
        assert abs(a.held_bytes + (b.held_bytes - a.held_bytes) * share - held) <= _near(held) * 1.001


amounts = st.integers(0, 900)
tracks = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.lists(st.tuples(amounts, st.sampled_from(["", "", "", "kill", "own", "hold"])), max_size=12),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=40)
@given(tracks, st.integers(0, 3), st.sampled_from(POLICIES))
def test_whatever_was_recorded_a_run_comes_to_an_end(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[int, list[tuple[int, str]]]],
    seed: int,
    config: Config | None,
) -> None:
    pods = [replace(ONE, cgroup=CgroupId(f"burstable/uid-{n}", n), uid=f"uid-{n}") for n in range(len(found))]
    moments = []
    kills, own = dict.fromkeys(pods, 0), dict.fromkeys(pods, 0)
    for t in range(20):
        there: dict[Pod, float] = {}
        for pod, (begin, steps) in zip(pods, found, strict=True):
            if not begin <= t < begin + len(steps):
                continue
            mib, what = steps[t - begin]
            kills[pod] += what in ("kill", "own")
            own[pod] += what == "own"
            paused = pause_seen(Mechanism.THROTTLE, Owner.DAEMON, int((t - 0.5) * S)) if what == "hold" and t else None
            there[replace(pod, paused=paused)] = mib
        counts = [{pod.cgroup: count for pod, count in one.items() if count} for one in (kills, own)]
        moments.append(seen(t, there, oom_kills=counts[0], own_ooms=counts[1]))
    path = tmp_path_factory.mktemp("any") / "x"
    try:
        recording = load_recording(write(path, moments))
    except TraceError:
        return
    outcome = simulate_recording(recording, config, seed)

    assert 0 <= outcome.through <= outcome.pods
    assert outcome.total_s > 0


def test_there_is_room_for_what_pods_held_though_the_host_took_much_at_another_time(tmp_path: Path) -> None:
    """Never is memory close: the host takes 8000 MiB at first, and when it has given them back a pod takes 5000."""
    pod = Pod(
        CgroupId("kubepods/podx", 7), "x", QosClass.BURSTABLE, "default", "x", None, None, workload=Workload.BATCH
    )
    moments = []
    for at_s, left_mib, held_mib in ((0, 10_000, 100), (1, 10_000, 100), (2, 9000, 5000), (3, 13_900, 100)):
        headroom = Headroom(16_000 * MIB, left_mib * MIB, None, held_mib * MIB)
        moments.append(Moment(Sample(at_s * S, headroom, (PodUsage(held_mib * MIB, pod),), at_s * S)))
    recording = load_recording(write(tmp_path / "trace", moments))
    assert recording.node_total_bytes - recording.system_bytes >= 5000 * MIB
    assert simulate_recording(recording, None, 0).restarts == 0


def test_where_the_rest_of_the_node_is_below_the_threshold_nobody_need_be_there_to_be_evicted() -> None:
    late = SimPod("late", service(10 * MIB), limit_bytes=40 * MIB, start_s=30)
    crowded = SimNode([late], config=None, kubepods_max_bytes=100 * MIB, eviction_bytes=200 * MIB)
    crowded.run(60)
    assert crowded.evicted == [late]
