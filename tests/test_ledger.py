"""The pause protocol on an ordinary tree: restores, foreign writes, refused writes, locks and deaths."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from crashing import (
    HOLDS,
    SCENARIOS,
    THROTTLE,
    CgroupState,
    PausableCgroup,
    Scenario,
    SteppedCgroup,
    check_every_crash,
    count_steps,
    freeze,
    kill_before_step,
    request,
    take_over,
    throttle_and_freeze,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause import ledger, restore
from cgpause.cgroupfs import Cgroup
from cgpause.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    DamagedRecordError,
    HeldError,
    KernelReadError,
    KernelWriteError,
    RestoreError,
)
from cgpause.ledger import PauseRequest
from cgpause.model import CpuMax, Mechanism, Owner
from cgpause.record import XATTR

THROTTLED, FREEZE = Mechanism.THROTTLE, Mechanism.FREEZE


def make_cgroup(root: Path, path: str = "pod") -> PausableCgroup:
    folder = root / path
    folder.mkdir(parents=True)
    for name in ("cpu.max", "cpu.max.burst", "cgroup.freeze", "cgroup.kill"):
        (folder / name).touch()
    return PausableCgroup(str(root), path)


@pytest.fixture
def pausable_cgroup(tmp_path: Path) -> PausableCgroup:
    return make_cgroup(tmp_path)


@pytest.fixture
def cgroup(pausable_cgroup: PausableCgroup) -> Iterator[Cgroup]:
    with pausable_cgroup.open() as opened:
        yield opened


# --- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_whoever_dies_before_any_step_leaves_a_pod_that_resume_puts_right(
    pausable_cgroup: PausableCgroup, scenario: Scenario
) -> None:
    check_every_crash(pausable_cgroup, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_whoever_dies_inside_any_write_leaves_a_pod_that_resume_puts_right(
    pausable_cgroup: PausableCgroup, scenario: Scenario
) -> None:
    """An ordinary file is empty between its truncation and its write; a kernel file never is."""
    check_every_crash(pausable_cgroup, scenario, torn=True)


def test_a_daemon_killed_at_any_step_of_a_freeze_leaves_what_restore_undoes_without_it(tmp_path: Path) -> None:
    pod = make_cgroup(tmp_path, "kubepods.slice/kubepods-podb1f4499cb83e8ce3e7de136e9e81cb0d.slice")
    scenario = Scenario("", "50000 100000", 20000, lambda cgroup: hold(cgroup, "throttle"), freeze, "")
    for number in range(len(count_steps(pod, scenario))):
        scenario.set_up(pod)
        kill_before_step(pod, freeze, number, torn=False)
        assert pod.state().record is not None
        assert restore.main(["--cgroup-root", str(tmp_path)]) == 0
        assert pod.state() == CgroupState("50000 100000", "20000", "0", None), f"step {number}"


def hold(cgroup: PausableCgroup, how: str) -> None:
    with cgroup.open() as opened:
        HOLDS[how](opened)


# --- restore -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(
    ("cpu_max", "burst_us"),
    [
        ("max 100000", 0),
        ("50000 100000", 0),
        ("200000 50000", 0),
        ("50000 100000", 20000),
        ("max 1000000", 0),
        ("1000000 1000000", 1000000),
        ("1000 100000", 0),
        ("1000 1000000", 0),
    ],
)
def test_resume_puts_quota_period_burst_and_freeze_back(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, cpu_max: str, burst_us: int, mechanism: Mechanism
) -> None:
    pausable_cgroup.set(cpu_max, burst_us)
    before = pausable_cgroup.state()

    record, changed = ledger.pause(cgroup, request(mechanism))
    assert changed
    assert str(record.original) == cpu_max
    assert ledger.read_record(cgroup) == record
    assert pausable_cgroup.state().freeze == ("1" if mechanism is FREEZE else "0")

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, str(resumed.cpu_max), resumed.foreign) == (record, cpu_max, False)
    assert pausable_cgroup.state() == before


def test_freeze_leaves_the_quota_alone(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request(FREEZE))
    state = pausable_cgroup.state()
    assert (state.cpu_max, state.burst, state.freeze) == ("50000 100000", "20000", "1")


@pytest.mark.parametrize(
    ("cpu_max", "held"),
    [
        pytest.param("max 100000", "1000 100000", id="unlimited"),
        pytest.param("50000 100000", "1000 100000", id="more"),
        pytest.param("1000 100000", "1000 100000", id="equal"),
        pytest.param("9999 1000000", "9999 1000000", id="just-less"),
        pytest.param("10001 1000000", "1000 100000", id="just-more"),
    ],
)
def test_a_pause_never_gives_a_pod_more_than_it_had(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, cpu_max: str, held: str
) -> None:
    pausable_cgroup.set(cpu_max)
    ledger.pause(cgroup, request())
    assert pausable_cgroup.state().cpu_max == held


def test_burst_is_zeroed_before_the_quota_and_put_back_after_it(pausable_cgroup: PausableCgroup) -> None:
    """The kernel refuses a quota below the burst, and a burst above the quota."""
    pausable_cgroup.set("50000 100000", 20000)
    writes: list[str] = []

    def note(_: Cgroup, step: str, name: str) -> None:
        if step in ("write", "set_xattr", "remove_xattr"):
            writes.append(name)

    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, note) as stepped:
        ledger.pause(stepped, request())
        ledger.resume(stepped)
    assert writes == [XATTR, "cpu.max.burst", "cpu.max", "cpu.max", "cpu.max.burst", XATTR]


def test_a_pod_without_a_burst_file_can_be_paused(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000")
    (pausable_cgroup.folder / "cpu.max.burst").unlink()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert (pausable_cgroup.folder / "cpu.max").read_text() == "50000 100000\n"


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("second", Mechanism)
def test_pausing_a_paused_pod_changes_nothing(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, mechanism: Mechanism, second: Mechanism
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    record, _ = ledger.pause(cgroup, request(mechanism))
    paused = pausable_cgroup.state()
    again = PauseRequest(second, CpuMax(5000, 100000), Owner.MANUAL, "again", since_ns=99, expires_ns=100)
    assert ledger.pause(cgroup, again) == (record, False)
    assert pausable_cgroup.state() == paused


@pytest.mark.parametrize("cpu_max", ["max 100000", "1000 100000"])
def test_resuming_a_running_pod_changes_nothing(pausable_cgroup: PausableCgroup, cgroup: Cgroup, cpu_max: str) -> None:
    """Also one whose quota happens to be ours: only the record proves a pause."""
    pausable_cgroup.set(cpu_max)
    before = pausable_cgroup.state()
    assert ledger.resume(cgroup) is None
    assert pausable_cgroup.state() == before


def test_resuming_twice_changes_nothing_the_second_time(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    pausable_cgroup.write("cpu.max", "30000 100000")
    assert ledger.resume(cgroup) is None
    assert pausable_cgroup.state().cpu_max == "30000 100000"


@pytest.mark.parametrize("foreign", ["30000 100000", "max 100000", "1000 50000", "1000 1000000"])
def test_a_foreign_write_during_a_pause_stays(pausable_cgroup: PausableCgroup, cgroup: Cgroup, foreign: str) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", foreign)
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (str(resumed.cpu_max), resumed.foreign) == (foreign, True)
    assert pausable_cgroup.state() == CgroupState(foreign, "0", "0", None)


def test_the_original_written_back_by_somebody_is_not_foreign(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "50000 100000")
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert not resumed.foreign
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


def test_a_foreign_burst_during_a_pause_stays(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max.burst", "500")
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "500", "0", None)


def test_a_pod_somebody_thawed_is_left_thawed(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("max 100000")
    ledger.pause(cgroup, request(FREEZE))
    pausable_cgroup.write("cgroup.freeze", "0")
    assert ledger.resume(cgroup) is not None
    assert pausable_cgroup.state() == CgroupState("max 100000", "0", "0", None)


def test_a_pod_frozen_by_somebody_else_is_not_ours_to_freeze(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("max 100000")
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()
    with pytest.raises(CgpauseError, match="already frozen"):
        ledger.pause(cgroup, request(FREEZE))
    assert pausable_cgroup.state() == before


def test_throttling_a_pod_frozen_by_somebody_else_leaves_it_frozen(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("max 100000")
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()
    ledger.pause(cgroup, request())
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == before


# --- freeze --------------------------------------------------------------------------------------------------------


def test_a_throttled_pod_is_frozen_on_top_and_resume_undoes_both(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    before = pausable_cgroup.state()
    throttled, _ = ledger.pause(cgroup, request())

    record, changed = ledger.freeze(cgroup, "it grows")
    assert changed
    assert record == replace(throttled, mechanism=FREEZE, reason="it grows")
    assert ledger.read_record(cgroup) == record
    state = pausable_cgroup.state()
    assert (state.cpu_max, state.burst, state.freeze) == ("1000 100000", "0", "1")

    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert (resumed.record, resumed.cpu_max, resumed.foreign) == (record, CpuMax(50000, 100000), False)
    assert pausable_cgroup.state() == before


def test_a_freeze_is_recorded_first_leaves_the_quota_alone_and_is_undone_first(pausable_cgroup: PausableCgroup) -> None:
    """A write of the quota would refill the pool of the very pod that grows."""
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    steps: list[str] = []

    def note(_: Cgroup, step: str, name: str) -> None:
        if step in (*CHANGES, "lock"):
            steps.append(name or step)

    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, note) as stepped:
        freeze(stepped)
        ledger.resume(stepped)
    assert steps == ["lock", XATTR, "cgroup.freeze", "lock", "cgroup.freeze", "cpu.max", "cpu.max.burst", XATTR]


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        pytest.param(HOLDS["freeze"], id="paused-by-the-freezer"),
        pytest.param(throttle_and_freeze, id="frozen-on-top"),
        pytest.param(lambda cgroup: ledger.pause(cgroup, replace(request(), owner=Owner.MANUAL)), id="by-an-operator"),
    ],
)
def test_only_a_pod_the_daemon_throttles_is_frozen(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, prepare: Callable[[Cgroup], object]
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    prepare(cgroup)
    before = pausable_cgroup.state()
    assert ledger.freeze(cgroup, "again") == (ledger.read_record(cgroup), False)
    assert pausable_cgroup.state() == before


def test_a_throttled_pod_frozen_by_somebody_else_is_left_to_them(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cgroup.freeze", "1")
    before = pausable_cgroup.state()
    with pytest.raises(CgpauseError, match="already frozen"):
        ledger.freeze(cgroup, "it grows")
    assert pausable_cgroup.state() == before
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "0", "1", None)


def test_a_frozen_pod_somebody_thawed_gets_its_quota_back_all_the_same(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    throttle_and_freeze(cgroup)
    pausable_cgroup.write("cgroup.freeze", "0")
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


@pytest.mark.parametrize("trouble", ["refused", "another-writer"])
def test_a_pod_that_cannot_be_frozen_stays_throttled(pausable_cgroup: PausableCgroup, trouble: str) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    before = pausable_cgroup.state()
    reads = 0

    def interfere(cgroup: SteppedCgroup, step: str, name: str) -> None:
        nonlocal reads
        if name != "cgroup.freeze":
            return
        if trouble == "refused" and step == "write":
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(errno.EIO, os.strerror(errno.EIO)), "1")
        reads += step == "read"
        if trouble == "another-writer" and reads == 2:
            pausable_cgroup.write("cgroup.freeze", "0")

    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, interfere) as interfered:
        with pytest.raises(CgpauseError, match="EIO" if trouble == "refused" else "another writer"):
            freeze(interfered)
        assert pausable_cgroup.state() == before


# --- taken over by hand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [None, THROTTLED, FREEZE])
@pytest.mark.parametrize("held", HOLDS)
def test_a_pause_that_is_taken_over_goes_on_as_it_was_and_is_never_interrupted(
    pausable_cgroup: PausableCgroup, held: str, mechanism: Mechanism | None
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, held)
    before = pausable_cgroup.state()
    with pausable_cgroup.open() as cgroup:
        existing = ledger.read_record(cgroup)
    assert existing is not None
    is_refused = existing.mechanism is FREEZE and mechanism is THROTTLED

    def still_held(cgroup: SteppedCgroup, step: str, name: str) -> None:
        state = pausable_cgroup.state()
        assert (state.cpu_max, state.burst) == (before.cpu_max, before.burst), f"before {step} {name}"
        assert state.freeze >= before.freeze, f"before {step} {name}"
        assert state.record is not None, f"before {step} {name}"
        assert (step, name) not in {("write", "cpu.max"), ("remove_xattr", XATTR)}, "each write refills the pool"

    with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, still_held) as stepped:
        if is_refused:
            with pytest.raises(HeldError, match="frozen by the daemon"):
                take_over(mechanism)(stepped)
            assert pausable_cgroup.state() == before
            return
        taken = take_over(mechanism)(stepped)
    with pausable_cgroup.open() as cgroup:
        record = ledger.read_record(cgroup)
        assert taken == record
        assert record == replace(
            existing,
            owner=Owner.MANUAL,
            reason="by hand",
            expires_ns=3,
            mechanism=mechanism or existing.mechanism,
        )
        ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


@pytest.mark.parametrize("owner", [None, Owner.MANUAL])
def test_only_a_pause_of_the_daemons_is_taken_over(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, owner: Owner | None
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    if owner is not None:
        ledger.pause(cgroup, replace(request(), owner=owner))
    before = pausable_cgroup.state()

    assert take_over()(cgroup) is None
    assert pausable_cgroup.state() == before


def test_what_cannot_be_frozen_when_it_is_taken_over_stays_the_daemons(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    hold(pausable_cgroup, "throttle")
    before = pausable_cgroup.state()

    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if (step, name) == ("write", "cgroup.freeze"):
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(errno.EIO, os.strerror(errno.EIO)), "1")

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse) as refused,
        pytest.raises(KernelWriteError),
    ):
        take_over(FREEZE)(refused)
    assert pausable_cgroup.state() == before


@pytest.mark.parametrize("known", [True, False])
def test_whoever_resumes_for_one_owner_leaves_what_another_has_taken_over(
    pausable_cgroup: PausableCgroup,
    cgroup: Cgroup,
    known: bool,  # noqa: FBT001 - a table
) -> None:
    pausable_cgroup.set("50000 100000")
    remembered, _ = ledger.pause(cgroup, request())
    take_over()(cgroup)
    before = pausable_cgroup.state()

    with pytest.raises(HeldError, match="by hand"):
        ledger.resume(cgroup, known=remembered if known else None, owner=Owner.DAEMON)
    assert pausable_cgroup.state() == before
    assert ledger.resume(cgroup, owner=Owner.MANUAL) is not None


WISHES = ["50000 100000", "max 100000", "200000 50000", "3000 250000"]
STEPS = ["pause", "pause by freezer", "freeze", "take over", "reassert", "resume", *WISHES]


@settings(deadline=None)
@given(st.sampled_from(WISHES), st.sampled_from([0, 3000]), st.lists(st.sampled_from(STEPS), max_size=12))
def test_in_whatever_order_things_happen_the_last_wish_of_others_is_what_a_resume_leaves(
    cpu_max: str, burst_us: int, steps: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pod = make_cgroup(Path(folder))
        pod.set(cpu_max, burst_us)
        wish = cpu_max
        with pod.open() as cgroup:
            for step in steps:
                match step:
                    case "pause":
                        ledger.pause(cgroup, request())
                    case "pause by freezer":
                        ledger.pause(cgroup, request(FREEZE))
                    case "freeze":
                        freeze(cgroup)
                    case "take over":
                        take_over()(cgroup)
                    case "reassert":
                        ledger.reassert(cgroup, THROTTLE)
                    case "resume":
                        ledger.resume(cgroup)
                    case _:
                        wish = step
                        pod.write("cpu.max", wish)
                record = ledger.read_record(cgroup)
                assert (pod.state().freeze == "1") is (record is not None and record.mechanism is FREEZE)
            ledger.resume(cgroup)
        assert pod.state() == CgroupState(wish, str(burst_us), "0", None)


# --- reassert ------------------------------------------------------------------------------------------------------


def test_the_original_written_again_is_answered_and_stays_the_original(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    """systemd after daemon-reload."""
    pausable_cgroup.set("50000 100000", 20000)
    before, _ = ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "50000 100000")
    assert ledger.reassert(cgroup, THROTTLE) == before
    assert pausable_cgroup.state().cpu_max == "1000 100000"
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("50000 100000", "20000", "0", None)


def test_another_value_becomes_the_original(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    """A resize."""
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "30000 50000")
    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record.original, record.written) == (CpuMax(30000, 50000), THROTTLE)
    assert ledger.read_record(cgroup) == record
    resumed = ledger.resume(cgroup)
    assert resumed is not None
    assert not resumed.foreign
    assert pausable_cgroup.state() == CgroupState("30000 50000", "20000", "0", None)


def test_a_new_burst_becomes_the_original_burst(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "30000 100000")
    pausable_cgroup.write("cpu.max.burst", "7000")
    ledger.reassert(cgroup, THROTTLE)
    assert pausable_cgroup.state().burst == "0"
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("30000 100000", "7000", "0", None)


def test_a_resize_to_less_than_our_quota_is_kept(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("max 100000")
    ledger.pause(cgroup, request())
    pausable_cgroup.write("cpu.max", "1000 1000000")
    ledger.reassert(cgroup, THROTTLE)
    assert pausable_cgroup.state().cpu_max == "1000 1000000"
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState("1000 1000000", "0", "0", None)


@pytest.mark.parametrize("foreign", ["50000 100000", "30000 50000"], ids=["original", "resize"])
def test_a_foreign_write_to_a_pod_frozen_on_top_is_answered_and_it_stays_frozen(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, foreign: str
) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    throttle_and_freeze(cgroup)
    pausable_cgroup.write("cpu.max", foreign)
    record = ledger.reassert(cgroup, THROTTLE)
    assert record is not None
    assert (record.mechanism, str(record.original), record.written) == (FREEZE, foreign, THROTTLE)
    assert ledger.read_record(cgroup) == record
    state = pausable_cgroup.state()
    assert (state.cpu_max, state.freeze) == ("1000 100000", "1")
    ledger.resume(cgroup)
    assert pausable_cgroup.state() == CgroupState(foreign, "20000", "0", None)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="running"),
        *(pytest.param(how, id=f"{name}-and-nothing-changed") for name, how in HOLDS.items()),
    ],
)
def test_nothing_foreign_is_not_answered(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, prepare: Callable[[Cgroup], object]
) -> None:
    pausable_cgroup.set("50000 100000")
    prepare(cgroup)
    before = pausable_cgroup.state()
    assert ledger.reassert(cgroup, THROTTLE) is None
    assert pausable_cgroup.state() == before


# --- damaged records -----------------------------------------------------------------------------------------------

DAMAGED = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\xff\x00", id="binary"),
    pytest.param(b'{"schema":1}', id="truncated"),
    pytest.param(b'{"schema":2,"original":"max 100000"}', id="later-schema"),
    pytest.param(b"x" * 3000, id="huge"),
    pytest.param(b"[" * 3000, id="nested"),
]


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_record_is_never_guessed_at(pausable_cgroup: PausableCgroup, cgroup: Cgroup, data: bytes) -> None:
    pausable_cgroup.set("1000 100000")
    os.setxattr(pausable_cgroup.folder, XATTR, data)
    before = pausable_cgroup.state()
    with pytest.raises(DamagedRecordError):
        ledger.read_record(cgroup)
    with pytest.raises(DamagedRecordError):
        ledger.pause(cgroup, request())
    with pytest.raises(DamagedRecordError):
        ledger.reassert(cgroup, THROTTLE)
    with pytest.raises(DamagedRecordError):
        freeze(cgroup)
    with pytest.raises(RestoreError, match="setfattr"):
        ledger.resume(cgroup)
    with pytest.raises(RestoreError):
        ledger.resume(cgroup, second_source=lambda _: None)
    assert pausable_cgroup.state() == before


@pytest.mark.parametrize("data", DAMAGED)
def test_a_second_source_replaces_a_damaged_record(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, data: bytes
) -> None:
    pausable_cgroup.set("1000 100000")
    pausable_cgroup.write("cgroup.freeze", "1")
    os.setxattr(pausable_cgroup.folder, XATTR, data)
    asked: list[str] = []

    def systemd(path: str) -> CpuMax:
        asked.append(path)
        return CpuMax(75000, 100000)

    resumed = ledger.resume(cgroup, second_source=systemd)
    assert resumed is not None
    assert (resumed.record, resumed.cpu_max) == (None, CpuMax(75000, 100000))
    assert asked == [str(pausable_cgroup.folder)]
    assert pausable_cgroup.state() == CgroupState("75000 100000", "0", "0", None)


def test_a_sound_record_needs_no_second_source(pausable_cgroup: PausableCgroup, cgroup: Cgroup) -> None:
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    ledger.resume(cgroup, second_source=lambda _: pytest.fail("asked in vain"))
    assert pausable_cgroup.state().cpu_max == "50000 100000"


def test_a_record_of_an_impossible_pause_is_never_taken_for_a_finished_resume(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    """A throttle record that does not say what was written must not be dropped while the quota stays."""
    pausable_cgroup.set("50000 100000")
    ledger.pause(cgroup, request())
    fields = json.loads(os.getxattr(pausable_cgroup.folder, XATTR))
    os.setxattr(pausable_cgroup.folder, XATTR, json.dumps({**fields, "written_cpu_max": None}).encode())
    with pytest.raises(RestoreError):
        ledger.resume(cgroup)
    assert pausable_cgroup.state().record is not None


# --- the lock ------------------------------------------------------------------------------------------------------


class Holder:
    """Another process that holds a cgroup's lock."""

    def __init__(self, folder: Path) -> None:
        ready, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            fcntl.flock(os.open(folder / "cgroup.kill", os.O_WRONLY), fcntl.LOCK_EX)
            os.write(told, b"x")
            signal.pause()
            os._exit(0)
        os.read(ready, 1)
        os.close(ready)
        os.close(told)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


