"""An operator's pause and resume of a pod, for `cgpause pause` and `resume` and for the keys of `cgpause top`.

Every change goes through the ledger. Each function returns its result in words and passes an event to `note`. Only
protection is decided here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from cgpause.core import durations
from cgpause.core.clock import NS_PER_S, now_ns
from cgpause.core.errors import DamagedRecordError, PausedOtherwiseError, ProtectedError, printable
from cgpause.core.model import Mechanism, Owner, PauseRecord, Result
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.systemd import original_from_systemd
from cgpause.ledger import high, ledger
from cgpause.ledger.ledger import Resumed
from cgpause.ledger.plan import PauseRequest, plan_pause, plan_take_over
from cgpause.pods.tracked import TrackedPod
from cgpause.pods.tree import PodTree
from cgpause.policy.rules import OWN_POD
from cgpause.telemetry.events import Event, EventKind, make_event, resumed_event

Note = Callable[[Event], None]


def pause(
    tracked: TrackedPod,
    tree: PodTree,
    note: Note,
    *,
    command: str,
    mechanism: Mechanism | None = None,
    for_s: int | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> str:
    """Pause a pod of `tree` until an operator resumes it or `for_s` is over; `command` goes into the record's reason.

    If the daemon has paused the pod, the pause becomes the operator's, without a resume in between. If an operator has,
    `for_s` sets a new end.

    Raises:
        ProtectedError: the pod is protected, or may be, and `force` is False; or cgpause runs in it.
        PausedOtherwiseError: the pod is paused already, but not as requested; nothing was changed.
        CgpauseError: as in the ledger.
    """
    pod, config = tracked.pod, tree.config
    if pod.protected is not None and (not force or pod.protected == OWN_POD):
        raise ProtectedError(protected_text(pod.label, pod.protected))
    if not force and tree.is_word_unread(tracked):
        raise ProtectedError(f"{pod.label} may be protected: its own word could not be read in time; --force overrides")
    at_ns = now_ns()
    request = PauseRequest(
        mechanism=mechanism or config.mechanism.first,
        throttle=config.throttle.cpu_max,
        owner=Owner.MANUAL,
        reason=f"{command} by {user()}",
        since_ns=at_ns,
        expires_ns=None if for_s is None else at_ns + for_s * NS_PER_S,
    )
    if dry_run:
        return _rehearse(tracked.cgroup, request, mechanism)
    record, changed = ledger.pause(tracked.cgroup, request)
    if not changed and record.owner is Owner.DAEMON:
        taken = ledger.take_over(tracked.cgroup, request, mechanism)
        if taken is not None:
            note(make_event(EventKind.TAKEN_OVER, pod, taken.reason, taken))
            was = f"by the daemon until now: {printable(record.reason)}"
            return f"stays paused ({taken.mechanism}), by hand from now on; {was}"
        record, changed = ledger.pause(tracked.cgroup, request)  # the daemon has resumed the pod in the meantime
    if changed:
        original, written = record.original, record.written
        note(make_event(EventKind.PAUSED, pod, record.reason, record, cpu_max_from=original, cpu_max_to=written))
        return "paused: frozen" if written is None else f"paused: cpu.max {original} -> {written}"
    _refuse_broken(tracked.cgroup, record)
    if _only_ends_otherwise(record, request, mechanism):
        ends = ledger.set_end(tracked.cgroup, Owner.MANUAL, request.expires_ns)
        if ends is None:
            raise PausedOtherwiseError("it was resumed in this moment: try again")
        note(make_event(EventKind.EXTENDED, pod, request.reason, ends[1]))
        return f"stays paused ({record.mechanism}) by hand: {_new_end(ends[0], request)}"
    return _leave(record, request, mechanism)


def protected_text(label: str, rule: str) -> str:
    """Return the message for a pause of a protected pod, with the command that overrides the protection, if any."""
    overrides = "" if rule == OWN_POD else f"; cgpause pause --force {label} overrides"
    return f"{label} is protected: {rule}{overrides}"


def _refuse_broken(cgroup: Cgroup, record: PauseRecord) -> None:
    """Raise PausedOtherwiseError if another program has ended the pause: the operator must resume it first."""
    if not ledger.is_in_force(cgroup, record):
        raise PausedOtherwiseError(
            f"its pause ({record.mechanism}) {record.owner.by} is not in force, for another program has written since; "
            "cgpause resume it, then pause it again"
        )


def _only_ends_otherwise(record: PauseRecord, request: PauseRequest, mechanism: Mechanism | None) -> bool:
    """Return True if an operator's pause is as requested but for its end, which the request names."""
    return record.owner is Owner.MANUAL and request.expires_ns is not None and mechanism in (None, record.mechanism)


