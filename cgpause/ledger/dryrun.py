"""A ledger that only remembers: `--dry-run` runs the whole loop on it and writes nothing to any cgroup."""

from __future__ import annotations

from collections.abc import Callable

from cgpause.core.model import CgroupId, CpuMax, Owner, PauseRecord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.ledger import Resumed
from cgpause.ledger.plan import PauseRequest, plan_freeze, plan_pause


class DryLedger:
    """The functions of `cgpause.ledger.ledger` that the daemon uses, in memory; real pauses are read, never changed."""

    def __init__(self) -> None:
        self._records: dict[CgroupId, PauseRecord] = {}
        self._resumed: set[CgroupId] = set()

    def read_record(self, cgroup: Cgroup) -> PauseRecord | None:
        """Return the record that a pause would have written, or the real one."""
        if cgroup.id in self._records:
            return self._records[cgroup.id]
        return None if cgroup.id in self._resumed else ledger.read_record(cgroup)

    def pause(self, cgroup: Cgroup, request: PauseRequest, *, wait_s: float = 0) -> tuple[PauseRecord, bool]:
        """Remember a pause."""
        del wait_s
        existing = self.read_record(cgroup)
        if existing is not None:
            return existing, False
        record = plan_pause(cgroup, request)
        self._records[cgroup.id] = record
        return record, True

    def freeze(self, cgroup: Cgroup, reason: str, *, wait_s: float = 0) -> tuple[PauseRecord | None, bool]:
        """Remember that a throttled pod is frozen."""
        del wait_s
        existing = self.read_record(cgroup)
        record = plan_freeze(cgroup, existing, reason)
        if record is None:
            return existing, False
        self._records[cgroup.id] = record
        return record, True

    def resume(
        self,
        cgroup: Cgroup,
        *,
        wait_s: float = 0,
        known: PauseRecord | None = None,
        second_source: Callable[[str], CpuMax | None] | None = None,
        owner: Owner | None = None,
    ) -> Resumed | None:
        """Forget a pause, also a real one: later decisions are made as if it had ended."""
        del wait_s, known, second_source, owner
        record = self.read_record(cgroup)
        if record is None:
            return None
        self._records.pop(cgroup.id, None)
        self._resumed.add(cgroup.id)
        return Resumed(record, record.original, foreign=False)

    def reassert(self, cgroup: Cgroup, throttle: CpuMax, *, wait_s: float = 0) -> PauseRecord | None:
        """Return None: nothing was written, so nothing can drift."""
        del cgroup, throttle, wait_s
        return None
