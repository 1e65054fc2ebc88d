"""Why a mutant may survive, by hand: module, then `before -> after` as docs/measurements/mutants.json has them."""

from __future__ import annotations

REASONS: dict[str, dict[str, str]] = {
    "daemon/brake": {
        "self._given_up = False -> self._given_up = True": (
            "the first value is never read: without a cgroup nothing is applied, and opening one sets it again"
        ),
    },
    "kernel/cgroupfs": {
        "self._daemon_fd = -1 -> self._daemon_fd = - 2": "any negative number says that there is none",
    },
    "ledger/ledger": {
        "if record.mechanism is not existing.mechanism: -> if record.mechanism < existing.mechanism:": (
            "a take-over changes throttle to freeze only, and freeze comes first in the alphabet"
        ),
        "if e.errno != errno.EINVAL: -> if e.errno is not errno.EINVAL:": "Python has one object for each small number",
    },
    "policy/hold": {
        "if at_ns - (old.resumed_ns or 0) < _run_ns(old, hold): -> "
        "if at_ns - (old.resumed_ns or -1) < _run_ns(old, hold):": (
            "the alternative is never taken: a stretch without a resume has just got one; it is there for mypy"
        ),
    },
    "policy/protect": {
        "if protect.guaranteed and qos is QosClass.GUARANTEED: -> "
        "if protect.guaranteed and qos == QosClass.GUARANTEED:": "the same for members of an enumeration",
        "return None -> pass": "the same at the end of a function",
    },
}
