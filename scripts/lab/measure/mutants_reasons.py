"""Why a mutant may survive, by hand: module, then `before -> after` as docs/measurements/mutants.json has them."""

from __future__ import annotations

_SAME_MEMBER = "the same for members of an enumeration"
_FOR_MYPY = "the alternative is never taken; it is there for mypy"
_ALWAYS_GIVEN = "`learn.begin` always gives it"
_EXACT = "they differ only at exact equality, where both results are right"
_ORDER = "the members are texts, and this one comes first in the alphabet"

REASONS: dict[str, dict[str, str]] = {
    "daemon/actuate": {
        "tracked.damaged, tracked.record_retry_at_ns = True, now_ns() + _RETRY_NS -> "
        "tracked.damaged, tracked.record_retry_at_ns = True, now_ns() - _RETRY_NS": (
            "not pinned: the time of the next attempt at a record that cannot be read"
        ),
        "if paused.owner is Owner.MANUAL: -> if paused.owner == Owner.MANUAL:": _SAME_MEMBER,
        "event = replace(event, what=f\"would have {'frozen' if event.what == EventKind.FROZE else event.what}\") -> "
        "event = replace(event, what=f\"would have {'frozen' if event.what is EventKind.FROZE else event.what}\")": (
            _SAME_MEMBER
        ),
    },
    "daemon/brake": {
        "root.level = None  # the next refresh finds the new kubepods root -> "
        "pass  # the next refresh finds the new kubepods root": "not pinned: one write to a root that is gone",
        "if now is not None or root.record is not None:  # the record stays after a release that failed -> "
        "if not now is not None or root.record is not None:  # the record stays after a release that failed": (
            "not pinned: a level in force has a record, too"
        ),
    },
    "kernel/cgroupfs": {
        "return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._fd) -> "
        "return os.open(name, flags ** os.O_CLOEXEC, dir_fd=self._fd)": (
            "Python opens every file so that no child inherits it; the flag says so to the reader"
        ),
        'return KernelWriteError(path, error, value, hint=_HINTS.get(error.errno or 0, "")) -> '
        'return KernelWriteError(path, error, value, hint=_HINTS.get(error.errno or 1, ""))': _FOR_MYPY,
        "_READ_SIZE = 16384  # memory.stat has 1.6 KiB on 6.12; cgroup.procs of a large pod needs several reads -> "
        "_READ_SIZE = 16383  # memory.stat has 1.6 KiB on 6.12; cgroup.procs of a large pod needs several reads": (
            "a size of reads: any works"
        ),
        "if len(level) == left: -> if len(level) >= left:": "it never has more",
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
        "if record.mechanism is Mechanism.FREEZE and is_frozen(cgroup): -> "
        "if record.mechanism >= Mechanism.FREEZE and is_frozen(cgroup):": (
            "not pinned: a throttled pod that another program has frozen"
        ),
        "if e.errno != errno.EINVAL: -> if e.errno is not errno.EINVAL:": "Python has one object for each small number",
    },
    "ledger/plan": {
        "throttled = request.mechanism is Mechanism.THROTTLE -> throttled = request.mechanism == Mechanism.THROTTLE": (
            _SAME_MEMBER
        ),
        "original_burst_us=read_burst_us(cgroup) if throttled else 0, -> "
        "original_burst_us=read_burst_us(cgroup) if throttled else 1,": "a freeze never writes the burst back",
        'return parse_number(cgroup.read("cgroup.freeze"), "cgroup.freeze") == 1 -> '
        'return parse_number(cgroup.read("cgroup.freeze"), "cgroup.freeze") >= 1': "the kernel shows 0 or 1",
    },
    "policy/decide": {
        "left_bytes = 0.0 if tight and state.stretches else reserve.left_bytes(learned, sample)"
        "  # not needed then, and slow -> "
        "left_bytes = 1.0 if tight and state.stretches else reserve.left_bytes(learned, sample)"
        "  # not needed then, and slow": "nothing reads it then",
        "is_settled = grants is not None and not actions and (runs_alone or (left_bytes > 0 and not grants.unsafe)) -> "
        "is_settled = grants is not None and not actions and (runs_alone or (left_bytes >= 0 and not grants.unsafe))": (
            _EXACT
        ),
        "if state.stretches.keys() <= concerned: -> if state.stretches.keys() != concerned:": (
            "not pinned: a pod with a stretch that stands still"
        ),
    },
    "policy/demand": {
        "_QOS_RANK = {QosClass.GUARANTEED: 2, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0} -> "
        "_QOS_RANK = {QosClass.GUARANTEED: 3, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 0}": (
            "the rank of a class is only compared, and 3 is above the others as 2 is"
        ),
        "float(used if base is None else used - base if used > base else 0), -> "
        "float(used if base is None else used - base if used >= base else 0),": "at equality both give 0",
        "basis, 0 if active and growth.surge() > large else large, -> "
        "basis, -1 if active and growth.surge() > large else large,": "no need is below 0",
        "return (mean, variance) if mean < most and variance < most * most else "
        "(min(mean, most), min(variance, most * most)) -> "
        "return (mean, variance) if mean < most and variance is most * most else "
        "(min(mean, most), min(variance, most * most))": "a short cut: the long way gives the same",
        "if pod.paused is None or pod.paused.mechanism is not Mechanism.THROTTLE: -> "
        "if pod.paused is None or pod.paused.mechanism < Mechanism.THROTTLE:": (
            "a pause is throttle or freeze, and freeze comes first in the alphabet"
        ),
    },
    "policy/explain": {
        "for usage in sorted(rank(sample.pods), key=lambda usage: order.get(usage.pod.cgroup, -1)): -> "
        "for usage in sorted(rank(sample.pods), key=lambda usage: order.get(usage.pod.cgroup, not 1)):": (
            "every pod has a place, or none has one"
        ),
        "for usage in sorted(rank(sample.pods), key=lambda usage: order.get(usage.pod.cgroup, -1)): -> "
        "for usage in sorted(rank(sample.pods), key=lambda usage: order.get(usage.pod.cgroup, - 2)):": (
            "any negative number comes before the places"
        ),
    },
    "policy/growth": {
        "started_ns: int = 0 -> started_ns: int = 1": _ALWAYS_GIVEN,
        "at_ns: int = 0 -> at_ns: int = 1": _ALWAYS_GIVEN,
        "read_used: int = 0 -> read_used: int = -1": _ALWAYS_GIVEN,
        "read_top: int = 0 -> read_top: int = -1": _ALWAYS_GIVEN,
        "given_back: int = 0 -> given_back: int = -1": "a byte, before the first sample",
        "return capacity_bytes * LITTLE_PCT / 100 * min(1.0, MANY_PODS / max(growing_pods, 1)) -> "
        "return capacity_bytes * LITTLE_PCT / 100 * min(1.0, MANY_PODS / max(growing_pods, 2))": (
            "up to MANY_PODS the number of pods changes nothing"
        ),
    },
    "policy/hold": {
        "if at_ns - (old.resumed_ns or 0) < _run_ns(old, hold): -> "
        "if at_ns - (old.resumed_ns or -1) < _run_ns(old, hold):": _FOR_MYPY,
        "return pod.kind is not PodKind.BATCH or stretch.turn or not stretch.resumed_by_policy -> "
        "return pod.kind != PodKind.BATCH or stretch.turn or not stretch.resumed_by_policy": _SAME_MEMBER,
    },
    "policy/kinds": {
        "if workload in self._known and self._known[workload] is known: -> "
        "if workload in self._known and self._known[workload] == known:": (
            "True, False and None are equal to themselves only"
        ),
    },
    "policy/learn": {
        "used = current - reclaimable if current > reclaimable else 0 -> "
        "used = current - reclaimable if current >= reclaimable else 0": "at equality both give 0",
        "if uncertain or reclaimable - old.reclaimable > max(used - old.read_used, 0): -> "
        "if uncertain or reclaimable - old.reclaimable > max(used & old.read_used, 0):": (
            "not pinned: page cache that grows by less than the use and by more than none"
        ),
    },
    "policy/level": {
        "target = int(full - headroom.capacity_bytes * (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes) -> "
        "target = int(full - headroom.capacity_bytes // (100 - AIRBAG_PCT) / 100 - headroom.eviction_bytes)": (
            "the same with an airbag at 99 %, which is a constant"
        ),
        "if now is None or target < now.high_bytes: -> if now is None or target <= now.high_bytes:": _EXACT,
        "return HighLevel(max(target, 0) // mmap.PAGESIZE * mmap.PAGESIZE, tripwire) -> "
        "return HighLevel(max(target, -1) // mmap.PAGESIZE * mmap.PAGESIZE, tripwire)": (
            "a level is never below the use"
        ),
        "return Stall(lifted_bytes=level.high_bytes) if at_ns - self.reached_ns >= _STALL_NS else self -> "
        "return Stall(lifted_bytes=level.high_bytes) if at_ns ^ self.reached_ns >= _STALL_NS else self": (
            "not pinned: times that share bits"
        ),
    },
    "policy/peaks": {
        "return () -> pass": "a pod without a workload has no peaks either way; the line is there for mypy",
        "killed = self.killed.get(pod.workload, 0) if self.killed else 0 -> "
        "killed = self.killed.get(pod.workload, 1) if self.killed else 0": "a guess of one byte",
        "is_guessed = killed and len(known) < KNOWN_PEAKS and max(known, default=0) <= killed -> "
        "is_guessed = killed and len(known) < KNOWN_PEAKS and max(known, default= -1) <= killed": (
            "any number up to the use of a killed container"
        ),
        "if seen_bytes and peak - seen_bytes <= peak >> _ALIKE_SHIFT:  # the same one, or page cache was among it -> "
        "if seen_bytes and peak - seen_bytes < peak >> _ALIKE_SHIFT:  # the same one, or page cache was among it": (
            _EXACT
        ),
    },
    "policy/protect": {
        "if protect.guaranteed and qos is QosClass.GUARANTEED: -> "
        "if protect.guaranteed and qos == QosClass.GUARANTEED:": _SAME_MEMBER,
        "return PodClass(word) if ruled is PodClass.AUTO and word in (OwnWord.SERVICE, OwnWord.BATCH) else ruled -> "
        "return PodClass(word) if ruled <= PodClass.AUTO and word in (OwnWord.SERVICE, OwnWord.BATCH) else ruled": (
            _ORDER
        ),
    },
    "policy/reserve": {
        "left -= max(limit - growth.used, 0) -> left -= max(limit - growth.used, 1)": (
            "a byte of headroom for a pod at its limit"
        ),
        "return left - beyond if len(growths.moving) > 1 else left"
        "  # one that moves alone leaves no other to pause -> "
        "return left - beyond if len(growths.moving) != 1 else left"
        "  # one that moves alone leaves no other to pause": "if no pod moves, nothing is beyond",
        "return float(paused) if idle_cpus >= needed_cpus * paused else idle_cpus / needed_cpus -> "
        "return float(paused) if idle_cpus > needed_cpus * paused else idle_cpus / needed_cpus": (
            "at exact equality both give the number of paused pods"
        ),
        "return grants.grantable_bytes > 0 or any(place.runs and place.need >= 4096 for place in others) -> "
        "return grants.grantable_bytes > 1 or any(place.runs and place.need >= 4096 for place in others)": (
            "a byte of headroom"
        ),
    },
    "policy/sacrifice": {
        "lost_s = (pod.cpu_usage_usec or 0) / 1e6 -> lost_s = (pod.cpu_usage_usec or 0) / 1000001.0": (
            "a millionth of a time in a message"
        ),
        "lost_s = (pod.cpu_usage_usec or 0) / 1e6 -> lost_s = (pod.cpu_usage_usec or -1) / 1e6": _FOR_MYPY,
        "return killed -> pass": "a short cut: the long way gives the same",
        "return pod.priority, pod.kind is PodKind.SERVICE, pod.cpu_usage_usec or 0 -> "
        "return pod.priority, pod.kind is PodKind.SERVICE, pod.cpu_usage_usec or -1": _FOR_MYPY,
    },
    "policy/schedule": {
        "return FillRate(at_ns, available, max(decayed, (rate.available_bytes - available) / elapsed_s)) -> "
        "return FillRate(at_ns, available, max(decayed, (rate.available_bytes - available) // elapsed_s))": (
            "less than a byte in a second"
        ),
    },
    "policy/serving": {
        'claim = float("inf") if pod.memory_max_bytes is None else max(pod.memory_max_bytes - one.used, 0) -> '
        'claim = float("inf") if pod.memory_max_bytes is None else max(pod.memory_max_bytes - one.used, 1)': (
            "a pod above its own limit has a claim of nothing or of a byte"
        ),
        "if total <= slack and not (all_pods or one.is_paused or one.newcomer or one is first or one.excused): -> "
        "if total is slack and not (all_pods or one.is_paused or one.newcomer or one is first or one.excused):": (
            "a short cut for most pods: the long way gives the same"
        ),
        "return 0 if paused is None else paused.since_ns -> return -1 if paused is None else paused.since_ns": (
            _FOR_MYPY
        ),
    },
    "policy/watermark": {
        "used_pct: float = 0.0 -> used_pct: float = 1.0": "nothing reads it before the first pause sets it",
        "return 0 <= -sample.headroom.left_below_bytes(upper_pct) < sum(current for current, _ in paused) -> "
        "return -1 <= -sample.headroom.left_below_bytes(upper_pct) < sum(current for current, _ in paused)": (
            "a byte below the upper mark"
        ),
    },
    "restore": {
        "expired = result is not Result.OPERATOR and record is not None and record.owner is Owner.MANUAL -> "
        "expired = result is not Result.OPERATOR and record is not None and record.owner >= Owner.MANUAL": (
            "the owners are texts, and this one comes last in the alphabet"
        ),
        "with tree_lock(root) if daemon_only else nullcontext(enter_result=False) as stops: -> "
        "with tree_lock(root) if daemon_only else nullcontext(enter_result=True) as stops:": ("nothing reads it then"),
        "return record.owner is owner or (owner is Owner.DAEMON and expired) -> "
        "return record.owner is owner or (owner == Owner.DAEMON and expired)": _SAME_MEMBER,
    },
}
