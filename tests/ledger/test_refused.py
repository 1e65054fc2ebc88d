"""Writes that the kernel refuses, at any step."""

from __future__ import annotations

import errno
import os

import pytest
from helpers.crashing import CHANGES, SCENARIOS, CgroupState, PausableCgroup, Scenario, SteppedCgroup, request
from helpers.ledgers import refusal

from cgpause.core.errors import CgpauseError, CgroupGoneError, KernelWriteError, RestoreError
from cgpause.core.model import Mechanism
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger

ERRNOS = [errno.EINVAL, errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EIO]


class Refusal:
    """A hook that refuses one writing step, once or from then on."""

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
            raise refusal(cgroup, name, self._code)
        self._left -= 1


REFUSED = [s for s in SCENARIOS if s.cpu_max in ("50000 100000", "2000 1000000")]


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("code", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("scenario", REFUSED, ids=lambda scenario: scenario.id)
def test_no_refused_write_leaves_a_pod_paused_without_a_record(
    pod: PausableCgroup, cgroup: Cgroup, scenario: Scenario, code: int, persistent: bool
) -> None:
    restored = CgroupState(scenario.restored, str(scenario.burst_us), "0", None)
    for number in range(sum(step.startswith(CHANGES) for step in scenario.steps(pod))):
        scenario.set_up(pod)
        refusal = Refusal(number, code, persistent=persistent)
        with pod.stepped(refusal) as refused:
            try:
                scenario.operation(refused)
            except (KernelWriteError, RestoreError):
                pass
            else:
                # A newer quota too small for the burst is the only refusal that is no failure.
                assert code == errno.EINVAL
                assert pod.state().record is None
                continue
        if pod.state().record is None:
            assert pod.state() == restored, f"change {number}"
        ledger.resume(cgroup)
        assert pod.state() == restored, f"change {number}"


@pytest.mark.parametrize("code", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("burst_us", [0, 20000])
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_pause_refused_once_undoes_itself_and_takes_its_record_along(
    pod: PausableCgroup, mechanism: Mechanism, burst_us: int, code: int
) -> None:
    pod.set("50000 100000", burst_us)
    before = pod.state()
    for number in range(3 if burst_us and mechanism is Mechanism.THROTTLE else 2):
        refusal = Refusal(number, code, persistent=False)
        with pod.stepped(refusal) as refused:
            with pytest.raises(KernelWriteError) as e:
                ledger.pause(refused, request(mechanism))
            assert e.value.errno == code
        assert pod.state() == before


def test_a_pause_that_cannot_be_undone_says_so_as_a_restore_error(pod: PausableCgroup) -> None:
    """The worst case has its own error class and its own exit code (6), and the record stays."""

    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if step == "write" and (name == "cpu.max" or (name == "cpu.max.burst" and pod.state().burst == "0")):
            raise refusal(cgroup, name)

    with pod.stepped(refuse) as refused, pytest.raises(RestoreError):
        ledger.pause(refused, request())
    assert pod.state().record is not None


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
def test_without_a_record_nothing_is_written_at_all(pod: PausableCgroup, code: int) -> None:
    """On a file system without xattrs, or a read-only one, both setting and removing them fail."""
    pod.set("1000 100000")
    written: list[str] = []

    def refuse(cgroup: SteppedCgroup, step: str, name: str) -> None:
        if step.endswith("set_xattr") or (step == "remove_xattr" and code == errno.EROFS):
            error = OSError(code, os.strerror(code))
            raise KernelWriteError(f"{cgroup.path} (xattr {name})", error, "the record" if step == "set_xattr" else "")
        if step == "write":
            written.append(name)

    with pod.stepped(refuse) as refused, pytest.raises(KernelWriteError, match="the record"):
        ledger.pause(refused, request())
    assert written == []


def test_another_writer_in_the_same_moment_is_an_error_and_wins(pod: PausableCgroup) -> None:
    reads = 0

    def race(_: SteppedCgroup, step: str, name: str) -> None:
        nonlocal reads
        if (step, name) == ("read", "cpu.max"):
            reads += 1
            if reads == 3:  # to plan, before the write, and to check
                pod.write("cpu.max", "70000 100000")

    with pod.stepped(race) as raced, pytest.raises(CgpauseError, match="another writer"):
        ledger.pause(raced, request())
    assert pod.state() == CgroupState("70000 100000", "20000", "0", None)


@pytest.mark.parametrize("file", ["cpu.max", "cpu.max.burst"])
@pytest.mark.parametrize("text", ["", "garbage\n", "-1 100000\n", "1000 100000\n\n", "1000\x00"])
def test_a_pod_whose_values_cannot_be_understood_is_not_paused(
    pod: PausableCgroup, cgroup: Cgroup, file: str, text: str
) -> None:
    (pod.folder / file).write_text(text)
    before = pod.state()
    with pytest.raises(CgpauseError, match="malformed"):
        ledger.pause(cgroup, request())
    assert pod.state() == before


@pytest.mark.parametrize("scenario", REFUSED, ids=lambda scenario: scenario.id)
def test_a_cgroup_that_vanishes_before_any_step_is_just_gone(pod: PausableCgroup, scenario: Scenario) -> None:
    for number in range(len(scenario.steps(pod)) - 1):  # the last step only unlocks
        scenario.set_up(pod)
        left = number

        def vanish(cgroup: SteppedCgroup, step: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0 and step not in ("has", "unlock"):
                raise CgroupGoneError(cgroup.path)

        with pod.stepped(vanish) as vanishing, pytest.raises(CgroupGoneError):
            scenario.operation(vanishing)
