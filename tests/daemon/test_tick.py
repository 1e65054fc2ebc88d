"""One tick of the loop and of its intake, with parts that the test replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.actuating import Bench
from helpers.fixtures import Patch
from helpers.nodes import S, pod, sample

from cgpause.config.settings import Config
from cgpause.core.model import Headroom, PodUsage, Sample
from cgpause.core.pod_names import Names
from cgpause.daemon import loop as loop_module
from cgpause.daemon.distress import Distress
from cgpause.daemon.intake import Intake
from cgpause.daemon.loop import Loop
from cgpause.kernel.inotify import Changes, PodChange
from cgpause.pods.refresh_times import RefreshTimes
from cgpause.pods.tracked import TrackedPod
from cgpause.policy.decide import State
from cgpause.policy.schedule import Quiet, Schedule


class Clock:
    """The loop's clock, which only the test moves."""

    def __init__(self) -> None:
        self.ns = 1000 * S

    def __call__(self) -> int:
        return self.ns


def quiet(*_: object, **__: object) -> None:
    """Do nothing, in place of a part of the loop."""


def test_a_sample_has_the_time_at_which_memory_is_read(monkeypatch: Patch) -> None:
    """A refresh before it may wait half a second for a disk; in that time pods grow."""
    clock, taken, late = Clock(), [], []
    monkeypatch.setattr(loop_module, "now_ns", clock)

    def take_in(_: Changes, schedule: Schedule, *__: object) -> tuple[Schedule, bool]:
        clock.ns += S // 2
        return schedule, True

    def scan(*_: object, **__: object) -> None:
        clock.ns += S // 4

    def read(at_ns: int, *, late_ns: int, **__: object) -> Sample:
        taken.append(at_ns)
        late.append(late_ns)
        return sample(at_ns, 10, [PodUsage(1, pod("a"))])

    times: list[int] = []
    saver = SimpleNamespace(tick=lambda at_ns, *_: times.append(at_ns))
    part = SimpleNamespace(tick=quiet, apply=quiet, due_ns=0)
    intake = SimpleNamespace(
        tree=SimpleNamespace(
            config=Config(),
            classifier=SimpleNamespace(kinds=None, expects_program=False),
            look_for_programs=quiet,
            is_use_unknown=quiet,
            ended=["taken in"],
        ),
        take_in=take_in,
        distress=SimpleNamespace(scan=scan),
        watch=SimpleNamespace(degraded=False),
        actuator=SimpleNamespace(apply=quiet, counts=SimpleNamespace(ticks=SimpleNamespace(observe=quiet))),
        brake=part,
        psi=SimpleNamespace(on_kubepods=True),
        sleep_ns=quiet,
    )
    sampler = SimpleNamespace(
        sample=read, kubepods=SimpleNamespace(current_bytes=0), follow_kubelet=lambda _, **__: False
    )
    parts = {name: cast(Any, part) for name in ("epoll", "status", "publisher")}
    parts["saver"] = cast(Any, saver)
    loop = Loop(**parts, signals=0, intake=cast(Any, intake), sampler=cast(Any, sampler), state=State(), release=quiet)

    loop.schedule = Schedule(sample_at_ns=2000 * S)  # an event comes first

    loop.tick(Changes(), urgent=False, stopping=False)

    assert taken == [1000 * S + 3 * S // 4]
    assert late == [3 * S // 4]
    assert times == taken, "the figures reach up to this sample"
    assert intake.tree.ended == []


def resting_loop(
    bounds: tuple[int, int], headroom: Callable[[], Headroom], *, stalls: bool = False, sleep_ns: int | None = None
) -> Loop:
    """Return a loop that has sampled a second ago; its sampler gives these bounds and this headroom."""
    part: Any = SimpleNamespace(apply=quiet, stalls=stalls)
    sampler: Any = SimpleNamespace(glance=lambda: bounds, headroom=headroom, kubepods=SimpleNamespace(current_bytes=0))
    intake: Any = SimpleNamespace(brake=part, psi=SimpleNamespace(on_kubepods=True), sleep_ns=lambda *_: sleep_ns)
    loop = Loop(part, 0, intake, sampler, part, part, part, State(), release=quiet)
    loop.sample = sample(1000 * S, 60, [PodUsage(1, pod("a"))])
    return loop


AT_REST = Quiet(50, 70, until_ns=1002 * S, next_sample_ns=S // 4)


@pytest.mark.parametrize(
    ("bounds", "exact", "stalls", "tight", "rests", "reads"),
    [
        pytest.param((60, 65), 62, False, True, True, 0, id="the-bounds-are-enough"),
        pytest.param((60, 65), 62, True, True, True, 1, id="the-airbag-may-have-to-be-lifted"),
        pytest.param((60, 65), 62, False, False, True, 1, id="memory-high-has-to-follow-for-a-minute"),
        pytest.param((40, 65), 62, False, True, True, 1, id="page-cache-is-headroom-too"),
        pytest.param((40, 45), 40, False, True, False, 1, id="much-of-the-headroom-is-taken"),
        pytest.param((60, 80), 80, False, True, False, 1, id="a-paused-pod-might-be-resumed"),
    ],
)
def test_the_headroom_is_read_in_full_only_if_its_bounds_do_not_suffice(
    bounds: tuple[int, int], exact: int, stalls: bool, tight: bool, rests: bool, reads: int
) -> None:
    read: list[int] = []

    def headroom() -> Headroom:
        read.append(exact)
        return Headroom(1000, exact, None, 0)

    loop = resting_loop(bounds, headroom, stalls=stalls)
    loop.schedule = Schedule(quiet=AT_REST, tight=tight)

    assert loop._try_keep(1001 * S) is rests
    assert len(read) == reads
    assert loop.schedule.sample_at_ns == (1001 * S + S // 4 if rests else 0)


def test_a_daemon_that_sleeps_while_memory_is_tight_plans_its_next_sample() -> None:
    """It sleeps although memory is tight if every pod is protected; without a new time the loop would spin."""
    loop = resting_loop((60, 60), lambda: Headroom(1000, 60, None, 0), sleep_ns=30 * S)
    loop.schedule = Schedule(quiet=AT_REST, tight=True, asleep=True, tight_below_bytes=55)

    assert loop._try_keep(1001 * S)
    assert loop.schedule.sample_at_ns == 1031 * S


def intake_of(bench: Bench, times: RefreshTimes) -> Intake:
    """Return an intake whose brake could let the daemon sleep for 30 s."""
    part: Any = SimpleNamespace(answer_drift=quiet, on_kubepods=True, sleep_ns=lambda _: 30 * S)
    follower: Any = SimpleNamespace(times=times)
    distress = Distress(bench.tree, bench.actuator)
    return Intake(bench.tree, follower, part, part, bench.actuator, part, distress)


def take_in_containers(
    bench: Bench, tracked: TrackedPod, times: RefreshTimes, schedule: Schedule | None = None
) -> Schedule:
    """Take in that the containers of a pod have changed; the next refresh was due in a quarter of an hour."""
    times.due_ns = 900 * S
    changes = Changes(pods={tracked.cgroup.id: PodChange.CONTAINERS})
    return intake_of(bench, times).take_in(changes, schedule or Schedule(), None, 5 * S)[0]


@pytest.mark.parametrize(("tight", "due_ns"), [(False, 7 * S), (True, 5 * S + S // 10)])
def test_a_new_container_ends_the_daemons_sleep(bench: Bench, tight: bool, due_ns: int) -> None:
    """Two large pods part ways before the tripwire would wake the daemon."""
    asleep = Schedule(sample_at_ns=30 * S, tight=tight, asleep=True, quiet=Quiet(1, 2, 30 * S, S))
    after = take_in_containers(bench, bench.tracked("b"), RefreshTimes(), asleep)
    assert after == Schedule(sample_at_ns=due_ns, tight=tight)


@pytest.mark.parametrize(("at_ns", "sleep_ns"), [(1000 * S, 30 * S), (1060 * S, None), (1120 * S, 30 * S)])
def test_the_daemon_does_not_sleep_for_a_minute_after_a_container_has_started(
    bench: Bench, at_ns: int, sleep_ns: int | None
) -> None:
    tracked, intake = bench.tracked("b"), intake_of(bench, RefreshTimes())
    if at_ns > 1000 * S:
        tracked.pod = replace(tracked.pod, changed_at_ns=1060 * S)
    assert intake.sleep_ns(Headroom(1000, 500, None, 0), at_ns) == sleep_ns
    bench.tree.classifier.expects_program = True
    assert intake.sleep_ns(Headroom(1000, 500, None, 0), at_ns) is None, "its start is no event"


def test_the_limit_of_a_pod_is_read_again_when_it_gets_a_container(bench: Bench) -> None:
    """After a reboot, the pod's name is known at once, and kubelet sets its limit after its cgroup appeared."""
    tracked = bench.tracked("b")
    (bench.folders["b"] / "memory.max").write_text("4096\n")
    take_in_containers(bench, tracked, RefreshTimes())
    assert tracked.pod.memory_max_bytes == 4096


def test_a_pod_without_a_name_is_looked_up_again_when_it_gets_a_container(bench: Bench) -> None:
    """kubelet makes its log folder after its cgroup and before its sandbox."""
    tracked, times = bench.tracked("b"), RefreshTimes()
    take_in_containers(bench, tracked, times)
    assert times.due_ns == 900 * S, "its name is known"

    tracked.pod, bench.tree.names = replace(tracked.pod, name=None), Names({}, {})
    take_in_containers(bench, tracked, times)
    assert times.due_ns == 5 * S