@pytest.fixture
def holder(pausable_cgroup: PausableCgroup) -> Iterator[Holder]:
    held = Holder(pausable_cgroup.folder)
    yield held
    held.kill()


def test_a_pod_locked_by_another_process_is_busy_until_that_one_is_gone(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, holder: Holder
) -> None:
    pausable_cgroup.set("50000 100000")
    before = pausable_cgroup.state()
    operations: list[Callable[[], object]] = [
        lambda: ledger.pause(cgroup, request(), wait_s=0.02),
        lambda: ledger.resume(cgroup, wait_s=0.02),
        lambda: ledger.reassert(cgroup, THROTTLE, wait_s=0),
        lambda: ledger.freeze(cgroup, "it grows", wait_s=0),
    ]
    for operation in operations:
        with pytest.raises(BusyError, match="locked by another process"):
            operation()
    assert pausable_cgroup.state() == before

    holder.kill()
    assert ledger.pause(cgroup, request())[1]
    assert ledger.resume(cgroup) is not None


def test_the_lock_is_given_back_after_success_and_after_failure(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    pausable_cgroup.set("50000 100000")
    with pausable_cgroup.open() as other:
        ledger.pause(cgroup, request(), wait_s=0)
        ledger.reassert(other, THROTTLE, wait_s=0)
        ledger.freeze(cgroup, "it grows", wait_s=0)
        os.setxattr(pausable_cgroup.folder, XATTR, b"damaged")
        with pytest.raises(RestoreError):
            ledger.resume(other, wait_s=0)
        with pytest.raises(RestoreError):
            ledger.resume(cgroup, wait_s=0)


# --- what the kernel refuses ---------------------------------------------------------------------------------------

CHANGES = ("write", "set_xattr", "remove_xattr")
ERRNOS = [errno.EINVAL, errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EIO]


class Refusal:
    """Refuses one step, once or from then on."""

    def __init__(self, number: int, code: int, *, persistent: bool) -> None:
        self._left = number
        self._code = code
        self._persistent = persistent
        self._key: tuple[str, str] | None = None

    def __call__(self, cgroup: SteppedCgroup, step: str, name: str) -> None:
        if step not in CHANGES:
            return
        if (self._persistent and self._key == (step, name)) or self._left == 0:
            self._key = (step, name)
            self._left = -1
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(self._code, os.strerror(self._code)), "1")
        self._left -= 1


