"""The loop: one tick of it and of its intake, and its work on an idle node."""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.actuating import ORIGINALS, Bench
from helpers.fixtures import Patch
from helpers.nodes import S, pod, sample
from helpers.trees import damage, lock_held, pause_pod

from cgpause.config.settings import Config, MemoryHighConfig
from cgpause.core.clock import NEVER_NS
from cgpause.core.model import CpuMax, Ended, Headroom, Owner, PodUsage, Policy, Sample
from cgpause.core.parse import MemInfo
from cgpause.daemon import intake as intake_module
from cgpause.daemon import loop as loop_module
from cgpause.daemon.brake import Brake
from cgpause.daemon.distress import Distress
from cgpause.daemon.intake import Intake
from cgpause.daemon.loop import Loop
from cgpause.daemon.publisher import Publisher
from cgpause.daemon.status import Status
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Changes, Watch
from cgpause.kernel.listening import Inside
from cgpause.pods import programs
from cgpause.pods import sampler as sampler_module
from cgpause.pods.follow import Follower
from cgpause.pods.sampler import Sampler
from cgpause.pods.tracked import SPARED_S
from cgpause.pods.tree import PodTree
from cgpause.policy.decide import State
from cgpause.policy.schedule import Quiet, Schedule
from cgpause.telemetry.learned import Learned
from cgpause.telemetry.saver import Saver

START_NS = 1000 * S
MINUTES = 10


class Node:
    """The loop on a node with three pods that stand still, with a clock of its own, and the counts of its work."""

    def __init__(self, bench: Bench, watch: Watch, sampler: Sampler, root: Cgroup) -> None:
        self.ns = START_NS
        self.counts: Counter[str] = Counter()
        self._watch = watch
        self.events: list[tuple[int, int]] = []
        """Events that `poll` reports besides inotify's."""
        psi = SimpleNamespace(on_kubepods=True, follow=lambda _: None)  # an ordinary tree has no PSI
        notifier = SimpleNamespace(connected=True, watchdog_s=7.5, send=lambda *_: True, status=lambda _: None)
        follower, brake = Follower(bench.tree, root, watch), Brake(bench.tree, watch)
        distress = Distress(bench.tree, bench.actuator)
        intake = Intake(bench.tree, follower, watch, cast(Any, psi), bench.actuator, brake, distress)
        self.loop = Loop(
            cast(Any, SimpleNamespace(poll=self.poll)),
            -1,
            intake,
            sampler,
            Status(cast(Any, notifier), bench.tree, bench.actuator.counts),
            Publisher(None, intake, sampler),
            Saver(None, None, Learned()),
            State(),
            release=lambda: None,
        )
        self.loop.schedule = intake.refresh(self.loop.schedule, None, self.ns)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Report inotify's events, or let the time pass."""
        self.counts["waits"] += 1
        if self.events:
            return [self.events.pop()]
        if select.select([self._watch.fileno()], [], [], 0)[0]:
            return [(self._watch.fileno(), select.EPOLLIN)]
        self.ns += max(int(timeout_s * S), 1)
        return []

    def counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: object, **options: object) -> object:
            self.counts[name] += 1
            return function(*args, **options)

        return counted

    def run(self) -> None:
        while self.ns < START_NS + MINUTES * 60 * S:
            self.step()

    def step(self) -> None:
        changes, urgent = self.loop.wait()
        self.loop.tick(changes, urgent=urgent, stopping=False)


@pytest.fixture
def node(bench: Bench, watch: Watch, monkeypatch: Patch) -> Iterator[Node]:
    monkeypatch.setattr(sampler_module, "parse_meminfo", lambda _: MemInfo(8 << 30, 6 << 30, 8 << 30))
    monkeypatch.setattr("time.thread_time_ns", lambda: 0)
    (bench.fake.kubepods / "memory.high").write_text("max\n")
    (bench.fake.kubepods / "memory.max").write_text(f"{4 << 30}\n")
    with Sampler(bench.tree) as sampler, Cgroup(str(bench.fake.root), "") as root:
        made = Node(bench, watch, sampler, root)
        for module in (loop_module, intake_module):
            monkeypatch.setattr(module, "now_ns", lambda: made.ns)
        yield made
        made.loop.intake.brake.release("the test ends")


