"""A node with pods, and all parts of the daemon that its metrics come from."""

from __future__ import annotations

import select
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.daemon.brake import Brake
from cgpause.daemon.intake import Intake
from cgpause.kernel.inotify import Watch
from cgpause.kernel.psi import PsiTriggers
from cgpause.pods.sampler import Sampler
from cgpause.pods.tree import PodTree
from cgpause.telemetry.counts import Counts
from helpers.trees import FakeTree


class Metered:
    """A made tree, followed, and the parts that its metrics come from."""

    def __init__(self, folder: Path, watch: Watch) -> None:
        self.fake = FakeTree(folder)
        self.tree = PodTree(str(self.fake.root), str(self.fake.log_dir), Config())
        self.counts = Counts(now_ns())
        self.sampler = Sampler(self.tree, kubelet_config="/nonexistent")
        self._epoll = select.epoll()
        psi, brake = PsiTriggers(self._epoll), Brake(self.tree, watch)
        actuator: Any = SimpleNamespace(counts=self.counts)
        unread: Any = None
        self.intake = Intake(self.tree, unread, watch, psi, actuator, brake, unread)

    def refresh(self) -> None:
        self.tree.refresh(now_ns())

    def close(self) -> None:
        self.sampler.close()
        self.tree.close()
        self._epoll.close()
