"""kubelet's rules for a simulated node: the back-off of a killed container, and the order of kills.

scripts/lab/bed/kubelet.py runs the same rules on a real kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# kubelet's MaxContainerBackOff and its first step (pkg/kubelet/kubelet.go); a container that ran twice as long as the
# longest back-off starts from the first step again (client-go util/flowcontrol/backoff.go).
FIRST_BACKOFF_S: Final = 10.0
LONGEST_BACKOFF_S: Final = 300.0
RESET_AFTER_S: Final = 2 * LONGEST_BACKOFF_S


@dataclass(slots=True)
class Backoff:
    """CrashLoopBackOff of one container, every duration multiplied by `scale`."""

    scale: float = 1.0
    _last_s: float = 0.0

    def after_kill(self, ran_s: float) -> float:
        """Return the wait in s before the next start of a killed container that ran for `ran_s`."""
        if self._last_s == 0 or ran_s >= RESET_AFTER_S * self.scale:
            self._last_s = FIRST_BACKOFF_S
        else:
            self._last_s = min(2 * self._last_s, LONGEST_BACKOFF_S)
        return self._last_s * self.scale


def request_bytes(limit_bytes: int, oversubscription: float) -> int:
    """Return the request of a job: less than its limit if nodes are oversubscribed."""
    return int(limit_bytes / oversubscription)


def oom_score_adj(request: int, capacity_bytes: int) -> int:
    """Return kubelet's value for a Burstable container (qos/policy.go): a larger request is killed later."""
    return max(3, min(1000 - 1000 * request // capacity_bytes, 999))
