"""The work of a daemon on an idle node, in ten minutes of a clock that only the wait for the next due time moves."""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.actuating import Bench
from helpers.fixtures import Patch
from helpers.nodes import S

from cgpause.config.settings import Config, MemoryHighConfig
from cgpause.core.parse import MemInfo
from cgpause.daemon import intake as intake_module
from cgpause.daemon import loop as loop_module
from cgpause.daemon.brake import Brake
from cgpause.daemon.distress import Distress
from cgpause.daemon.intake import Intake
from cgpause.daemon.learned import Learned
from cgpause.daemon.loop import Loop
from cgpause.daemon.publisher import Publisher
from cgpause.daemon.saver import Saver
from cgpause.daemon.status import Status
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.pods import sampler as sampler_module
from cgpause.pods.follow import Follower
from cgpause.pods.sampler import Sampler
from cgpause.policy.decide import State

START_NS = 1000 * S
MINUTES = 10


class IdleNode:
    """The loop on a node with three pods that stand still, and the counts of its work."""

    def __init__(self, bench: Bench, watch: Watch, sampler: Sampler, root: Cgroup) -> None:
        self.ns = START_NS
        self.counts: Counter[str] = Counter()
        self._watch = watch
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
            changes, urgent = self.loop.wait()
            self.loop.tick(changes, urgent=urgent, stopping=False)


@pytest.mark.parametrize(
    ("enabled", "waits"),
    [
        pytest.param(True, 12 * MINUTES, id="the-kernel-wakes-the-daemon"),
        pytest.param(False, 40 * MINUTES, id="the-daemon-samples-every-two-seconds"),
    ],
)
def test_an_idle_node_costs_little(
    bench: Bench, watch: Watch, monkeypatch: Patch, *, enabled: bool, waits: int
) -> None:
    """A thread wakes the daemon six times: one every ten seconds trebled the wake-ups of an idle daemon."""
    monkeypatch.setattr(sampler_module, "parse_meminfo", lambda _: MemInfo(8 << 30, 6 << 30, 8 << 30))
    (bench.fake.kubepods / "memory.high").write_text("max\n")
    (bench.fake.kubepods / "memory.max").write_text(f"{4 << 30}\n")
    bench.tree.config = Config(memory_high=MemoryHighConfig(enabled=enabled))
    with Sampler(bench.tree) as sampler, Cgroup(str(bench.fake.root), "") as root:
        node = IdleNode(bench, watch, sampler, root)
        for module in (loop_module, intake_module):
            monkeypatch.setattr(module, "now_ns", lambda: node.ns)
        for owner, name in ((sampler, "sample"), (bench.tree, "refresh"), (threading.Thread, "start")):
            monkeypatch.setattr(owner, name, node.counting(name, getattr(owner, name)))
        node.run()
        node.loop.intake.brake.release("the test ends")

    assert node.loop.schedule.asleep is enabled
    most = {"waits": waits, "sample": MINUTES + 3, "refresh": 2, "start": 2}
    assert {name: (node.counts[name], bound) for name, bound in most.items() if node.counts[name] > bound} == {}
