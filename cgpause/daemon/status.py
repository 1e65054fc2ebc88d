"""Tells systemd that the daemon is alive, and the line that `systemctl status` shows."""

from __future__ import annotations

from cgpause.core.clock import NEVER_NS, NS_PER_S
from cgpause.core.model import Headroom
from cgpause.kernel.notify import Notifier
from cgpause.pods.tree import PodTree
from cgpause.telemetry.counts import Counts

_STATUS_NS = 2 * NS_PER_S
"""Shortest time between two STATUS= messages."""


class Status:
    """Sends WATCHDOG=1 when it is due, and STATUS= when it has changed."""

    def __init__(self, notifier: Notifier, tree: PodTree, counts: Counts) -> None:
        self._notifier = notifier
        self._tree = tree
        self._counts = counts
        self._alive_at_ns = 0
        self._status_at_ns = 0

    @property
    def due_ns(self) -> int:
        """Time of the next WATCHDOG=1 message; NEVER_NS if systemd does not wait for one."""
        return NEVER_NS if self._notifier.watchdog_s is None else self._alive_at_ns

    def tick(self, at_ns: int, headroom: Headroom | None) -> None:
        """Send the messages that are due; `headroom` is the last one read, None if memory cannot be read."""
        if not self._notifier.connected:
            return
        watchdog_s = self._notifier.watchdog_s
        if watchdog_s is not None and at_ns >= self._alive_at_ns:
            # A lost WATCHDOG=1 is sent again after 1 s: at the usual time systemd would already kill the daemon.
            heard = self._notifier.send("WATCHDOG=1")
            self._alive_at_ns = at_ns + (int(watchdog_s * NS_PER_S) if heard else NS_PER_S)
        if at_ns >= self._status_at_ns:
            self._status_at_ns = at_ns + _STATUS_NS
            self._notifier.status(self._line(headroom))

    def _line(self, headroom: Headroom | None) -> str:
        if headroom is None:
            return "Cannot read this node's memory; the daemon pauses no pod"
        if self._tree.kubepods is None:
            return f"Waiting for kubepods to appear below {self._tree.root}"
        paused = sum(tracked.pod.paused is not None for tracked in self._tree.pods.values())
        return (
            f"{len(self._tree.pods)} pods, {paused} paused; memory {headroom.used_pct:.1f} % used, "
            f"{headroom.available_bytes / 2**20:.0f}Mi left; since start {self._counts.pauses} pauses, "
            f"{self._counts.sacrifices} sacrifices"
        )