@pytest.mark.parametrize(
    ("tight", "claims", "looks"),
    [
        pytest.param(False, 0, False, id="plenty"),
        pytest.param(False, 2 << 30, False, id="plenty-is-left-after-new-pods"),
        pytest.param(False, (2 << 30) + 1, True, id="new-pods-may-take-it"),
        pytest.param(True, 0, True, id="tight"),
    ],
)
def test_new_containers_are_looked_into_where_memory_is_or_may_get_tight(
    bench: Bench, node: Node, monkeypatch: Patch, tight: bool, claims: int, looks: bool
) -> None:
    programs, loop, due_ns = bench.tree.programs, node.loop, START_NS + S // 100
    loop.tick(Changes(), urgent=True, stopping=False)  # status and metrics are not due again before a second is over
    loop.intake.watch.read()  # its own write to memory.high
    loop.sample, loop.headroom = None, Headroom(8 << 30, 6 << 30, 4 << 30, 1 << 30)
    loop.schedule = Schedule(START_NS + S, tight, tight_below_bytes=1 << 30)
    monkeypatch.setattr(programs, "claims_bytes", lambda: claims)
    monkeypatch.setattr(programs, "look", node.counting("looks", lambda _: True))
    programs.look_at_ns = due_ns
    loop.wait()
    assert (node.ns == due_ns) is looks
    node.ns, spent = due_ns, iter([0, S, *range(100)])
    monkeypatch.setattr("time.thread_time_ns", spent.__next__)
    loop.tick(Changes(), urgent=False, stopping=False)
    assert (node.counts["looks"] == 1) is looks
    assert (loop.sample is not None) is looks, "what has started is decided on at once"
    if looks:
        assert programs.look_at_ns == due_ns + 20 * S, "it takes a twentieth of a CPU at most"


@pytest.mark.parametrize("how", ["watermark", "without inotify"])
def test_no_container_is_looked_into_where_that_would_be_of_no_use(
    bench: Bench, node: Node, monkeypatch: Patch, how: str
) -> None:
    intake, tight = node.loop.intake, Schedule(tight=True)
    bench.tree.programs.look_at_ns = START_NS
    assert intake.look_at_ns(tight, None) == START_NS
    if how == "watermark":
        bench.tree.config = Config(policy=Policy.WATERMARK)
    else:
        monkeypatch.setattr(Watch, "degraded", True)
    assert intake.look_at_ns(tight, None) == NEVER_NS


def test_while_a_container_is_made_its_pod_is_decided_on_once_it_is_no_longer_spared(
    bench: Bench, node: Node, monkeypatch: Patch
) -> None:
    """Its program may have the name of a runtime."""
    bench.tree.programs.look_at_ns = START_NS + 9 * S
    monkeypatch.setattr(sampler_module, "parse_meminfo", lambda _: MemInfo(8 << 30, 1 << 30, 8 << 30))
    node.loop.tick(Changes(), urgent=True, stopping=False)
    assert node.loop.schedule.tight
    assert node.loop.schedule.sample_at_ns <= START_NS + int(SPARED_S * S)
    assert node.loop.schedule.quiet is None


def test_a_pod_whose_own_word_is_unread_is_decided_on_soon(bench: Bench, node: Node, monkeypatch: Patch) -> None:
    """Nothing looks into it at the daemon's start."""
    monkeypatch.setattr(programs, "inspect_pod", lambda _: Inside(runtime=False, program=True))
    monkeypatch.setattr(bench.tree.words, "is_answered", lambda _: False)
    monkeypatch.setattr(sampler_module, "parse_meminfo", lambda _: MemInfo(8 << 30, 1 << 30, 8 << 30))
    bench.tracked("a").signs.seen_ns = START_NS
    node.loop.tick(Changes(), urgent=True, stopping=False)
    assert bench.tracked("a").pod.spared_until_ns == START_NS + 1
    assert node.loop.schedule.sample_at_ns <= START_NS + int(SPARED_S * S)
    assert node.loop.schedule.quiet is None