def changes_of(cgroup: PausableCgroup, scenario: Scenario) -> int:
    return sum(step.startswith(CHANGES) for step in count_steps(cgroup, scenario))


REFUSED = [s for s in SCENARIOS if s.cpu_max in ("50000 100000", "2000 1000000")]


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("code", ERRNOS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("scenario", REFUSED, ids=lambda scenario: scenario.id)
def test_no_refused_write_leaves_a_pod_paused_without_a_record(
    pausable_cgroup: PausableCgroup,
    scenario: Scenario,
    code: int,
    persistent: bool,  # noqa: FBT001 - a table
) -> None:
    restored = CgroupState(scenario.restored, str(scenario.burst_us), "0", None)
    for number in range(changes_of(pausable_cgroup, scenario)):
        scenario.set_up(pausable_cgroup)
        refusal = Refusal(number, code, persistent=persistent)
        with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refusal) as refused:
            try:
                scenario.operation(refused)
            except (KernelWriteError, RestoreError):
                pass
            else:
                # A burst the newer quota leaves no room for is the one refusal that is no failure.
                assert code == errno.EINVAL
                assert pausable_cgroup.state().record is None
                continue
        if pausable_cgroup.state().record is None:
            assert pausable_cgroup.state() == restored, f"change {number}"
        with pausable_cgroup.open() as later:
            ledger.resume(later)
        assert pausable_cgroup.state() == restored, f"change {number}"


