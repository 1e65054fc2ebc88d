"""memory.high of a kubepods root on an ordinary tree: restores, foreign and refused writes, locks, deaths, damage."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.crashing import PausableCgroup, deaths
from helpers.fixtures import Patch
from helpers.ledgers import high_state
from helpers.refusals import failing, gone, unreadable, unwritable
from helpers.trees import damage, lock_held

from cgpause.core.errors import (
    BusyError,
    CgpauseError,
    CgroupGoneError,
    DamagedRecordError,
    KernelReadError,
    KernelWriteError,
    MalformedError,
    RestoreError,
)
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import high
from cgpause.ledger.high import HighRecord, Released, decode_record, release, set_high

LEVEL, LOWER, HIGHER = 800 << 20, 700 << 20, 900 << 20
TIGHTER = 500 << 20


def arm(kubepods: Cgroup) -> HighRecord:
    record = set_high(kubepods, LEVEL, since_ns=1)
    assert record is not None
    return record


@pytest.mark.parametrize("original", ["max", str(HIGHER + 4096)])
def test_the_original_comes_back_after_any_number_of_levels(folder: Path, kubepods: Cgroup, original: str) -> None:
    (folder / "memory.high").write_text(f"{original}\n")
    for number, level in enumerate((LEVEL, HIGHER, LOWER)):
        record = set_high(kubepods, level, since_ns=7 + number)
        assert record == decode_record(os.getxattr(folder, high.XATTR))
        assert high.text(record.original_bytes) == original
        assert record.since_ns == 7  # start of the first change
        assert high_state(folder) == (str(level), True)

    assert release(kubepods) == Released(None if original == "max" else int(original), foreign=False)

    assert high_state(folder) == (original, False)
    assert release(kubepods) is None


@pytest.mark.parametrize(
    ("original", "written"),
    [
        pytest.param(LEVEL - 1, None, id="just-tighter"),
        pytest.param(LEVEL, None, id="equal"),
        pytest.param(LEVEL + 1, LEVEL, id="just-looser"),
    ],
)
def test_an_operators_own_value_is_never_loosened(
    folder: Path, kubepods: Cgroup, original: int, written: int | None
) -> None:
    (folder / "memory.high").write_text(f"{original}\n")

    record = set_high(kubepods, LEVEL, since_ns=1)

    assert (record and record.written_bytes) == written
    assert high_state(folder) == ((str(original), False) if written is None else (str(written), True))


def test_a_level_above_the_operators_value_puts_that_back(folder: Path, kubepods: Cgroup) -> None:
    (folder / "memory.high").write_text(f"{LEVEL}\n")
    set_high(kubepods, LOWER, since_ns=1)

    assert set_high(kubepods, HIGHER, since_ns=2) is None

    assert high_state(folder) == (str(LEVEL), False)


@pytest.mark.parametrize("foreign", ["max", str(HIGHER), str(TIGHTER)])
def test_a_foreign_value_stays_when_we_let_go(folder: Path, kubepods: Cgroup, foreign: str) -> None:
    set_high(kubepods, LEVEL, since_ns=1)
    (folder / "memory.high").write_text(f"{foreign}\n")

    released = release(kubepods)

    assert released is not None
    assert (high.text(released.high_bytes), released.foreign) == (foreign, foreign != "max")
    assert high_state(folder) == (foreign, False)


@pytest.mark.parametrize("foreign", ["max", str(HIGHER)])
def test_a_foreign_value_becomes_the_original(folder: Path, kubepods: Cgroup, foreign: str) -> None:
    set_high(kubepods, LEVEL, since_ns=1)
    (folder / "memory.high").write_text(f"{foreign}\n")

    set_high(kubepods, LEVEL, since_ns=2)

    assert high_state(folder) == (str(LEVEL), True)
    release(kubepods)
    assert high_state(folder) == (foreign, False)


def test_a_tighter_foreign_value_ends_it(folder: Path, kubepods: Cgroup) -> None:
    set_high(kubepods, LEVEL, since_ns=1)
    (folder / "memory.high").write_text(f"{TIGHTER}\n")

    assert set_high(kubepods, LEVEL, since_ns=2) is None
    assert high_state(folder) == (str(TIGHTER), False)


# --- crashes -------------------------------------------------------------------------------------------------------

Operation = Callable[[Cgroup], object]


def overwritten(kubepods: Cgroup) -> None:
    arm(kubepods)
    Path(kubepods.path, "memory.high").write_text(f"{HIGHER}\n")


@pytest.mark.parametrize("torn", [False, True], ids=["between-steps", "within-writes"])
@pytest.mark.parametrize(
    ("original", "prepare", "operation", "restored"),
    [
        pytest.param("max", lambda _: None, arm, "max", id="set"),
        pytest.param(str(HIGHER), lambda _: None, arm, str(HIGHER), id="set-below-a-limit"),
        pytest.param("max", arm, lambda c: set_high(c, LOWER, since_ns=2), "max", id="lower"),
        pytest.param("max", arm, lambda c: set_high(c, HIGHER, since_ns=2), "max", id="raise"),
        pytest.param("max", arm, release, "max", id="release"),
        pytest.param(str(HIGHER), arm, release, str(HIGHER), id="release-to-a-limit"),
        pytest.param(str(HIGHER), arm, lambda c: set_high(c, HIGHER, since_ns=2), str(HIGHER), id="let-go"),
        pytest.param("max", overwritten, arm, str(HIGHER), id="assert-again"),
        pytest.param("max", overwritten, release, str(HIGHER), id="release-a-foreign-value"),
    ],
)
def test_whoever_dies_before_any_step_leaves_what_release_puts_right(
    folder: Path, original: str, prepare: Operation, operation: Operation, restored: str, torn: bool
) -> None:
    place = PausableCgroup(str(folder.parent), folder.name)

    def set_up() -> None:
        for name in os.listxattr(folder):
            os.removexattr(folder, name)
        (folder / "memory.high").write_text(f"{original}\n")
        with place.open() as opened:
            prepare(opened)

    for _, where in deaths(place, set_up, operation, torn=torn):
        with place.open() as fresh:
            release(fresh)
            assert high_state(folder) == (restored, False), where
            assert release(fresh) is None, where


# --- trouble -------------------------------------------------------------------------------------------------------


def test_a_refused_write_leaves_nothing_behind(folder: Path, kubepods: Cgroup, monkeypatch: Patch) -> None:
    arm(kubepods)
    real = Cgroup.write

    def refuse(self: Cgroup, name: str, value: str) -> None:
        if value == str(LOWER):
            raise KernelWriteError(self.path, OSError(errno.EINVAL, ""), value)
        real(self, name, value)

    monkeypatch.setattr(Cgroup, "write", refuse)
    with pytest.raises(KernelWriteError):
        set_high(kubepods, LOWER, since_ns=2)

    assert high_state(folder) == ("max", False)


def test_another_writer_in_between_is_told_and_wins(folder: Path, kubepods: Cgroup, monkeypatch: Patch) -> None:
    real = Cgroup.write

    def overwrite(self: Cgroup, name: str, value: str) -> None:
        real(self, name, value)
        (folder / "memory.high").write_text(f"{TIGHTER}\n")

    monkeypatch.setattr(Cgroup, "write", overwrite)
    with pytest.raises(CgpauseError, match=f"read {TIGHTER}"):
        set_high(kubepods, LEVEL, since_ns=1)

    assert high_state(folder) == (str(TIGHTER), False)


def test_a_failed_undo_says_so_and_keeps_the_record(folder: Path, kubepods: Cgroup, monkeypatch: Patch) -> None:
    arm(kubepods)
    monkeypatch.setattr(Cgroup, "write", unwritable)
    with pytest.raises(RestoreError):
        release(kubepods)
    with pytest.raises(RestoreError):
        set_high(kubepods, LOWER, since_ns=2)

    assert high_state(folder) == (str(LEVEL), True)
    monkeypatch.undo()
    release(kubepods)
    assert high_state(folder) == ("max", False)


def test_the_record_is_what_the_documentation_shows(folder: Path, kubepods: Cgroup) -> None:
    set_high(kubepods, LEVEL, since_ns=5)
    set_high(kubepods, LOWER, since_ns=6)

    assert json.loads(os.getxattr(folder, high.XATTR)) == {
        "schema": 1,
        "original_memory_high": "max",
        "written_memory_high": str(LOWER),
        "replaced_memory_high": str(LEVEL),
        "since_ns": 5,
    }


def test_a_lock_delays_but_never_hangs(folder: Path, kubepods: Cgroup) -> None:
    arm(kubepods)
    with lock_held(folder):
        with pytest.raises(BusyError):
            release(kubepods, wait_s=0.01)
        with pytest.raises(BusyError):
            set_high(kubepods, LOWER, since_ns=1)
    assert high_state(folder) == (str(LEVEL), True)


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [os.removexattr, damage], ids=["removed", "damaged"])
def test_a_record_that_is_remembered_replaces_one_that_is_lost(
    folder: Path, kubepods: Cgroup, spoil: Callable[[Path, str], object]
) -> None:
    known = arm(kubepods)
    spoil(folder, high.XATTR)
    second = set_high(kubepods, LOWER, since_ns=9, known=known)
    assert second == HighRecord(None, LOWER, LEVEL, since_ns=1)
    assert decode_record(os.getxattr(folder, high.XATTR)) == second

    spoil(folder, high.XATTR)
    assert release(kubepods, known=second) == Released(None, foreign=False)
    assert high_state(folder) == ("max", False)


def test_the_record_on_the_cgroup_counts_more_than_a_remembered_one(folder: Path, kubepods: Cgroup) -> None:
    arm(kubepods)
    assert release(kubepods, known=HighRecord(5, LOWER, None, 1)) == Released(None, foreign=False)
    assert high_state(folder) == ("max", False)


def test_a_file_torn_by_a_writer_that_died_is_taken_for_ours(folder: Path, kubepods: Cgroup) -> None:
    arm(kubepods)
    (folder / "memory.high").write_text("")
    assert set_high(kubepods, LOWER, since_ns=2) == HighRecord(None, LOWER, LEVEL, since_ns=1)
    (folder / "memory.high").write_text("")
    assert release(kubepods) == Released(None, foreign=False)
    assert high_state(folder) == ("max", False)


def test_a_torn_file_without_a_record_is_nobodys(folder: Path, kubepods: Cgroup) -> None:
    (folder / "memory.high").write_text("")
    with pytest.raises(MalformedError):
        set_high(kubepods, LEVEL, since_ns=1)
    assert high_state(folder) == ("", False)


def test_a_value_that_somebody_removed_is_not_taken_for_ours(folder: Path, kubepods: Cgroup) -> None:
    assert not HighRecord(LEVEL * 2, LEVEL, None, 1).holds(None)
    (folder / "memory.high").write_text(f"{LEVEL * 2}\n")
    arm(kubepods)
    (folder / "memory.high").write_text("max\n")
    assert release(kubepods) == Released(None, foreign=True)
    assert high_state(folder) == ("max", False)


@pytest.mark.parametrize("error", [KernelReadError, CgroupGoneError])
@pytest.mark.parametrize("known", [True, False])
def test_a_release_that_cannot_look_is_a_restore_error_unless_all_is_gone(
    kubepods: Cgroup, monkeypatch: Patch, error: type[Exception], known: bool
) -> None:
    record = arm(kubepods)
    monkeypatch.setattr(Cgroup, "read", gone if error is CgroupGoneError else unreadable)
    with pytest.raises(CgroupGoneError if error is CgroupGoneError else RestoreError) as e:
        release(kubepods, known=record if known else None)
    assert error is CgroupGoneError or "cannot restore" in str(e.value)


def test_of_a_cgroup_that_vanishes_under_the_write_nothing_is_undone(kubepods: Cgroup, monkeypatch: Patch) -> None:
    calls: list[str] = []

    def vanish(kubepods: Cgroup, name: str, _value: str) -> None:
        calls.append(name)
        raise CgroupGoneError(kubepods.path)

    monkeypatch.setattr(Cgroup, "write", vanish)
    monkeypatch.setattr(Cgroup, "remove_xattr", lambda *_: calls.append("remove"))
    with pytest.raises(CgroupGoneError):
        set_high(kubepods, LEVEL, since_ns=1)
    assert calls == ["memory.high"]


def test_where_nothing_is_recorded_no_lock_is_waited_for(kubepods: Cgroup, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Cgroup, "locked", failing(AssertionError("it waits for the lock")))
    assert release(kubepods) is None


RECORD = {
    "schema": 1,
    "original_memory_high": "max",
    "written_memory_high": "4096",
    "replaced_memory_high": None,
    "since_ns": 3,
}
WRONG: list[tuple[str, object]] = [
    *[("schema", value) for value in (2, 0, None)],
    *[("written_memory_high", value) for value in ("max", 4096)],
    *[("original_memory_high", value) for value in (None, "-1")],
    *[("since_ns", value) for value in (True, 1.5, "3")],
    ("replaced_memory_high", 5),
]


@pytest.mark.parametrize(
    "data",
    [
        *[json.dumps({**RECORD, field: value}).encode() for field, value in WRONG],
        *[json.dumps({key: value for key, value in RECORD.items() if key != field}).encode() for field in RECORD],
        *[b"", b"rubbish", b"[]", b"7", b"null", b"\xff\xfe", b"[" * 2000],
    ],
)
def test_a_damaged_record_is_never_guessed_at_and_says_what_to_do(folder: Path, kubepods: Cgroup, data: bytes) -> None:
    (folder / "memory.high").write_text(f"{LEVEL}\n")
    os.setxattr(folder, high.XATTR, data)

    with pytest.raises(RestoreError, match=r"write memory\.high by hand.*setfattr -x user\.cgpause\.high"):
        release(kubepods)
    with pytest.raises(DamagedRecordError, match=r"user\.cgpause\.high is") as e:
        set_high(kubepods, LOWER, since_ns=2)
    assert len(str(e.value)) < 500, "shown in part"

    assert high_state(folder) == (str(LEVEL), True)


def test_a_record_without_damage_is_read() -> None:
    assert decode_record(json.dumps(RECORD).encode()) == HighRecord(None, 4096, None, 3)
