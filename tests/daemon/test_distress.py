"""Reasons that end a pod's pause early."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from unittest import mock

import pytest
from helpers.actuating import THROTTLE, Bench
from helpers.daemons import NO_SACRIFICE, Start, pause_web
from helpers.fixtures import Patch
from helpers.nodes import MS, S
from helpers.refusals import unreadable
from helpers.trees import FakeTree, cpu_max, lock_held, wait_until

from cgpause.config.settings import PodClass
from cgpause.core.clock import NEVER_NS, now_ns
from cgpause.daemon.distress import Distress
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.processes import TICK_NS, ResumeReason
from cgpause.policy.limits import CONTAINERS_CHANGED


@pytest.fixture
def distress(bench: Bench) -> Distress:
    return Distress(bench.tree, bench.actuator)


def test_a_container_that_starts_ends_its_pods_pause_whatever_other_pods_do(tree: FakeTree, start: Start) -> None:
    """Another pod changes attributes all the time."""
    containers = [path for path in tree.add_pod("noisy").iterdir() if path.is_dir()]
    pod, daemon = pause_web(tree, start, NO_SACRIFICE + "settle_s = 3600\n")  # once resumed, it is not paused again
    said = "attributes of a pod not watched any more"

    def flood() -> bool:
        for number in range(1000):
            containers[number % 2].chmod(0o755)
        return said in daemon.log

    wait_until(flood, said)
    flood()
    (pod / f"cri-containerd-{'c' * 64}.scope").mkdir()
    daemon.wait_for_log('reason="its containers changed"')
    assert cpu_max(pod) == "max 100000"
    assert daemon.log.count(said) == 1


def test_a_pod_that_loses_many_children_to_oom_kills_is_resumed_three_times(bench: Bench, distress: Distress) -> None:
    """A throttled pod can make such children to get itself resumed again and again."""
    believed = []
    for kills in range(1, 5):
        bench.pause("b")
        (bench.folders["b"] / "memory.events").write_text(f"oom_kill {kills}\n")
        believed.append(distress.check_oom(bench.tracked("b"), kills * S))
        bench.resume("b")
    assert believed == [True, True, True, False]


def test_a_pod_resumed_in_distress_is_not_paused_again_at_once(tree: FakeTree, start: Start) -> None:
    pod, daemon = pause_web(tree, start, NO_SACRIFICE + "min_run_s = 3600\n")

    (pod / "memory.events").write_text("oom 1\noom_kill 1\n")
    daemon.wait_for_log('reason="a process in it was OOM-killed"')

    # A new pod makes the daemon refresh and decide again.
    tree.add_pod("witness")
    daemon.wait_for_log("pod appeared pod=default/witness")
    assert daemon.log.count(" paused pod=default/web") == 1
    assert cpu_max(pod) == "max 100000"


def test_without_inotify_a_container_that_starts_in_a_running_pod_is_seen(bench: Bench, distress: Distress) -> None:
    """Otherwise its own word would never be read, and it would not be spared while it is made."""
    tracked = bench.tracked("b")
    distress.scan(100 * S, unwatched=True)
    (bench.folders["b"] / f"cri-containerd-{'c' * 64}.scope").mkdir()
    distress.scan(105 * S, unwatched=True)
    assert tracked.pod.changed_at_ns == 0, "the containers of a running pod are listed every 10 s"
    distress.scan(111 * S, unwatched=True)
    assert tracked.pod.changed_at_ns == 111 * S
    distress.scan(122 * S, unwatched=True)
    assert tracked.pod.changed_at_ns == 111 * S


@pytest.mark.parametrize("lost", [True, False], ids=["events-were-lost", "without-inotify"])
def test_a_container_that_no_event_reports_ends_the_pause(bench: Bench, distress: Distress, lost: bool) -> None:
    """Otherwise kubelet's start of the container hangs, and the runtime's process in it is taken for a probe."""
    tracked, container = bench.tracked("b"), bench.folders["b"] / f"cri-containerd-{'c' * 64}.scope"
    if lost:
        bench.pause("b")
    distress.scan(100 * S, unwatched=not lost)
    container.mkdir()
    if lost:
        distress.note_lost_events(101 * S)
    else:
        bench.pause("b")
    distress.scan(101 * S, unwatched=not lost)
    assert tracked.pod.distress == CONTAINERS_CHANGED
    assert tracked.pod.changed_at_ns == 101 * S


@pytest.mark.parametrize("paused", [True, False])
def test_a_container_that_an_event_has_reported_is_not_taken_for_another_after_lost_events(
    bench: Bench, distress: Distress, paused: bool
) -> None:
    tracked = bench.tracked("b")
    tracked.descendants(99 * S)
    (bench.folders["b"] / f"cri-containerd-{'c' * 64}.scope").mkdir()
    distress.on_containers(tracked, 100 * S, removed=False)
    if paused:
        bench.pause("b")
    distress.note_lost_events(101 * S)
    distress.scan(101 * S, unwatched=False)
    assert (tracked.pod.distress, tracked.pod.changed_at_ns) == (None, 100 * S)


@pytest.mark.parametrize("trouble", ["locked", "unreadable"])
def test_a_scan_soon_answers_a_drift_that_was_not_answered(bench: Bench, distress: Distress, trouble: str) -> None:
    """Until the next refresh, a minute later, the pod would run."""
    bench.pause("b")
    locked, refused = lock_held(bench.folders["b"]), mock.patch.object(Cgroup, "read", unreadable)
    troubled: AbstractContextManager[object] = locked if trouble == "locked" else refused
    with troubled:
        bench.drift(1)
    assert bench.cpu_max()[1] == "30000 100000"
    retry_at_ns = bench.actuator.retry_at_ns
    assert retry_at_ns <= now_ns() + S
    distress.scan(retry_at_ns, unwatched=False)
    assert (bench.cpu_max()[1], bench.actuator.counts.drifts) == (str(THROTTLE), 1)
    assert bench.actuator.retry_at_ns == NEVER_NS


def test_after_lost_events_words_are_read_and_programs_looked_for_again(
    bench: Bench, distress: Distress, monkeypatch: Patch
) -> None:
    tracked = bench.tracked("b")
    tracked.pod = replace(tracked.pod, no_program=True)
    asked: list[str] = []
    monkeypatch.setattr(bench.tree.words, "request", lambda pod: asked.append(pod.path))
    for at_s, times in ((11, 1), (12, 1), (20, 1), (21, 2), (32, 2)):
        if at_s < 20:
            distress.note_lost_events(at_s * S)
        distress.scan(at_s * S, unwatched=False)
        assert asked.count(tracked.cgroup.path) == times, "at most every ten seconds"
    assert not tracked.pod.no_program


def test_a_pod_that_refuses_its_own_connections_is_resumed_three_times(
    bench: Bench, distress: Distress, monkeypatch: Patch
) -> None:
    refused = iter(range(100))
    monkeypatch.setattr("cgpause.daemon.distress.refused_connections", lambda _: next(refused))
    tracked, resumed = bench.tracked("b"), []
    tracked.signs.started_ns = 100 * S
    for at_s in range(101, 121, 5):
        bench.pause("b")
        for later_s in range(2):
            distress.scan((at_s + later_s) * S, unwatched=False)
        resumed.append(tracked.pod.distress)
        bench.resume("b")
    assert resumed == [ResumeReason.REFUSED] * 3 + [None]


@pytest.mark.parametrize(("at_ns", "probed"), [(3 * S - 1, False), (3 * S, True)], ids=["hook", "probe"])
def test_a_process_from_outside_right_after_the_start_may_be_a_poststart_hook(
    bench: Bench, distress: Distress, monkeypatch: Patch, at_ns: int, probed: bool
) -> None:
    bench.pause("b")
    tracked = bench.tracked("b")
    tracked.signs.started_ns = 100 * S
    monkeypatch.setattr(tracked.processes, "find_reason", lambda *_, **__: ResumeReason.VISITED)
    distress.scan(100 * S + at_ns, unwatched=False)
    assert tracked.pod.distress == ResumeReason.VISITED
    assert tracked.signs.probed is probed


@pytest.mark.parametrize(("age_ms", "later_ns"), [(99, TICK_NS), (100, 0)])
def test_the_program_of_a_pod_paused_at_its_start_is_no_visitor(
    bench: Bench, distress: Distress, monkeypatch: Patch, age_ms: int, later_ns: int
) -> None:
    """The start of a process is known to a hundredth of a second."""
    bench.pause("b")
    tracked, found = bench.tracked("b"), []
    assert tracked.pod.paused is not None
    paused_ns = tracked.pod.paused.since_ns
    tracked.pod = replace(tracked.pod, changed_at_ns=paused_ns - age_ms * MS)
    monkeypatch.setattr(tracked.processes, "find_reason", lambda _, __, since_ns, **___: found.append(since_ns))
    distress.scan(paused_ns + S, unwatched=False)
    assert found == [paused_ns + later_ns]


@pytest.mark.parametrize(
    ("started_s", "seen_s", "at_s", "looks_s", "ruled", "resumed"),
    [
        pytest.param(100, 50, 399, 1, PodClass.AUTO, True, id="a-slow-start"),
        pytest.param(100, 50, 401, 1, PodClass.AUTO, False, id="no-start-takes-so-long"),
        pytest.param(0, 100, 399, 5, PodClass.AUTO, True, id="there-when-the-daemon-started"),
        # On the host's network they are connections to anyone.
        pytest.param(100, 50, 399, 1, PodClass.BATCH, False, id="a-rule-calls-it-batch"),
    ],
)
def test_a_batch_pod_that_refuses_connections_may_become_a_service(
    bench: Bench,
    distress: Distress,
    monkeypatch: Patch,
    started_s: int,
    seen_s: int,
    at_s: int,
    looks_s: int,
    ruled: PodClass,
    resumed: bool,
) -> None:
    refused = iter(range(100))
    monkeypatch.setattr("cgpause.daemon.distress.refused_connections", lambda _: next(refused))
    bench.pause("b")
    tracked = bench.tracked("b")
    tracked.signs.given_class = ruled
    tracked.signs.started_ns, tracked.signs.seen_ns = started_s * S, seen_s * S
    for before_s in range(looks_s, 0, -1):
        distress.scan((at_s - before_s) * S, unwatched=False)
    assert tracked.pod.distress is None, "the first reading is the base"
    distress.scan(at_s * S, unwatched=False)
    assert tracked.pod.distress == (str(ResumeReason.REFUSED) if resumed else None)