@pytest.mark.parametrize("code", ERRNOS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("burst_us", [0, 20000])
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_pause_refused_once_undoes_itself_and_takes_its_record_along(
    pausable_cgroup: PausableCgroup, mechanism: Mechanism, burst_us: int, code: int
) -> None:
    pausable_cgroup.set("50000 100000", burst_us)
    before = pausable_cgroup.state()
    for number in range(3 if burst_us and mechanism is THROTTLED else 2):
        refusal = Refusal(number, code, persistent=False)
        with SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refusal) as refused:
            with pytest.raises(KernelWriteError) as e:
                ledger.pause(refused, request(mechanism))
            assert e.value.errno == code
        assert pausable_cgroup.state() == before


def test_a_pause_that_cannot_be_undone_says_so_as_a_restore_error(pausable_cgroup: PausableCgroup) -> None:
    """The worst case has a name and an exit code (6) of its own, and the record stays."""
    pausable_cgroup.set("50000 100000", 20000)

    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if step == "write" and name == "cpu.max":
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(errno.EIO, ""), "")
        if step == "write" and name == "cpu.max.burst" and pausable_cgroup.state().burst == "0":
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(errno.EIO, ""), "")

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse) as refused,
        pytest.raises(RestoreError),
    ):
        ledger.pause(refused, request())
    assert pausable_cgroup.state().record is not None


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EROFS, errno.ENOSPC], ids=lambda code: errno.errorcode[code])
def test_without_a_record_nothing_is_written_at_all(pausable_cgroup: PausableCgroup, code: int) -> None:
    """On a file system without xattrs (or a read-only one) both setting and removing them fail."""
    pausable_cgroup.set("1000 100000")
    written: list[str] = []

    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if step.endswith("set_xattr") or (step == "remove_xattr" and code == errno.EROFS):
            error = OSError(code, os.strerror(code))
            raise KernelWriteError(f"{cgroup.path} (xattr {name})", error, "the record" if step == "set_xattr" else "")
        if step == "write":
            written.append(name)

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, refuse) as refused,
        pytest.raises(KernelWriteError, match="the record"),
    ):
        ledger.pause(refused, request())
    assert written == []


