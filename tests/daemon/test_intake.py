"""What the daemon takes in before it samples: changes of containers, records and marks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.actuating import Bench
from helpers.nodes import S
from helpers.trees import pause_pod

from cgpause.core.model import CgroupId, Headroom, Owner
from cgpause.core.pod_names import Names
from cgpause.daemon.distress import Distress
from cgpause.daemon.intake import Intake
from cgpause.kernel.inotify import Changes, PodChange
from cgpause.pods.refresh_times import RefreshTimes
from cgpause.pods.tracked import TrackedPod
from cgpause.policy.schedule import Quiet, Schedule


def intake_of(bench: Bench, times: RefreshTimes, noisy: Iterable[CgroupId] = ()) -> Intake:
    """Return an intake whose brake could let the daemon sleep for 30 s."""
    part: Any = SimpleNamespace(answer_drift=lambda *_, **__: None, on_kubepods=True, sleep_ns=lambda _: 30 * S)
    part.take_noisy, part.degraded = lambda _: set(noisy), False
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
    bench.tree.programs.must_check = True
    assert intake.sleep_ns(Headroom(1000, 500, None, 0), at_ns) is None, "its start is no event"


def test_record_and_marks_of_a_pod_whose_attributes_are_not_watched_are_read(bench: Bench) -> None:
    tracked, times = bench.tracked("b"), RefreshTimes()
    times.due_ns = 900 * S
    noisy: set[CgroupId] = set()
    intake = intake_of(bench, times, noisy)
    pause_pod(Path(bench.tree.root), bench.folders["b"], Owner.MANUAL)
    intake.take_in(Changes(), Schedule(), None, 5 * S)
    assert tracked.pod.paused is None
    noisy.add(tracked.cgroup.id)
    asleep = Schedule(asleep=True, quiet=Quiet(1, 2, 30 * S, S))
    schedule, _ = intake.take_in(Changes(), asleep, None, 6 * S)
    assert tracked.pod.paused is not None
    assert (schedule.asleep, schedule.quiet) == (False, None)
    os.setxattr(bench.folders["b"], "user.cgpause.protect", b"1")
    intake.take_in(Changes(), Schedule(), None, 7 * S)
    assert tracked.pod.protected is not None, "an operator's mark counts as soon"


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
