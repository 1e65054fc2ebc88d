"""Why a mutant may survive, by hand: module, then `before -> after` as docs/measurements/mutants.json has them."""

from __future__ import annotations

_SAME_MEMBER = "the same for members of an enumeration"

REASONS: dict[str, dict[str, str]] = {
    "daemon/actuate": {
        "_RETRY_NS = 60 * 1_000_000_000 -> _RETRY_NS = 60 * 999999999": "60 ns less in a minute",
        "if paused.owner is Owner.MANUAL: -> if paused.owner == Owner.MANUAL:": _SAME_MEMBER,
        "self.counts.reactions.observe((now_ns() - (sample.at_ns - sample.late_ns)) / 1e9) -> "
        "self.counts.reactions.observe((now_ns() - (sample.at_ns - sample.late_ns)) / 999999999.0)": (
            "a billionth of the time more"
        ),
    },
    "daemon/brake": {
        "target = int(full - headroom.capacity_bytes * (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes) -> "
        "target = int(full - headroom.capacity_bytes // (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes)": (
            "the same with an airbag at 99 %, which is a constant"
        ),
        "self._given_up = False -> self._given_up = True": (
            "the first value is never read: without a cgroup nothing is applied, and opening one sets it again"
        ),
    },
    "kernel/cgroupfs": {
        "return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._fd) -> "
        "return os.open(name, flags ** os.O_CLOEXEC, dir_fd=self._fd)": (
            "Python opens every file so that no child inherits it; the flag says so to the reader"
        ),
        'return KernelWriteError(path, error, value, hint=_HINTS.get(error.errno or 0, "")) -> '
        'return KernelWriteError(path, error, value, hint=_HINTS.get(error.errno or 1, ""))': (
            "a system call that fails has a number; the alternative is there for mypy"
        ),
        "self._daemon_fd = -1 -> self._daemon_fd = - 2": "any negative number says that there is none",
    },
    "ledger/high": {
        'raise DamagedRecordError(f"xattr {XATTR} is damaged ({e!r}): {ascii(data)[:200]}") from e -> '
        'raise DamagedRecordError(f"xattr {XATTR} is damaged ({e!r}): {ascii(data)[: 199]}") from e': (
            "one character less of a damaged record in a message"
        ),
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
        "if protect.guaranteed and qos == QosClass.GUARANTEED:": _SAME_MEMBER,
        "return None -> pass": "the same at the end of a function",
    },
    "restore": {
        "return record.owner is owner or (owner is Owner.DAEMON and expired) -> "
        "return record.owner is owner or (owner == Owner.DAEMON and expired)": _SAME_MEMBER,
    },
}
