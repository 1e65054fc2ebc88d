"""What the command line was given before the command, and what that leads to: tree, configuration, history."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from cgpause.config.load import load_config
from cgpause.config.settings import Config
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgpauseError, HostError, printable
from cgpause.core.kubepods import pod_uid
from cgpause.core.paths import DEFAULT_CONFIG, history_path, learned_path, metrics_path
from cgpause.daemon import learned
from cgpause.daemon.learned import Learned, LearnedError
from cgpause.kernel import journal
from cgpause.kernel.cgroupfs import find_cgroup_root
from cgpause.ledger import ledger
from cgpause.pods.tree import PodTree
from cgpause.policy.kinds import Kinds
from cgpause.restore import paused_cgroups
from cgpause.telemetry import history
from cgpause.telemetry.events import Event, PauseKey, boot_id
from cgpause.telemetry.recorder import MIB, max_mib


@dataclass(frozen=True, slots=True)
class Globals:
    """The options before the command."""

    cgroup_root: str | None
    config_path: str | None
    log_dir: str
    state_dir: str | None
    run_dir: str | None

    def keep(self, event: Event) -> str | None:
        """Keep what was done by hand, where the daemon keeps what it does; returns what was wrong with that."""
        problem = None
        path = history_path(self.state_dir, self.cgroup_root)
        room_mib = max_mib(self.config_file)
        if path is not None and room_mib:
            try:
                history.append(path, event, room_mib * MIB)
            except FileNotFoundError:
                pass  # no daemon has ever run here
            except OSError as e:
                problem = f"this is not in the history: {printable(path)}: {e.strerror}"
        if self.cgroup_root is None and os.geteuid() == 0:
            with closing(journal.Journal(journal.UNIT)) as to:
                to.send(event.line, 6, event.journal)
        return problem

    def held(self) -> set[PauseKey]:
        """Which pauses are in force: the pods' own records say so, and no file."""
        boot, found = boot_id(), set()
        try:
            for cgroup in paused_cgroups(self.root(), lambda *_: None):
                with suppress(CgpauseError):
                    record = ledger.read_record(cgroup)
                    uid = pod_uid(os.path.basename(cgroup.id.path))
                    if record is not None and uid is not None and boot is not None:
                        found.add(PauseKey(boot, uid, record.since_ns))
        except CgpauseError:
            return found  # no cgroup v2 here, and so nothing that is paused
        return found

    def root(self) -> str:
        """Directory given with --cgroup-root, or the one the kernel's mount table names."""
        if self.cgroup_root is None:
            return find_cgroup_root()
        if not os.path.isdir(self.cgroup_root):
            raise HostError(f"--cgroup-root {printable(self.cgroup_root)}: no such directory")
        return os.path.abspath(self.cgroup_root)

    def config(self) -> Config:
        """Load the configuration; only a file that was asked for has to exist."""
        return load_config(self.config_file, must_exist=self.config_path is not None)

    @property
    def config_file(self) -> str:
        """The configuration given with --config, or the one of the node."""
        return DEFAULT_CONFIG if self.config_path is None else self.config_path

    @property
    def metrics_path(self) -> str | None:
        """Where the daemon publishes its figures; None for a tree that has no such place."""
        return metrics_path(self.run_dir, self.cgroup_root)

    def learned(self) -> tuple[Learned, str | None]:
        """Return what the daemon has learned of workloads, and why that cannot be read, if it cannot."""
        path = learned_path(self.state_dir, self.cgroup_root)
        try:
            return (Learned() if path is None else learned.read(path)), None
        except LearnedError as e:
            return Learned(), f"peaks that the daemon has seen are not counted: {e}"

    @contextmanager
    def tree(self, config: Config, known: Learned | None = None) -> Iterator[PodTree]:
        """Walk the pods of this node, with what is known of their workloads."""
        tree = PodTree(self.root(), self.log_dir, config, None if known is None else Kinds(known.kinds))
        try:
            tree.refresh(now_ns())
            yield tree
        finally:
            tree.close()
