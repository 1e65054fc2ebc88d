"""memory.high of a kubepods root on an ordinary tree: restores, foreign writes, refused writes, locks and deaths."""

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
from helpers.refusals import unwritable
from helpers.trees import lock_held

from cgpause.core.errors import BusyError, CgpauseError, KernelWriteError, RestoreError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import high
from cgpause.ledger.high import HighRecord, Released, decode_record, release, set_high

LEVEL, LOWER, HIGHER = 800 << 20, 700 << 20, 900 << 20
TIGHTER = 500 << 20


def recorded(folder: Path) -> HighRecord:
    return decode_record(os.getxattr(folder, high.XATTR))


@pytest.mark.parametrize("original", ["max", str(HIGHER + 4096)])
def test_what_was_there_before_comes_back_after_any_number_of_levels(
    folder: Path, kubepods: Cgroup, original: str
) -> None:
    (folder / "memory.high").write_text(f"{original}\n")
    for number, level in enumerate((LEVEL, HIGHER, LOWER)):
        record = set_high(kubepods, level, since_ns=7 + number)
        assert record == recorded(folder)
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


def first(kubepods: Cgroup) -> object:
    return set_high(kubepods, LEVEL, since_ns=1)


def leave(_: Path) -> None:
    """Write nothing before the operation."""


def armed(folder: Path) -> None:
    with Cgroup(str(folder.parent), folder.name) as kubepods:
        set_high(kubepods, LEVEL, since_ns=1)


def overwritten(folder: Path) -> None:
    armed(folder)
    (folder / "memory.high").write_text(f"{HIGHER}\n")


@pytest.mark.parametrize("torn", [False, True], ids=["between-steps", "within-writes"])
@pytest.mark.parametrize(
    ("original", "prepare", "operation", "restored"),
    [
        pytest.param("max", leave, first, "max", id="set"),
        pytest.param(str(HIGHER), leave, first, str(HIGHER), id="set-below-a-limit"),
        pytest.param("max", armed, lambda c: set_high(c, LOWER, since_ns=2), "max", id="lower"),
        pytest.param("max", armed, lambda c: set_high(c, HIGHER, since_ns=2), "max", id="raise"),
        pytest.param("max", armed, release, "max", id="release"),
        pytest.param(str(HIGHER), armed, release, str(HIGHER), id="release-to-a-limit"),
        pytest.param(str(HIGHER), armed, lambda c: set_high(c, HIGHER, since_ns=2), str(HIGHER), id="let-go"),
        pytest.param("max", overwritten, first, str(HIGHER), id="assert-again"),
        pytest.param("max", overwritten, release, str(HIGHER), id="release-a-foreign-value"),
    ],
)
def test_whoever_dies_before_any_step_leaves_what_release_puts_right(
    folder: Path, original: str, prepare: Callable[[Path], None], operation: Operation, restored: str, torn: bool
) -> None:
    place = PausableCgroup(str(folder.parent), folder.name)

    def set_up() -> None:
        for name in os.listxattr(folder):
            os.removexattr(folder, name)
        (folder / "memory.high").write_text(f"{original}\n")
        prepare(folder)

    for _, where in deaths(place, set_up, operation, torn=torn):
        with place.open() as fresh:
            release(fresh)
            assert high_state(folder) == (restored, False), where
            assert release(fresh) is None, where


# --- trouble -------------------------------------------------------------------------------------------------------


def test_a_refused_write_leaves_nothing_behind(folder: Path, kubepods: Cgroup, monkeypatch: Patch) -> None:
    armed(folder)
    real = Cgroup.write

    def refuse(self: Cgroup, name: str, value: str) -> None:
        if value == str(LOWER):
            raise KernelWriteError(self.path, OSError(errno.EINVAL, ""), value)
        real(self, name, value)

    monkeypatch.setattr(Cgroup, "write", refuse)
    with pytest.raises(KernelWriteError):
        set_high(kubepods, LOWER, since_ns=2)

    assert high_state(folder) == ("max", False)


def test_another_writer_in_between_is_noticed_and_keeps_its_value(
    folder: Path, kubepods: Cgroup, monkeypatch: Patch
) -> None:
    real = Cgroup.write

    def overwrite(self: Cgroup, name: str, value: str) -> None:
        real(self, name, value)
        (folder / "memory.high").write_text(f"{TIGHTER}\n")

    monkeypatch.setattr(Cgroup, "write", overwrite)
    with pytest.raises(CgpauseError, match=f"read {TIGHTER}"):
        set_high(kubepods, LEVEL, since_ns=1)

    assert high_state(folder) == (str(TIGHTER), False)


def test_a_failed_undo_says_so_and_keeps_the_record(folder: Path, kubepods: Cgroup, monkeypatch: Patch) -> None:
    armed(folder)
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
    armed(folder)
    with lock_held(folder):
        with pytest.raises(BusyError):
            release(kubepods, wait_s=0.01)
        with pytest.raises(BusyError):
            set_high(kubepods, LOWER, since_ns=1)
    assert high_state(folder) == (str(LEVEL), True)
