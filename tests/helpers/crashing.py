"""Scenarios that kill a writer before every step it takes on a cgroup, for an ordinary tree or a real kernel.

A scenario prepares a cgroup and runs one operation of the ledger in a child process that is killed (SIGKILL) before
step 0, then before step 1 and so on, each time from the start. A dry pass counts the steps, so a new step in the ledger
is covered at once. After each death a fresh resume restores the pod, and a second resume finds nothing left to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cgpause.core.model import CpuMax, Mechanism, Owner, PauseRecord
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.plan import PauseRequest
from cgpause.ledger.record import XATTR, decode_record

THROTTLE = CpuMax(1000, 100000)
CHANGES = ("write", "set_xattr", "remove_xattr")
"""The steps that change a cgroup."""

Before = Callable[["SteppedCgroup", str, str], None]


class SteppedCgroup(Cgroup):
    """A cgroup that calls `before` with the step and the file name before each step that touches the kernel."""

    __slots__ = ("_before",)

    def __init__(self, root: str, path: str, before: Before) -> None:
        super().__init__(root, path)
        self._before = before

    def read(self, name: str) -> bytes:
        self._before(self, "read", name)
        return super().read(name)

    def has(self, name: str) -> bool:
        self._before(self, "has", name)
        return super().has(name)

    def write(self, name: str, value: str) -> None:
        self._before(self, "write", name)
        super().write(name, value)

    def get_xattr(self, name: str) -> bytes | None:
        self._before(self, "get_xattr", name)
        return super().get_xattr(name)

    def set_xattr(self, name: str, value: bytes) -> None:
        self._before(self, "set_xattr", name)
        super().set_xattr(name, value)

    def remove_xattr(self, name: str) -> None:
        self._before(self, "remove_xattr", name)
        super().remove_xattr(name)

    @contextlib.contextmanager
    def locked(self, *, wait_s: float) -> Iterator[None]:
        self._before(self, "lock", "")
        with super().locked(wait_s=wait_s):
            yield
            self._before(self, "unlock", "")


@dataclass(frozen=True)
class CgroupState:
    """The state of all files that a pause may change, and the pause record."""

    cpu_max: str
    burst: str
    freeze: str
    record: bytes | None


@dataclass(frozen=True)
class PausableCgroup:
    """A cgroup made for a test, on a real kernel or in a plain folder."""

    root: str
    path: str

    @property
    def folder(self) -> Path:
        return Path(self.root, self.path)

    def open(self) -> Cgroup:
        return Cgroup(self.root, self.path)

    def stepped(self, before: Before) -> SteppedCgroup:
        """Open the cgroup; `before` is called before each step that touches the kernel."""
        return SteppedCgroup(self.root, self.path, before)

    def set(self, cpu_max: str, burst_us: int = 0) -> None:
        """Remove any pause and write these limits, as kubelet would have made the pod."""
        with contextlib.suppress(OSError):
            os.removexattr(self.folder, XATTR)
        # The kernel requires quota >= burst at every moment.
        for file, value in (
            ("cgroup.freeze", "0"),
            ("cpu.max.burst", "0"),
            ("cpu.max", cpu_max),
            ("cpu.max.burst", str(burst_us)),
        ):
            self.write(file, value)

    def write(self, file: str, value: str) -> None:
        """Write a file as a foreign writer would (kubelet, systemd, an operator's echo)."""
        (self.folder / file).write_text(f"{value}\n")

    def state(self) -> CgroupState:
        record = os.getxattr(self.folder, XATTR) if XATTR in os.listxattr(self.folder) else None
        return CgroupState(self._read("cpu.max"), self._read("cpu.max.burst"), self._read("cgroup.freeze"), record)

    def record(self) -> PauseRecord:
        return decode_record(os.getxattr(self.folder, XATTR))

    def _read(self, file: str) -> str:
        return (self.folder / file).read_text().strip()


@dataclass(frozen=True)
class Scenario:
    """One operation to kill, and the cpu.max that the following resume must restore."""

    id: str
    cpu_max: str
    burst_us: int
    prepare: Callable[[PausableCgroup], object]
    operation: Callable[[Cgroup], object]
    restored: str

    def set_up(self, cgroup: PausableCgroup) -> None:
        cgroup.set(self.cpu_max, self.burst_us)
        self.prepare(cgroup)

    def steps(self, cgroup: PausableCgroup) -> list[str]:
        self.set_up(cgroup)
        return count_steps(cgroup, self.operation)


def request(mechanism: Mechanism = Mechanism.THROTTLE, throttle: CpuMax = THROTTLE) -> PauseRequest:
    return PauseRequest(mechanism, throttle, Owner.DAEMON, "test", since_ns=1)


def _pause(mechanism: Mechanism) -> Callable[[Cgroup], object]:
    return lambda cgroup: ledger.pause(cgroup, request(mechanism))


def freeze(cgroup: Cgroup) -> object:
    return ledger.freeze(cgroup, "it grows")


def throttle_and_freeze(cgroup: Cgroup) -> None:
    ledger.pause(cgroup, request())
    freeze(cgroup)


PAUSES: dict[str, Callable[[Cgroup], object]] = {
    "throttle": _pause(Mechanism.THROTTLE),
    "freeze": _pause(Mechanism.FREEZE),
    "throttle-and-freeze": throttle_and_freeze,
}


def _paused(how: str, foreign: str | None = None) -> Callable[[PausableCgroup], object]:
    def prepare(cgroup: PausableCgroup) -> None:
        with cgroup.open() as opened:
            PAUSES[how](opened)
        if foreign is not None:
            cgroup.write("cpu.max", foreign)

    return prepare


def _thawed(cgroup: PausableCgroup) -> None:
    """Leave the cgroup as a daemon does that dies between the record and the freeze."""
    _paused("freeze")(cgroup)
    cgroup.write("cgroup.freeze", "0")


def _reassert(cgroup: Cgroup) -> object:
    return ledger.reassert(cgroup, THROTTLE)


def _set_end(cgroup: Cgroup) -> object:
    return ledger.set_end(cgroup, Owner.DAEMON, 3)


def take_over(mechanism: Mechanism | None = None) -> Callable[[Cgroup], object]:
    """Return the operation by which an operator takes over a pod that the daemon paused."""
    by_hand = replace(request(), owner=Owner.MANUAL, reason="by hand", since_ns=2, expires_ns=3)
    return lambda cgroup: ledger.take_over(cgroup, by_hand, mechanism)


TIGHT = "2000 1000000"
"""A cpu.max below the throttle's quota, so a pause writes the value that is already there."""
ORIGINALS = [
    ("max 100000", 0),
    ("50000 100000", 0),
    ("200000 50000", 0),
    ("max 1000000", 0),
    ("50000 100000", 20000),
    ("200000 50000", 50000),
    (TIGHT, 0),
]


def _scenarios() -> Iterator[Scenario]:
    for cpu_max, burst in ORIGINALS:
        name = cpu_max.replace(" ", "/") + (f"+{burst}" if burst else "")
        for mechanism in Mechanism:
            yield Scenario(f"pause-{mechanism}-{name}", cpu_max, burst, lambda _: None, _pause(mechanism), cpu_max)
        yield Scenario(f"freeze-{name}", cpu_max, burst, _paused("throttle"), freeze, cpu_max)
        for kind in PAUSES:
            yield Scenario(f"resume-{kind}-{name}", cpu_max, burst, _paused(kind), ledger.resume, cpu_max)
            prepare = _paused(kind)
            yield Scenario(f"take-over-{kind}-{name}", cpu_max, burst, prepare, take_over(), cpu_max)
            yield Scenario(f"set-end-{kind}-{name}", cpu_max, burst, prepare, _set_end, cpu_max)
        freezing = take_over(Mechanism.FREEZE)
        yield Scenario(f"take-over-and-freeze-{name}", cpu_max, burst, _paused("throttle"), freezing, cpu_max)
        yield Scenario(f"take-over-thawed-{name}", cpu_max, burst, _thawed, take_over(), cpu_max)
        for kind, foreigns in (
            ("throttle", (cpu_max, "60000 100000", "max 50000")),
            ("throttle-and-freeze", (cpu_max, "60000 100000")),
        ):
            for foreign in foreigns:
                if foreign == TIGHT:
                    continue  # the pause's value is the original itself, so the ledger cannot detect a foreign write
                foreign_name = foreign.replace(" ", "/")
                prepare = _paused(kind, foreign)
                for operation, how in (("reassert", _reassert), ("take-over", take_over())):
                    yield Scenario(
                        f"{operation}-{kind}-{name}-now-{foreign_name}", cpu_max, burst, prepare, how, foreign
                    )
            prepare = _paused(kind, "60000 100000")
            yield Scenario(f"resume-{kind}-{name}-resized", cpu_max, burst, prepare, ledger.resume, "60000 100000")


SCENARIOS = list(_scenarios())


def count_steps(cgroup: PausableCgroup, operation: Callable[[Cgroup], object]) -> list[str]:
    """Run an operation to its end; return its steps."""
    steps: list[str] = []

    def note(_: Cgroup, step: str, name: str) -> None:
        steps.append(f"{step} {name}".strip())

    with cgroup.stepped(note) as stepped:
        operation(stepped)
    return steps


def kill_before_step(cgroup: PausableCgroup, operation: Callable[[Cgroup], object], step: int, *, torn: bool) -> None:
    """Run an operation in a child process that dies before its step number `step` (torn: in the middle of a write)."""
    pid = os.fork()
    if pid == 0:
        left = step

        def die(stepped: SteppedCgroup, kind: str, name: str) -> None:
            nonlocal left
            if left == 0:
                if torn and kind == "write":
                    os.truncate(os.path.join(stepped.path, name), 0)
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        try:
            with cgroup.stepped(die) as stepped:
                operation(stepped)
        finally:
            os._exit(0)  # reached only if the process was not killed
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the writer was to die before step {step} and did not"
    assert os.WTERMSIG(status) == signal.SIGKILL


def deaths(
    cgroup: PausableCgroup, set_up: Callable[[], object], operation: Callable[[Cgroup], object], *, torn: bool = False
) -> Iterator[tuple[int, str]]:
    """Kill an operation before each of its steps, after a `set_up` each time.

    Yield the number of the step and a text that says where the operation died; the caller then checks what is left.
    `torn` kills between truncating and writing a file, which can happen only in an ordinary tree.
    """
    set_up()
    steps = count_steps(cgroup, operation)
    assert any(step.startswith(CHANGES) for step in steps), steps
    for number, step in enumerate(steps):
        if torn and not step.startswith("write"):
            continue
        set_up()
        kill_before_step(cgroup, operation, number, torn=torn)
        yield number, f"killed {'in' if torn else 'before'} step {number} ({step}) of {steps}"


def check_every_crash(cgroup: PausableCgroup, scenario: Scenario, *, torn: bool = False) -> None:
    """Kill the operation before each of its steps; check that one resume restores the pod and a second changes nothing.

    `torn` is as in `deaths`.
    """
    expected = CgroupState(scenario.restored, str(scenario.burst_us), "0", None)
    for _, where in deaths(cgroup, partial(scenario.set_up, cgroup), scenario.operation, torn=torn):
        try:
            with cgroup.open() as fresh:
                ledger.resume(fresh)
                assert cgroup.state() == expected
                assert ledger.resume(fresh) is None
            assert cgroup.state() == expected
        except Exception as e:
            e.add_note(f"{scenario.id}: {where}")
            raise


@dataclass(frozen=True)
class Race(Scenario):
    """An operation during which another writer resizes the pod; `restored` is what a death before the resize leaves."""

    resized: str

    def steps_before_the_write(self, cgroup: PausableCgroup) -> list[str]:
        """Return the steps before the write of cpu.max; the operation can notice a resize before any of these."""
        steps = self.steps(cgroup)
        return steps[: steps.index("write cpu.max")]

    def resizing(self, cgroup: PausableCgroup, resize_before: int) -> Race:
        """Return the race with the resize just before this step of the operation."""

        def operation(stepped: Cgroup) -> None:
            assert isinstance(stepped, SteppedCgroup)
            before, left = stepped._before, resize_before

            def resize(inner: SteppedCgroup, step: str, name: str) -> None:
                nonlocal left
                before(inner, step, name)
                if left == 0:
                    cgroup.write("cpu.max", self.resized)
                left -= 1

            stepped._before = resize
            self.operation(stepped)

        return replace(self, operation=operation)


RACES = [
    Race(f"{name}-{what}", "50000 100000", 20000, prepare, operation, restored, resized)
    for resized, what in (("70000 100000", "resized"), ("1000 1000000", "resized-below-our-quota"))
    for name, prepare, operation, restored in (
        ("pause", lambda _: None, _pause(Mechanism.THROTTLE), "50000 100000"),
        ("reassert", _paused("throttle", "60000 100000"), _reassert, "60000 100000"),
        ("take-over", _paused("throttle", "60000 100000"), take_over(), "60000 100000"),
    )
]


def check_every_crash_of_a_race(cgroup: PausableCgroup, race: Race) -> None:
    """Resize before the last step that precedes the write, kill before each step, and check the resume that follows."""
    resize_before = len(race.steps_before_the_write(cgroup)) - 1
    resizing = race.resizing(cgroup, resize_before)
    for number, where in deaths(cgroup, partial(race.set_up, cgroup), resizing.operation):
        expected = race.resized if number > resize_before else race.restored
        with cgroup.open() as fresh:
            ledger.resume(fresh)
            assert cgroup.state().cpu_max == expected, where
            assert cgroup.state().record is None, where
            assert ledger.resume(fresh) is None, where
