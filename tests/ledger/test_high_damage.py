"""memory.high after its record or the file was lost, torn or changed by another writer."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cgpause.core.errors import (
    CgroupGoneError,
    DamagedRecordError,
    KernelReadError,
    MalformedError,
    RestoreError,
)
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import high
from cgpause.ledger.high import (
    HighRecord,
    Released,
    decode_record,
    encode_record,
    read_record,
    release,
    set_high,
)

LEVEL, LOWER = 1 << 30, 1 << 29
Patch = pytest.MonkeyPatch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kubepods"
    made.mkdir()
    (made / "memory.high").write_text("max\n")
    (made / "cgroup.kill").touch()
    return made


@pytest.fixture
def cgroup(tmp_path: Path, folder: Path) -> Iterator[Cgroup]:
    with Cgroup(str(tmp_path), folder.name) as opened:
        yield opened


def state(folder: Path) -> tuple[str, list[str]]:
    return (folder / "memory.high").read_text().strip(), os.listxattr(folder)


def armed(cgroup: Cgroup) -> HighRecord:
    record = set_high(cgroup, LEVEL, since_ns=1)
    assert record is not None
    return record


def spoil(folder: Path, how: str) -> None:
    if how == "removed":
        os.removexattr(folder, high.XATTR)
    else:
        os.setxattr(folder, high.XATTR, b"{}")


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_record_that_is_remembered_replaces_one_that_is_lost(folder: Path, cgroup: Cgroup, how: str) -> None:
    known = armed(cgroup)
    spoil(folder, how)
    second = set_high(cgroup, LOWER, since_ns=9, known=known)
    assert second == HighRecord(None, LOWER, LEVEL, since_ns=1)
    assert read_record(cgroup) == second

    spoil(folder, how)
    assert release(cgroup, known=second) == Released(None, foreign=False)
    assert state(folder) == ("max", [])


def test_the_record_on_the_cgroup_counts_more_than_a_remembered_one(folder: Path, cgroup: Cgroup) -> None:
    armed(cgroup)
    assert release(cgroup, known=HighRecord(5, LOWER, None, 1)) == Released(None, foreign=False)
    assert state(folder) == ("max", [])


def test_a_damaged_record_without_another_stops_both_and_says_what_to_do(folder: Path, cgroup: Cgroup) -> None:
    armed(cgroup)
    spoil(folder, "damaged")
    with pytest.raises(RestoreError, match=r"write memory\.high by hand.*setfattr -x user\.cgpause\.high"):
        release(cgroup)
    with pytest.raises(DamagedRecordError):
        set_high(cgroup, LOWER, since_ns=2)
    with pytest.raises(DamagedRecordError):
        read_record(cgroup)
    assert state(folder) == (str(LEVEL), [high.XATTR])


def test_a_file_torn_by_a_writer_that_died_is_taken_for_ours(folder: Path, cgroup: Cgroup) -> None:
    armed(cgroup)
    (folder / "memory.high").write_text("")
    assert set_high(cgroup, LOWER, since_ns=2) == HighRecord(None, LOWER, LEVEL, since_ns=1)
    (folder / "memory.high").write_text("")
    assert release(cgroup) == Released(None, foreign=False)
    assert state(folder) == ("max", [])


def test_a_torn_file_without_a_record_is_nobodys(folder: Path, cgroup: Cgroup) -> None:
    (folder / "memory.high").write_text("")
    with pytest.raises(MalformedError):
        set_high(cgroup, LEVEL, since_ns=1)
    assert state(folder) == ("", [])


def test_a_value_that_is_being_replaced_is_still_ours(folder: Path, cgroup: Cgroup) -> None:
    """A daemon that dies between the record and the write leaves the earlier value."""
    os.setxattr(folder, high.XATTR, encode_record(HighRecord(LEVEL * 2, LOWER, LEVEL, 1)))
    (folder / "memory.high").write_text(f"{LEVEL}\n")
    assert release(cgroup) == Released(LEVEL * 2, foreign=False)
    assert state(folder) == (str(LEVEL * 2), [])


def test_a_value_that_somebody_removed_is_not_taken_for_ours(folder: Path, cgroup: Cgroup) -> None:
    assert not HighRecord(LEVEL * 2, LEVEL, None, 1).holds(None)
    (folder / "memory.high").write_text(f"{LEVEL * 2}\n")
    armed(cgroup)
    (folder / "memory.high").write_text("max\n")
    assert release(cgroup) == Released(None, foreign=True)
    assert state(folder) == ("max", [])


@pytest.mark.parametrize("error", [KernelReadError, CgroupGoneError])
@pytest.mark.parametrize("known", [True, False])
def test_a_release_that_cannot_look_is_a_restore_error_unless_all_is_gone(
    cgroup: Cgroup,
    monkeypatch: Patch,
    error: type[Exception],
    known: bool,  # noqa: FBT001 - a table
) -> None:
    record = armed(cgroup)

    def refuse(*_: object) -> bytes:
        raise CgroupGoneError("x") if error is CgroupGoneError else KernelReadError("x", OSError(errno.EIO, ""))

    monkeypatch.setattr(Cgroup, "read", refuse)
    with pytest.raises(CgroupGoneError if error is CgroupGoneError else RestoreError) as e:
        release(cgroup, known=record if known else None)
    assert error is CgroupGoneError or "cannot restore" in str(e.value)


def test_a_cgroup_that_vanishes_under_the_write_is_gone_and_nothing_is_undone(
    cgroup: Cgroup, monkeypatch: Patch
) -> None:
    calls: list[str] = []

    def vanish(cgroup: Cgroup, name: str, _value: str) -> None:
        calls.append(name)
        raise CgroupGoneError(cgroup.path)

    monkeypatch.setattr(Cgroup, "write", vanish)
    monkeypatch.setattr(Cgroup, "remove_xattr", lambda *_: calls.append("remove"))
    with pytest.raises(CgroupGoneError):
        set_high(cgroup, LEVEL, since_ns=1)
    assert calls == ["memory.high"]


def test_where_nothing_is_recorded_no_lock_is_waited_for(cgroup: Cgroup, monkeypatch: Patch) -> None:
    @contextmanager
    def locked(_: Cgroup, *, wait_s: float) -> Iterator[None]:
        raise AssertionError(wait_s)
        yield

    monkeypatch.setattr(Cgroup, "locked", locked)
    assert release(cgroup) is None


RECORD = {
    "schema": 1,
    "original_memory_high": "max",
    "written_memory_high": "4096",
    "replaced_memory_high": None,
    "since_ns": 3,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2),
        ("schema", 0),
        ("schema", None),
        ("written_memory_high", "max"),
        ("written_memory_high", 4096),
        ("replaced_memory_high", 5),
        ("original_memory_high", None),
        ("original_memory_high", "-1"),
        ("since_ns", True),
        ("since_ns", 1.5),
        ("since_ns", "3"),
    ],
)
def test_a_record_with_a_value_that_cannot_be_is_damaged(field: str, value: object) -> None:
    assert decode_record(json.dumps(RECORD).encode()) == HighRecord(None, 4096, None, 3)
    with pytest.raises(DamagedRecordError, match=r"user\.cgpause\.high is"):
        decode_record(json.dumps({**RECORD, field: value}).encode())


@pytest.mark.parametrize("field", RECORD)
def test_a_record_without_one_of_its_fields_is_damaged(field: str) -> None:
    with pytest.raises(DamagedRecordError):
        decode_record(json.dumps({key: value for key, value in RECORD.items() if key != field}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_record_is_damaged_and_shown_in_part(data: bytes) -> None:
    with pytest.raises(DamagedRecordError) as e:
        decode_record(data)
    assert len(str(e.value)) < 500


@pytest.mark.parametrize("replaced", [None, 8192])
def test_a_record_reads_back_as_it_was_written(replaced: int | None) -> None:
    record = HighRecord(None, 4096, replaced, 3)
    assert decode_record(encode_record(record)) == record
