"""Takes in the ends of a pod's containers: their highest use, and whether they were killed for lack of memory."""

from __future__ import annotations

from dataclasses import dataclass

from cgpause.core.errors import CgpauseError
from cgpause.core.model import Ended
from cgpause.core.parse import parse_flat_keyed, parse_number, parse_reclaimable
from cgpause.kernel.cgroupfs import Cgroup


@dataclass(slots=True)
class Ends:
    """The ends of one pod's containers so far, and the peaks that they left."""

    pending: Ended | None = None
    """The end to report once the pod is gone; None if no ended container has told of the pod's peak."""
    _ooms: tuple[int, int] = (0, 0)
    """`oom_kill` and `oom` in memory.events when a container last ended."""
    _peak_bytes: int = 0
    """memory.peak when a container last ended."""
    _was_killed: bool = False
    """Whether a container was killed for lack of memory on the node."""
    _is_restarted: bool = False
    """Whether a container was created since then."""

    def count_kills(self, pod: Cgroup) -> int:
        """Return the number of OOM kills in the pod since the last call; 0 if some were at its own limit.

        Raises:
            CgroupGoneError, KernelReadError, MalformedError: memory.events cannot be read.
        """
        events = parse_flat_keyed(pod.read("memory.events"), "memory.events")
        before, self._ooms = self._ooms, (events.get("oom_kill", 0), events.get("oom", 0))
        return 0 if self._ooms[1] > before[1] else self._ooms[0] - before[0]

    def note_start(self) -> None:
        """Take in that a container was created."""
        self._is_restarted = self._was_killed

    def note_end(
        self, pod: Cgroup, workload: str | None, used_bytes: int | None, limit_bytes: int | None
    ) -> Ended | None:
        """Take in that a container has ended. If it was killed for lack of memory on the node, return that end at once.

        Otherwise the end waits in `pending` until the pod is gone, because its other containers may need more. It has
        the pod's peak if that has risen since the last end. An end after a kill and a restart counts without a higher
        peak too (`after_kill`): the policy learns that the guess that it made at the kill was too high. `used_bytes` is
        the use without page cache in the last sample; None if it is unknown. `limit_bytes` is the pod's limit. A pod
        that cannot be read or has no name gives no end.
        """
        try:
            killed = self.count_kills(pod) > 0  # without a name too: a later end must not count as this kill
            raw, highest = _read_peak(pod)
        except CgpauseError:
            return None
        if workload is None:
            return None
        highest = max(highest, used_bytes or 0) if highest else 0
        is_higher, self._peak_bytes = raw > self._peak_bytes, max(raw, self._peak_bytes)
        if killed:
            self.pending = None if is_higher else self.pending
            self._was_killed, self._is_restarted = True, False
            return Ended(pod.id, workload, highest if is_higher else 0, killed=True)
        if is_higher and highest:
            self.pending = Ended(pod.id, workload, highest, after_kill=self._is_restarted, limit_bytes=limit_bytes)
        elif self._is_restarted:  # it needed no more than the killed one had
            self.pending = self.pending or Ended(pod.id, workload, 0, after_kill=True)
        return None


def _read_peak(pod: Cgroup) -> tuple[int, int]:
    """Return memory.peak, and the same without page cache, in bytes; 0 for what is unknown.

    memory.peak (Linux 5.19) is the highest use of all containers together since the pod was made. The page cache of a
    container that has ended stays with its pod, so it can be left out. If the kernel has reclaimed some of it
    (pgsteal), it is not known how much of the peak was page cache.
    """
    if not pod.has("memory.peak"):
        return 0, 0
    stat = pod.read("memory.stat")
    raw = parse_number(pod.read("memory.peak"), "memory.peak")
    is_known = not parse_flat_keyed(stat, "memory.stat").get("pgsteal", 0)
    return raw, max(raw - parse_reclaimable(stat), 0) if is_known else 0
