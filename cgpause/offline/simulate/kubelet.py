"""kubelet's rules for a simulated node: the back-off of a killed container, and the order of kills.

scripts/lab/bed/kubelet.py runs the same rules on a real kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# kubelet's MaxContainerBackOff and its first step (pkg/kubelet/kubelet.go); a container that ran twice as long as the
# longest back-off starts from the first step again (client-go util/flowcontrol/backoff.go). After the first kill there
# is no back-off yet (kubernetes/kubernetes issue 133472, and seen on a real kubelet): kubelet restarts the container as
# soon as it finds it ended, and it looks once a second (genericPlegRelistPeriod).
FIRST_WAIT_S: Final = 1.0
FIRST_BACKOFF_S: Final = 10.0
LONGEST_BACKOFF_S: Final = 300.0
RESET_AFTER_S: Final = 2 * LONGEST_BACKOFF_S


@dataclass(slots=True)
class Backoff:
    """CrashLoopBackOff of one container, every duration multiplied by `scale`."""

    scale: float = 1.0
    _next_s: float | None = None
    """Wait after the next kill, unscaled; None before the first kill."""

    def after_kill(self, ran_s: float) -> float:
        """Count a kill of a container that ran for `ran_s`; return the wait in s before its next start."""
        if self._next_s is None or ran_s >= RESET_AFTER_S * self.scale:
            self._next_s = FIRST_BACKOFF_S
            return FIRST_WAIT_S * self.scale
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_BACKOFF_S)
        return wait_s * self.scale


def request_bytes(limit_bytes: int, oversubscription: float) -> int:
    """Return the request of a job: less than its limit if nodes are oversubscribed."""
    return int(limit_bytes / oversubscription)


def oom_score_adj(request: int, capacity_bytes: int) -> int:
    """Return kubelet's value for a Burstable container (qos/policy.go): a larger request is killed later."""
    return max(3, min(1000 - 1000 * request // capacity_bytes, 999))
