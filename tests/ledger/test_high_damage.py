"""memory.high after its record or the file was lost, torn or changed by another writer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.ledgers import high_state
from helpers.refusals import failing, gone, unreadable
from helpers.trees import damage

from cgpause.core.errors import CgroupGoneError, DamagedRecordError, KernelReadError, MalformedError, RestoreError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import high
from cgpause.ledger.high import HighRecord, Released, decode_record, release, set_high

LEVEL, LOWER = 1 << 30, 1 << 29


def armed(kubepods: Cgroup) -> HighRecord:
    record = set_high(kubepods, LEVEL, since_ns=1)
    assert record is not None
    return record


@pytest.mark.parametrize("spoil", [os.removexattr, damage], ids=["removed", "damaged"])
def test_a_record_that_is_remembered_replaces_one_that_is_lost(
    folder: Path, kubepods: Cgroup, spoil: Callable[[Path, str], object]
) -> None:
    known = armed(kubepods)
    spoil(folder, high.XATTR)
    second = set_high(kubepods, LOWER, since_ns=9, known=known)
    assert second == HighRecord(None, LOWER, LEVEL, since_ns=1)
    assert decode_record(os.getxattr(folder, high.XATTR)) == second

    spoil(folder, high.XATTR)
    assert release(kubepods, known=second) == Released(None, foreign=False)
    assert high_state(folder) == ("max", False)


def test_the_record_on_the_cgroup_counts_more_than_a_remembered_one(folder: Path, kubepods: Cgroup) -> None:
    armed(kubepods)
    assert release(kubepods, known=HighRecord(5, LOWER, None, 1)) == Released(None, foreign=False)
    assert high_state(folder) == ("max", False)


def test_a_file_torn_by_a_writer_that_died_is_taken_for_ours(folder: Path, kubepods: Cgroup) -> None:
    armed(kubepods)
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
    armed(kubepods)
    (folder / "memory.high").write_text("max\n")
    assert release(kubepods) == Released(None, foreign=True)
    assert high_state(folder) == ("max", False)


@pytest.mark.parametrize("error", [KernelReadError, CgroupGoneError])
@pytest.mark.parametrize("known", [True, False])
def test_a_release_that_cannot_look_is_a_restore_error_unless_all_is_gone(
    kubepods: Cgroup, monkeypatch: Patch, error: type[Exception], known: bool
) -> None:
    record = armed(kubepods)
    monkeypatch.setattr(Cgroup, "read", gone if error is CgroupGoneError else unreadable)
    with pytest.raises(CgroupGoneError if error is CgroupGoneError else RestoreError) as e:
        release(kubepods, known=record if known else None)
    assert error is CgroupGoneError or "cannot restore" in str(e.value)


def test_a_cgroup_that_vanishes_under_the_write_is_gone_and_nothing_is_undone(
    kubepods: Cgroup, monkeypatch: Patch
) -> None:
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
def test_a_damaged_record_is_no_basis_for_a_guess_and_says_what_to_do(
    folder: Path, kubepods: Cgroup, data: bytes
) -> None:
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
