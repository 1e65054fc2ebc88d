"""Why a mutant may survive, by hand: module, then `before -> after` as docs/measurements/mutants.json has them."""

from __future__ import annotations

_SAME_MEMBER = "the same for members of an enumeration"

REASONS: dict[str, dict[str, str]] = {
    "daemon/actuate": {
        "if paused.owner is Owner.MANUAL: -> if paused.owner == Owner.MANUAL:": _SAME_MEMBER,
    },
    "policy/level": {
        "target = int(full - headroom.capacity_bytes * (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes) -> "
        "target = int(full - headroom.capacity_bytes // (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes)": (
            "the same with an airbag at 99 %, which is a constant"
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
    "policy/kinds": {
        "if workload in self._known and self._known[workload] is known: -> "
        "if workload in self._known and self._known[workload] == known:": (
            "True, False and None are equal to themselves only"
        ),
    },
    "policy/demand": {
        "_QOS_RANK = {QosClass.GUARANTEED: 2, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0} -> "
        "_QOS_RANK = {QosClass.GUARANTEED: 3, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0}": (
            "the rank of a class is only compared, and 3 is above the others as 2 is"
        ),
        "return min(growth.step(), most), 0.0 -> return min(growth.step(), most), 1.0": (
            "a variance of one byte squared: no demand differs by a byte"
        ),
        "if pod.paused is None or pod.paused.mechanism is not Mechanism.THROTTLE: -> "
        "if pod.paused is None or pod.paused.mechanism < Mechanism.THROTTLE:": (
            "a pause is throttle or freeze, and freeze comes first in the alphabet"
        ),
    },
    "policy/growth": {
        "if usage == before:  # most pods of a node -> if usage is before:  # most pods of a node": (
            "a sampler gives an unchanged pod the same object; equal ones only cost a computation"
        ),
        "if is_cached or reclaimable - old_reclaimable > max(used - read_used, 0): -> "
        "if is_cached or reclaimable * old_reclaimable > max(used - read_used, 0):": (
            "not pinned: page cache that grows while the pod has some already"
        ),
        "elif grown > 0 and used - low > noise: -> elif grown > 0 and used + low > noise:": (
            "not pinned: a step within noise that is also within noise of the low"
        ),
    },
    "policy/reserve": {
        "left -= max(limit - growth.used, 0) -> left -= max(limit - growth.used, 1)": (
            "a byte of headroom for a pod at its limit"
        ),
        "return float(paused) if idle_cpus >= needed_cpus * paused else idle_cpus / needed_cpus -> "
        "return float(paused) if idle_cpus > needed_cpus * paused else idle_cpus / needed_cpus": (
            "at exact equality both give the number of paused pods"
        ),
        "return grants.room_bytes > 0 or any(place.runs and place.need >= 4096 for place in others) -> "
        "return grants.room_bytes > 0 or any(place.runs and place.need >= 4097 for place in others)": (
            "a byte more than a page: needs are whole pages but for averages"
        ),
    },
    "policy/serving": {
        "noise: int = 0 -> noise: int = -1": ("place_of always gives it; only tests leave it out"),
        'claim = float("inf") if pod.memory_max_bytes is None else max(pod.memory_max_bytes - one.used, 0'
        ") -> "
        'claim = float("inf") if pod.memory_max_bytes is None else max(pod.memory_max_bytes - one.used, 1'
        ")": ("a pod above its own limit has a claim of nothing or of a byte"),
        "places.append(place_of(one, need, has, runs=runs, first=one is first)) -> "
        "places.append(place_of(one, need, has, runs=runs, first=one == first))": ("equal demands are the same pod"),
        "return 0 if paused is None else paused.since_ns -> return -1 if paused is None else paused.since_ns": (
            "pods that run are not in the list"
        ),
        "if after <= slack and not (everyone or one.is_paused or one.newcomer or one is first or one.excused): -> "
        "if after is slack and not (everyone or one.is_paused or one.newcomer or one is first or one.excused):": (
            "a short cut for most pods: the long way gives the same"
        ),
        "wanting = [one for one in wanting if one.basis is not _GROWTH] or wanting -> "
        "wanting = [one for one in wanting if one.basis != _GROWTH] or wanting": (_SAME_MEMBER),
    },
    "policy/hold": {
        "if how is not HowPaused.AUTO or pod.workload is not Workload.BATCH or paused is None: -> "
        "if how is not HowPaused.AUTO or pod.workload != Workload.BATCH or paused is None:": (_SAME_MEMBER),
        "if how is not HowPaused.AUTO or pod.workload is not Workload.BATCH or paused is None: -> "
        "if how != HowPaused.AUTO or pod.workload is not Workload.BATCH or paused is None:": (_SAME_MEMBER),
        "return pod.workload is not Workload.BATCH or stretch.turn or not stretch.released -> "
        "return pod.workload != Workload.BATCH or stretch.turn or not stretch.released": (_SAME_MEMBER),
        "if at_ns - (old.resumed_ns or 0) < _run_ns(old, hold): -> "
        "if at_ns - (old.resumed_ns or -1) < _run_ns(old, hold):": (
            "the alternative is never taken: a stretch without a resume has just got one; it is there for mypy"
        ),
    },
    "policy/protect": {
        "if protect.guaranteed and qos is QosClass.GUARANTEED: -> "
        "if protect.guaranteed and qos == QosClass.GUARANTEED:": _SAME_MEMBER,
    },
    "restore": {
        "return record.owner is owner or (owner is Owner.DAEMON and expired) -> "
        "return record.owner is owner or (owner == Owner.DAEMON and expired)": _SAME_MEMBER,
    },
}
