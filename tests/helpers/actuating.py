"""An actuator on a fake tree with three pods, for the tests in tests/daemon/actuate."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgroupGoneError, KernelWriteError
from cgpause.core.model import (
    Action,
    CpuMax,
    Freeze,
    Headroom,
    Mechanism,
    Owner,
    Pause,
    PauseRecord,
    Resume,
    Sacrifice,
    Sample,
)
from cgpause.daemon.actuate import Actuator
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.inotify import Watch
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.telemetry.events import Event
from helpers.fixtures import Log
from helpers.trees import FakeTree

CONFIG = Config()
THROTTLE = CpuMax(1001, 100000)
SAMPLE = Sample(0, Headroom(100, 5, None, 0), ())
BY_HAND = PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.MANUAL, "by hand", now_ns())


class Bench:
    """A tree with pods a, b and c, each with a different original cpu.max, and an actuator on it."""

    def __init__(self, folder: Path, watch: Watch, *, dry_run: bool = False) -> None:
        self.fake = FakeTree(folder)
        self.folders = {
            "a": self.fake.add_pod("a", 1, cpu_max="max 100000"),
            "b": self.fake.add_pod("b", 2, cpu_max="50000 100000"),
            "c": self.fake.add_pod("c", 3, cpu_max="200000 50000"),
        }
        self.tree = PodTree(str(self.fake.root), str(self.fake.log_dir), CONFIG, dry_run=dry_run)
        self.tree.refresh(0)
        self.kept: list[Event] = []
        self.actuator = Actuator(self.tree, watch, self.kept.append)

    def tracked(self, name: str) -> TrackedPod:
        return next(tracked for tracked in self.tree.pods.values() if tracked.pod.name == name)

    def apply(self, *actions: Action, config: Config = CONFIG) -> None:
        self.actuator.apply(actions, SAMPLE, config)

    def pause(self, *names: str, mechanism: Mechanism = Mechanism.THROTTLE) -> None:
        self.apply(*(Pause(self.tracked(name).pod, 1, mechanism, "test") for name in names))

    def resume(self, *names: str) -> None:
        self.apply(*(Resume(self.tracked(name).pod, "test") for name in names))

    def sacrifice(self, *names: str) -> None:
        self.apply(*(Sacrifice(self.tracked(name).pod, 1, "test") for name in names))

    def freeze(self, *names: str) -> None:
        self.apply(*(Freeze(self.tracked(name).pod, "it grows", grew=True) for name in names))

    def frozen(self) -> list[str]:
        return [name for name, folder in self.folders.items() if (folder / "cgroup.freeze").read_text() == "1\n"]

    def cpu_max(self) -> list[str]:
        return [(folder / "cpu.max").read_text().strip() for folder in self.folders.values()]

    def paused(self) -> list[str]:
        return [name for name in self.folders if self.tracked(name).pod.paused is not None]

    def record(self, name: str) -> PauseRecord:
        """Return the pause that the daemon knows of."""
        paused = self.tracked(name).pod.paused
        assert paused is not None
        return paused

    def read_record(self, name: str) -> None:
        self.actuator.take_in_record(self.tracked(name))

    def pause_by_hand(self, name: str, request: PauseRequest = BY_HAND) -> None:
        """Pause a pod as an operator does; the daemon does not know it yet."""
        ledger.pause(self.tracked(name).cgroup, request)

    def resume_by_hand(self, name: str) -> None:
        ledger.resume(self.tracked(name).cgroup)

    def take_over(self, name: str) -> None:
        assert ledger.take_over(self.tracked(name).cgroup, BY_HAND) is not None

    def drift(self, times: int, value: str | None = None) -> None:
        """Let another program write cpu.max of b, and the daemon answer, several times."""
        for number in range(times):
            (self.folders["b"] / "cpu.max").write_text(f"{value or f'{30000 + number} 100000'}\n")
            self.actuator.answer_drift(self.tracked("b"), CONFIG)

    @contextmanager
    def refusing(self, name: str, code: int, file: str = "cpu.max") -> Iterator[None]:
        """Let the kernel refuse writes to a file of one pod, or of its containers, with errno `code`."""
        write = Cgroup.write

        def refuse(cgroup: Cgroup, wanted: str, value: str) -> None:
            if cgroup.path.startswith(str(self.folders[name])) and wanted == file:
                if code == errno.ENODEV:
                    raise CgroupGoneError(cgroup.path)
                raise KernelWriteError(f"{cgroup.path}/{file}", OSError(code, os.strerror(code)), value)
            write(cgroup, wanted, value)

        with mock.patch.object(Cgroup, "write", refuse):
            yield


ORIGINALS = ["max 100000", "50000 100000", "200000 50000"]


def lines(caplog: Log, *starts: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if not starts or r.getMessage().startswith(starts)]