def _new_end(record: PauseRecord, request: PauseRequest) -> str:
    """Return the requested end of a pause and the one before, in words."""
    now, before = (
        "no end" if ends is None else durations.left((ends - request.since_ns) / NS_PER_S)
        for ends in (request.expires_ns, record.expires_ns)
    )
    return f"{now} (until now: {before})"


def _rehearse(cgroup: Cgroup, request: PauseRequest, mechanism: Mechanism | None) -> str:
    """Return the result of a dry run of `pause`, in words; writes nothing, and raises the same errors."""
    existing = ledger.read_record(cgroup)
    if existing is None:
        planned = plan_pause(cgroup, request)
        return f"would be paused ({planned.mechanism})"
    if existing.owner is Owner.DAEMON:
        planned, _ = plan_take_over(cgroup, existing, request, mechanism)
        how = "" if planned.mechanism is existing.mechanism else ", and frozen"  # a frozen pod is never throttled
        return f"would be taken over from the daemon{how}"
    _refuse_broken(cgroup, existing)
    if _only_ends_otherwise(existing, request, mechanism):
        return f"would stay paused ({existing.mechanism}) by hand: {_new_end(existing, request)}"
    return _leave(existing, request, mechanism)


def _leave(record: PauseRecord, request: PauseRequest, mechanism: Mechanism | None) -> str:
    """Return a text about a pause that stays unchanged; raise PausedOtherwiseError if it is not as requested."""
    existing = _describe_existing(record, request.since_ns)
    # An error too if the daemon has paused the pod again just now: it may resume the pod, against the request.
    if mechanism not in (None, record.mechanism) or record.owner is Owner.DAEMON:
        raise PausedOtherwiseError(f"{existing}; to pause it otherwise, cgpause resume it first")
    return existing


def resume(tracked: TrackedPod, note: Note, *, command: str, dry_run: bool = False) -> str:
    """Resume a pod, paused by the daemon or an operator, and return the result in words.

    Raises:
        CgpauseError: as in the ledger.
    """
    if dry_run:
        return would_resume(tracked.cgroup)
    with suppress(DamagedRecordError):
        if ledger.read_record(tracked.cgroup) is None:
            return describe_resume(None)  # no error for any user, because nothing is written
    resumed = ledger.resume(tracked.cgroup, second_source=original_from_systemd)
    if resumed is not None:
        note(resumed_event(tracked.pod, resumed, f"{command} by {user()}", Result.OPERATOR))
    return describe_resume(resumed)


def would_resume(cgroup: Cgroup) -> str:
    """Return the result that a resume would have, in words.

    Raises:
        CgpauseError: the record cannot be read, or is damaged and systemd knows no value.
    """
    try:
        return "would be resumed" if ledger.read_record(cgroup) else "is not paused"
    except DamagedRecordError:
        if original_from_systemd(cgroup.path) is None:
            raise
        return "would be resumed, with systemd's value, because its record is damaged"


def describe_resume(resumed: Resumed | high.Released | None) -> str:
    """Return the result of a resume, or of a release of memory.high, in words; None means the pod was not paused."""
    if resumed is None:
        return "is not paused"
    if isinstance(resumed, high.Released):
        released = f"released: memory.high {high.text(resumed.high_bytes)}"
        return f"{released} was written by another program meanwhile, and stays" if resumed.foreign else released
    if resumed.foreign:
        return f"resumed: cpu.max {resumed.cpu_max} was written by another program meanwhile, and stays"
    return f"resumed: cpu.max {resumed.cpu_max}"


def would_release(kubepods: Cgroup) -> str:
    """Return the result that a release of memory.high would have, in words.

    Raises:
        CgpauseError: as in `high.would_release`.
    """
    released = high.would_release(kubepods)
    if released is None:
        return "is not paused"
    if released.foreign:
        return f"would keep its memory.high {high.text(released.high_bytes)}: another program wrote it"
    return "would get its memory.high back"


def _describe_existing(record: PauseRecord, at_ns: int) -> str:
    """Return mechanism, owner, end and reason of an existing pause, in words."""
    if record.owner is Owner.DAEMON:
        ends = ", which resumes it when there is headroom"
    elif record.expires_ns is not None:
        ends = f", {durations.left((record.expires_ns - at_ns) / NS_PER_S)}"
    else:
        ends = ""
    return f"already paused ({record.mechanism}) {record.owner.by}{ends}: {printable(record.reason)}"


def user() -> str:
    """Return the name of the operator (before sudo), or the uid without one."""
    # Containers and units have no USER. NSS is not asked: it may use a server, which is slow while memory is tight.
    uid = os.getuid()
    return os.environ.get("SUDO_USER") or os.environ.get("USER") or ("root" if uid == 0 else f"uid {uid}")
