"""The global options, and the objects that they select: pod tree, configuration, history.

Each method imports what it needs: most commands need little of it, and start faster so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cgpause.core.errors import CgpauseError, HostError, printable
from cgpause.core.paths import Places

if TYPE_CHECKING:
    from cgpause.config.settings import Config
    from cgpause.core.model import PauseRecord
    from cgpause.pods.tree import PodTree
    from cgpause.telemetry.events import Event, PauseKey
    from cgpause.telemetry.learned import Learned


@dataclass(frozen=True, slots=True)
class Globals(Places):
    """The global options; None if not given."""

    namespace: str | None = None

    def keep(self, event: Event) -> str | None:
        """Add an operator's action to the history, and as root to the journal; return the history's error or None."""
        from cgpause.kernel import journal
        from cgpause.telemetry import history
        from cgpause.telemetry.recorder import keeps_history

        problem = None
        path = self.history_path
        if path is not None and keeps_history(self.config_file):
            try:
                history.append(path, event, None)
            except FileNotFoundError:
                pass  # no daemon has run here: its state folder is missing
            except OSError as e:
                problem = f"this is not in the history: {printable(path)}: {e.strerror}"
        if self.cgroup_root is None and os.geteuid() == 0:
            with closing(journal.Journal(journal.UNIT)) as to:
                to.send(event.line, 6, event.journal)  # in a container there is no journal
        return problem

    def recorded_pauses(self) -> dict[PauseKey, PauseRecord]:
        """Return the records of all present pauses, read from the pods' cgroups and not from the history."""
        from cgpause.ledger import ledger
        from cgpause.pods.discover import paused_cgroups
        from cgpause.telemetry.events import PauseKey, boot_id

        found: dict[PauseKey, PauseRecord] = {}
        boot = boot_id()
        with suppress(CgpauseError):  # without cgroup v2 no pod can be paused
            for pod, cgroup in paused_cgroups(self.root(), lambda *_: None):
                with suppress(CgpauseError):
                    record = ledger.read_record(cgroup)
                    if record is not None and boot is not None:
                        found[PauseKey(boot, pod.uid, record.since_ns)] = record
        return found

    def root(self) -> str:
        """Return the directory given with --cgroup-root, else the cgroup v2 mount from the kernel's mount table.

        Raises:
            HostError: there is no such directory, or no cgroup v2 mount with cpu and memory.
        """
        if self.cgroup_root is None:
            from cgpause.kernel.cgroupfs import find_cgroup_root

            return find_cgroup_root()
        if not os.path.isdir(self.cgroup_root):
            raise HostError(f"--cgroup-root {printable(self.cgroup_root)}: no such directory")
        return os.path.abspath(self.cgroup_root)

    def config(self) -> Config:
        """Load the configuration; a missing file is an error only if it was given with --config."""
        from cgpause.config.load import load_config

        return load_config(self.config_file, must_exist=self.config_path is not None)

    def learned(self) -> tuple[Learned, str | None]:
        """Return the kinds and peaks of workloads that the daemon has saved, and the error if they cannot be read."""
        from cgpause.telemetry import learned
        from cgpause.telemetry.learned import Learned, LearnedError

        path = self.learned_path
        try:
            return (Learned() if path is None else learned.read(path)), None
        except LearnedError as e:
            return Learned(), f"peaks that the daemon has seen are not counted: {e}"

    @contextmanager
    def tree(self, config: Config, known: Learned | None = None) -> Iterator[PodTree]:
        """Discover this node's pods, with the learned kinds of their workloads; close their cgroups at the end."""
        from cgpause.core.clock import now_ns
        from cgpause.kernel.process import raise_descriptor_limit
        from cgpause.pods.tree import PodTree
        from cgpause.policy.kinds import Kinds

        raise_descriptor_limit()
        tree = PodTree(self.root(), self.log_dir, config, None if known is None else Kinds(known.kinds))
        try:
            tree.refresh(now_ns())
            tree.check_programs(now_ns())
            yield tree
        finally:
            tree.close()