def test_another_writer_in_the_same_moment_is_an_error_and_wins(pausable_cgroup: PausableCgroup) -> None:
    pausable_cgroup.set("50000 100000", 20000)
    reads = 0

    def race(_: SteppedCgroup, step: str, name: str) -> None:
        nonlocal reads
        if (step, name) == ("read", "cpu.max"):
            reads += 1
            if reads == 2:
                pausable_cgroup.write("cpu.max", "70000 100000")

    with (
        SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, race) as raced,
        pytest.raises(CgpauseError, match="another writer"),
    ):
        ledger.pause(raced, request())
    assert pausable_cgroup.state() == CgroupState("70000 100000", "20000", "0", None)


@pytest.mark.parametrize("file", ["cpu.max", "cpu.max.burst"])
@pytest.mark.parametrize("text", ["", "garbage\n", "-1 100000\n", "1000 100000\n\n", "1000\x00"])
def test_a_pod_whose_values_cannot_be_understood_is_not_paused(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup, file: str, text: str
) -> None:
    pausable_cgroup.set("50000 100000")
    (pausable_cgroup.folder / file).write_text(text)
    before = pausable_cgroup.state()
    with pytest.raises(CgpauseError, match="malformed"):
        ledger.pause(cgroup, request())
    assert pausable_cgroup.state() == before


def test_a_pod_without_a_cpu_controller_is_an_error_that_says_so(
    pausable_cgroup: PausableCgroup, cgroup: Cgroup
) -> None:
    (pausable_cgroup.folder / "cpu.max").unlink()
    with pytest.raises(KernelReadError, match="controller"):
        ledger.pause(cgroup, request())


@pytest.mark.parametrize("scenario", REFUSED, ids=lambda scenario: scenario.id)
def test_a_cgroup_that_vanishes_before_any_step_is_gone_and_nothing_else(
    pausable_cgroup: PausableCgroup, scenario: Scenario
) -> None:
    for number in range(len(count_steps(pausable_cgroup, scenario)) - 1):  # the last one only unlocks
        scenario.set_up(pausable_cgroup)
        left = number

        def vanish(cgroup: SteppedCgroup, step: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0 and step not in ("has", "unlock"):
                raise CgroupGoneError(cgroup.path)

        with (
            SteppedCgroup(pausable_cgroup.root, pausable_cgroup.path, vanish) as vanishing,
            pytest.raises(CgroupGoneError),
        ):
            scenario.operation(vanishing)