@pytest.mark.parametrize(
    ("after_ms", "gone_mib", "due"),
    [(99, 900, False), (100, 8, False), (100, 9, True), (999, 0, False), (1000, 0, True)],
)
def test_details_are_read_sooner_while_headroom_goes(node: Node, after_ms: int, gone_mib: int, due: bool) -> None:
    """Of a pod with much page cache nothing else shows growth. An interval is a second; 8 MiB are 1/512 of 4 GiB."""
    loop = node.loop
    loop.headroom = Headroom(8 << 30, 6 << 30, 4 << 30, 1 << 30)
    loop.intake.tree.read_at_ns = loop.intake.tree.read_fully_at_ns = START_NS
    loop._details_bytes = loop.headroom.available_bytes + (gone_mib << 20)
    assert loop._are_details_due(START_NS + after_ms * S // 1000) is due


def test_which_pods_listen_is_read_once_a_second_also_while_headroom_goes(
    bench: Bench, node: Node, monkeypatch: Patch
) -> None:
    read = PodTree.read_details
    full: list[float] = []
    early: list[float] = []

    def read_details(tree: PodTree, at_ns: int, *, only_stat: bool) -> None:
        (early if only_stat else full).append((at_ns - START_NS) / S)
        read(tree, at_ns, only_stat=only_stat)

    monkeypatch.setattr(PodTree, "read_details", read_details)
    for number in range(21):
        (bench.fake.kubepods / "memory.current").write_text(f"{(2000 + 20 * number) << 20}\n")
        node.loop.schedule = node.loop.schedule._replace(tight=True)
        node.loop.tick(Changes(), urgent=True, stopping=False)
        node.ns += S // 5
    assert full == [0, 1, 2, 3, 4]
    assert early == [0.4, 0.8, 1.4, 1.8, 2.4, 2.8, 3.4, 3.8]


def test_a_sample_has_the_time_at_which_memory_is_read(bench: Bench, node: Node, monkeypatch: Patch) -> None:
    """A refresh before it may wait half a second for a disk; in that time pods grow."""

    def slow(function: Callable[..., Any], ns: int) -> Callable[..., Any]:
        def slowly(*args: object, **options: object) -> object:
            node.ns += ns
            return function(*args, **options)

        return slowly

    take, taken, saved = Sampler.sample, [], []

    def sample(sampler: Sampler, at_ns: int, *, late_ns: int, **options: Any) -> Sample:  # noqa: ANN401
        taken.append((at_ns, late_ns))
        return take(sampler, at_ns, late_ns=late_ns, **options)

    monkeypatch.setattr(Intake, "take_in", slow(Intake.take_in, S // 2))
    monkeypatch.setattr(Distress, "scan", slow(Distress.scan, S // 4))
    monkeypatch.setattr(Sampler, "sample", sample)
    monkeypatch.setattr(Saver, "tick", lambda _, at_ns, *__: saved.append(at_ns))
    bench.tree.ended.append(Ended(bench.tracked("a").pod.cgroup, "default/a", 5))
    node.loop.schedule = Schedule(sample_at_ns=2000 * S)  # an event comes first

    node.loop.tick(Changes(), urgent=True, stopping=False)

    assert taken == [(START_NS + 3 * S // 4, 3 * S // 4)]
    assert saved == [START_NS + 3 * S // 4], "the figures reach up to this sample"
    assert bench.tree.ended == [], "each end counts once"


@pytest.mark.parametrize(
    ("enabled", "waits"),
    [
        pytest.param(True, 12 * MINUTES, id="the-kernel-wakes-the-daemon"),
        pytest.param(False, 40 * MINUTES, id="the-daemon-samples-every-two-seconds"),
    ],
)
def test_an_idle_node_costs_little(bench: Bench, node: Node, monkeypatch: Patch, *, enabled: bool, waits: int) -> None:
    """A thread wakes the daemon six times: one every ten seconds trebled the wake-ups of an idle daemon."""
    bench.tree.config = Config(memory_high=MemoryHighConfig(enabled=enabled))
    for owner, name in ((node.loop.sampler, "sample"), (bench.tree, "refresh"), (threading.Thread, "start")):
        monkeypatch.setattr(owner, name, node.counting(name, getattr(owner, name)))
    node.run()

    assert node.loop.schedule.asleep is enabled
    most = {"waits": waits, "sample": MINUTES + 3, "refresh": 2, "start": 2}
    assert {name: (node.counts[name], bound) for name, bound in most.items() if node.counts[name] > bound} == {}


def test_a_daemon_that_sleeps_wakes_up_when_its_psi_trigger_is_lost(node: Node) -> None:
    """Root can write 0 to cgroup.pressure; then the tripwire would stall the pods and wake nobody."""
    node.run()
    node.ns += S  # so long after a refresh the next one need not wait
    loop, asleep_ns = node.loop, node.ns
    assert loop.schedule.asleep
    assert loop.schedule.sample_at_ns > asleep_ns
    psi: Any = loop.intake.psi
    psi.on_event = lambda *_: False
    psi.on_kubepods = False
    psi.follow = node.counting("followed", quiet)
    node.events.append((99, select.EPOLLERR))
    node.step()
    assert node.ns == asleep_ns
    assert node.counts["followed"] == 1, "the trigger is armed again if that is possible"
    assert loop.sample is not None
    assert loop.sample.at_ns == asleep_ns
    assert not loop.schedule.asleep


def test_asleep_it_looks_once_a_second_at_a_pod_whose_attributes_are_not_watched(bench: Bench, node: Node) -> None:
    tracked, pod = bench.tracked("b"), bench.folders["b"]
    containers = [pod / "one", pod / "two"]
    for container in containers:
        container.mkdir()
    node.run()
    node.loop.intake.watch.add_pod(tracked.cgroup, paused=False)
    for number in range(200):
        containers[number % 2].chmod(0o755)
    node.step()
    assert node.loop.schedule.asleep

    pause_pod(Path(bench.tree.root), pod, Owner.MANUAL)
    node.step()
    assert tracked.pod.paused is not None
    assert node.ns <= START_NS + MINUTES * 60 * S + 2 * S


def test_a_locked_record_is_tried_again_within_seconds(bench: Bench, node: Node, monkeypatch: Patch) -> None:
    """Far from the limit a decision comes once a minute."""
    monkeypatch.setattr("cgpause.daemon.actuate.now_ns", lambda: node.ns)
    monkeypatch.setattr("cgpause.daemon.actuate.original_from_systemd", lambda _: CpuMax(50000, 100000))
    node.run()
    node.loop.intake.watch.add_pod(bench.tracked("b").cgroup, paused=False)
    begun_ns = node.ns
    damage(pause_pod(Path(bench.tree.root), bench.folders["b"]))
    with lock_held(bench.folders["b"]):
        while node.ns < begun_ns + 10 * S:
            node.step()
    assert bench.tracked("b").damaged
    while node.ns < begun_ns + 14 * S:
        node.step()
    assert (bench.tracked("b").damaged, bench.cpu_max()) == (False, ORIGINALS)


def quiet(*_: object, **__: object) -> None:
    """Do nothing, in place of a part of the loop."""


def resting_loop(
    bounds: tuple[int, int], headroom: Callable[[], Headroom], *, stalls: bool = False, sleep_ns: int | None = None
) -> Loop:
    """Return a loop that has sampled a second ago; its sampler gives these bounds and this headroom."""
    part: Any = SimpleNamespace(apply=quiet, stalls=stalls)
    sampler: Any = SimpleNamespace(
        headroom_bounds=lambda: bounds, headroom=headroom, kubepods=SimpleNamespace(current_bytes=0)
    )
    actuator: Any = SimpleNamespace(retry_at_ns=NEVER_NS)
    psi = SimpleNamespace(on_kubepods=True)
    intake: Any = SimpleNamespace(brake=part, psi=psi, actuator=actuator, sleep_ns=lambda *_: sleep_ns)
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


def test_a_retry_that_is_due_does_not_wait_for_the_headroom_to_change() -> None:
    loop = resting_loop((60, 65), lambda: Headroom(1000, 62, None, 0))
    loop.schedule = Schedule(quiet=AT_REST)
    loop.intake.actuator.retry_at_ns = 1001 * S
    assert loop._try_keep(1001 * S - 1)
    assert not loop._try_keep(1001 * S)


def test_a_daemon_that_sleeps_while_memory_is_tight_plans_its_next_sample() -> None:
    """It sleeps although memory is tight if every pod is protected; without a new time the loop would spin."""
    loop = resting_loop((60, 60), lambda: Headroom(1000, 60, None, 0), sleep_ns=30 * S)
    loop.schedule = Schedule(quiet=AT_REST, tight=True, asleep=True, tight_below_bytes=55)

    assert loop._try_keep(1001 * S)
    assert loop.schedule.sample_at_ns == 1031 * S
