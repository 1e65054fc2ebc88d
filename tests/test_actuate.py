"""Actions carried out on ordinary trees: one bad pod stops nobody, troubles are told once, dry runs write nothing."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from trees import FakeTree, records_left

from cgpause import ledger
from cgpause.actuate import Actuator
from cgpause.cgroupfs import Cgroup
from cgpause.clock import now_ns
from cgpause.config import Config
from cgpause.dryrun import DryLedger
from cgpause.errors import CgroupGoneError, KernelWriteError
from cgpause.events import Event
from cgpause.ledger import PauseRequest
from cgpause.model import Action, CpuMax, Freeze, Headroom, Mechanism, Owner, Pause, Result, Resume, Sacrifice, Sample
from cgpause.policy import State, decide
from cgpause.sampler import Sampler
from cgpause.tree import PodTree, TrackedPod
from cgpause.watch import Watch

CONFIG = Config()
THROTTLE = CpuMax(1001, 100000)
SAMPLE = Sample(0, Headroom(100, 5, None, 0), ())


class Bench:
    """A tree with pods a, b and c, whose originals differ, and an actuator on it."""

    def __init__(self, folder: Path, watch: Watch, *, dry_run: bool = False) -> None:
        self.fake = FakeTree(folder)
        self.folders = {
            "a": self.fake.add_pod("a", 1, cpu_max="max 100000"),
            "b": self.fake.add_pod("b", 2, cpu_max="50000 100000"),
            "c": self.fake.add_pod("c", 3, cpu_max="200000 50000"),
        }
        self.tree = PodTree(str(self.fake.root), str(self.fake.log_dir), CONFIG)
        self.tree.refresh(0)
        self.kept: list[Event] = []
        kept = DryLedger() if dry_run else ledger
        self.actuator = Actuator(kept, self.tree, watch, dry_run=dry_run, recorder=self)

    def keep(self, event: Event) -> None:
        """Be the history."""
        self.kept.append(event)

    def tracked(self, name: str) -> TrackedPod:
        return next(tracked for tracked in self.tree.pods.values() if tracked.pod.name == name)

    def apply(self, *actions: Action, config: Config = CONFIG) -> None:
        self.actuator.apply(actions, SAMPLE, config)

    def pause(self, *names: str, mechanism: Mechanism = Mechanism.THROTTLE) -> None:
        self.apply(*(Pause(self.tracked(name).pod, 1, mechanism, "test") for name in names))

    def resume(self, *names: str) -> None:
        self.apply(*(Resume(self.tracked(name).pod, "test") for name in names))

    def sacrifice(self, *names: str) -> None:
        self.apply(*(Sacrifice(self.tracked(name).pod, 1, "test") for name in names))

    def freeze(self, *names: str) -> None:
        self.apply(*(Freeze(self.tracked(name).pod, "it grows") for name in names))

    def frozen(self) -> list[str]:
        return [name for name, folder in self.folders.items() if (folder / "cgroup.freeze").read_text() == "1\n"]

    def cpu_max(self) -> list[str]:
        return [(folder / "cpu.max").read_text().strip() for folder in self.folders.values()]

    def held(self) -> list[str]:
        return [name for name in self.folders if self.tracked(name).pod.paused is not None]


ORIGINALS = ["max 100000", "50000 100000", "200000 50000"]


@pytest.fixture
def bench(tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    caplog.set_level(logging.INFO)
    made = Bench(tmp_path, watch)
    yield made
    made.tree.close()
    for fd in made.actuator.spare._fds:  # else the last tests would have numbers that no limit allows
        os.close(fd)


def lines(caplog: pytest.LogCaptureFixture, *starts: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if not starts or r.getMessage().startswith(starts)]


def refuse(
    monkeypatch: pytest.MonkeyPatch, folder: Path, code: int, files: tuple[str, ...] = ("cpu.max", "cgroup.kill")
) -> None:
    """Make the kernel refuse writes in one pod."""
    write = Cgroup.write

    def refusing(cgroup: Cgroup, name: str, value: str) -> None:
        if cgroup.path.startswith(str(folder)) and name in files:
            if code == errno.ENODEV:
                raise CgroupGoneError(cgroup.path)
            raise KernelWriteError(f"{cgroup.path}/{name}", OSError(code, os.strerror(code)), value)
        write(cgroup, name, value)

    monkeypatch.setattr(Cgroup, "write", refusing)


@pytest.mark.parametrize("mechanism", Mechanism)
def test_pods_are_paused_and_each_gets_its_own_original_back(
    bench: Bench, caplog: pytest.LogCaptureFixture, mechanism: Mechanism
) -> None:
    bench.pause("a", "b", "c", mechanism=mechanism)
    assert bench.held() == ["a", "b", "c"]
    assert bench.cpu_max() == (["1001 100000"] * 3 if mechanism is Mechanism.THROTTLE else ORIGINALS)
    assert len(records_left(bench.fake.root)) == 3
    bench.resume("a", "b", "c")
    assert (bench.held(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])
    assert (bench.actuator.counts.pauses, bench.actuator.counts.causes[Result.ROOM]) == (3, 3)
    assert len(lines(caplog)) == 6


def test_a_pause_and_a_resume_are_logged_with_all_an_operator_asks_for(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pause("b")
    bench.resume("b")
    paused, resumed = lines(caplog)
    uid = bench.fake.uids["b"]
    assert paused == (
        f'paused pod=default/b uid={uid} mechanism=throttle cpu_max_from="50000 100000" cpu_max_to="1001 100000" '
        "memory_current_bytes=1 used_pct=95.0 reason=test"
    )
    assert resumed.startswith(
        f'resumed pod=default/b uid={uid} mechanism=throttle cpu_max_from="1001 100000" '
        'cpu_max_to="50000 100000" held_s='
    )
    assert resumed.endswith("used_pct=95.0 reason=test")


def test_whatever_is_done_to_a_pod_is_told_once_to_log_and_history(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pause("a", "b")
    bench.freeze("b")
    drift(bench, 1)
    bench.resume("a")
    bench.sacrifice("b")
    bench.pause("c")
    bench.actuator.adopt(bench.tracked("c"))
    bench.actuator.forget(bench.tracked("c").pod)

    *told, adopted, gone = lines(caplog)
    assert adopted.startswith("adopted pod=default/c ")
    assert [event.line for event in bench.kept] == [*told, gone]
    assert [(event.what, event.pod, event.result) for event in bench.kept] == [
        ("paused", "default/a", None),
        ("paused", "default/b", None),
        ("froze", "default/b", None),
        ("asserted again", "default/b", None),
        ("resumed", "default/a", "room"),
        ("sacrificed", "default/b", None),
        ("resumed", "default/b", "sacrificed"),
        ("paused", "default/c", None),
        ("gone", "default/c", "gone"),
    ]
    assert len({event.pause for event in bench.kept}) == 3
    assert all(event.uid and event.reason and event.owner == "daemon" for event in bench.kept)


BY_HAND = PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.MANUAL, "by hand", now_ns())


def take_over(bench: Bench, name: str) -> None:
    with Cgroup(bench.tree.root, bench.tracked(name).cgroup.id.path) as cgroup:
        assert ledger.take_over(cgroup, BY_HAND) is not None


def test_what_an_operator_has_taken_over_since_the_last_look_is_left_alone(bench: Bench) -> None:
    bench.pause("a", "b", "c")
    bench.tracked("a").pod = replace(bench.tracked("a").pod, distress="a probe")
    for name in ("a", "b", "c"):
        take_over(bench, name)
        assert bench.tracked(name).pod.paused != ledger.read_record(bench.tracked(name).cgroup), "not known yet"

    bench.resume("a", "b")
    bench.freeze("c")

    assert bench.cpu_max() == ["1001 100000"] * 3
    assert bench.frozen() == []
    for name in ("a", "b", "c"):
        paused = bench.tracked(name).pod.paused
        assert paused is not None
        assert paused.owner is Owner.MANUAL
    assert bench.tracked("a").pod.distress is None
    assert [event.what for event in bench.kept] == ["paused"] * 3
    assert bench.actuator.counts.causes[Result.OPERATOR] == 0, "none has ended"


def test_who_adopts_or_forgets_a_pod_that_runs_has_nothing_to_tell(bench: Bench) -> None:
    bench.actuator.adopt(bench.tracked("a"))
    bench.actuator.forget(bench.tracked("a").pod)

    assert bench.kept == []


@pytest.mark.parametrize(
    "code",
    [errno.EINVAL, errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.ENODEV],
    ids=lambda code: errno.errorcode[code],
)
def test_one_bad_pod_never_stops_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with monkeypatch.context() as patched:
        refuse(patched, bench.folders["b"], code)
        bench.pause("a", "b", "c")
    assert bench.cpu_max() == ["1001 100000", "50000 100000", "1001 100000"]
    assert bench.actuator.counts.pauses == 2
    with monkeypatch.context() as patched:
        refuse(patched, bench.folders["a"], code)
        bench.resume("a", "c")
    assert bench.cpu_max() == ["1001 100000", "50000 100000", "200000 50000"]
    bench.resume("a")
    assert bench.cpu_max() == ORIGINALS


def test_a_pod_the_kernel_refuses_is_set_aside_for_a_while_and_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        refuse(patched, bench.folders["b"], errno.EACCES)
        for _ in range(3):
            bench.pause("b")
    assert len(lines(caplog, "could not pause")) == 1
    assert "EACCES" in lines(caplog)[0]
    tracked = bench.tracked("b")
    assert tracked.pod.protected is not None
    assert tracked.pod.protected.startswith("could not pause")
    bench.tree.refresh(now_ns())
    assert tracked.pod.protected is not None
    bench.tree.refresh(now_ns() + 61 * 10**9)
    assert tracked.pod.protected is None
    bench.pause("b")
    assert bench.held() == ["b"]


def test_a_resume_that_fails_is_told_once_tried_again_and_keeps_the_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pause("a")
    with monkeypatch.context() as patched:
        refuse(patched, bench.folders["a"], errno.EIO)
        for _ in range(3):
            bench.resume("a")
    assert bench.held() == ["a"]
    assert [r.levelname for r in caplog.records if "could not resume" in r.getMessage()] == ["ERROR"]
    bench.resume("a")
    assert (bench.held(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])


def locked(bench: Bench, name: str) -> ExitStack:
    stack = ExitStack()
    other = stack.enter_context(Cgroup(str(bench.fake.root), bench.tracked(name).pod.cgroup.path))
    stack.enter_context(other.locked(wait_s=0))
    return stack


def test_a_busy_pod_is_left_for_the_next_tick(bench: Bench) -> None:
    with locked(bench, "b"):
        bench.pause("a", "b", "c")
        assert bench.cpu_max() == ["1001 100000", "50000 100000", "1001 100000"]
        assert bench.held() == ["a", "c"]
    bench.pause("b")
    with locked(bench, "b"):
        bench.resume("a", "b", "c")
        assert bench.held() == ["b"]
    bench.resume("b")
    assert (bench.held(), bench.cpu_max()) == ([], ORIGINALS)


def test_a_pod_that_stays_busy_is_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A stopped process that holds the lock would else write twenty lines a second."""
    with locked(bench, "b"):
        for _ in range(3):
            bench.pause("b")
    assert len(lines(caplog, "busy")) == 1


def test_a_pod_that_is_gone_is_nobodys_trouble(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    action = Pause(bench.tracked("b").pod, 1, Mechanism.THROTTLE, "test")
    shutil.rmtree(bench.folders["b"])
    bench.apply(action)
    bench.tree.refresh(1)
    bench.apply(action)
    assert lines(caplog) == []


def test_a_pause_by_an_operator_who_was_faster_is_not_ours(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    tracked = bench.tracked("a")
    ledger.pause(tracked.cgroup, PauseRequest(Mechanism.FREEZE, THROTTLE, Owner.MANUAL, "mine", since_ns=1))
    bench.pause("a")
    assert tracked.pod.paused is not None
    assert tracked.pod.paused.owner is Owner.MANUAL
    assert (bench.actuator.counts.pauses, lines(caplog), bench.cpu_max()) == (0, [], ORIGINALS)


def test_a_resume_by_an_operator_who_was_faster_is_not_ours(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.pause("a")
    ledger.resume(bench.tracked("a").cgroup)
    bench.resume("a")
    causes = +bench.actuator.counts.causes
    assert (bench.held(), causes, len(lines(caplog))) == ([], {Result.OPERATOR: 1}, 1)


def test_what_fails_is_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.pause("b")
    with monkeypatch.context() as patched:
        refuse(patched, bench.folders["a"], errno.EIO)
        bench.pause("a")
        refuse(patched, bench.folders["b"], errno.EIO)
        bench.resume("b")
        bench.resume("b")
    counts = bench.actuator.counts
    assert (counts.pauses, counts.pause_failures, counts.resume_failures) == (1, 1, 2)
    bench.resume("b")
    assert +counts.causes == {Result.ROOM: 1}


def test_a_reaction_begins_when_the_look_was_due(bench: Bench) -> None:
    at_ns = now_ns()
    late = replace(SAMPLE, at_ns=at_ns, late_ns=2_000_000_000)
    bench.actuator.apply([Pause(bench.tracked("a").pod, 1, Mechanism.THROTTLE, "test")], late, CONFIG)
    at_once = replace(late, late_ns=0)
    bench.actuator.apply([Pause(bench.tracked("b").pod, 1, Mechanism.THROTTLE, "test")], at_once, CONFIG)

    (figure,) = bench.actuator.counts.reactions.values()["cgpause_reaction_latency_seconds"]
    assert sum(figure.counts) == 2
    assert 2 < figure.value <= 2 + 2 * (now_ns() - at_ns) / 1e9


def test_a_pause_that_an_operator_ended_is_counted_once(bench: Bench) -> None:
    bench.pause("a")
    ledger.resume(bench.tracked("a").cgroup)
    bench.actuator.read_record(bench.tracked("a"))
    bench.actuator.read_record(bench.tracked("a"))

    assert +bench.actuator.counts.causes == {Result.OPERATOR: 1}


# --- records of others ---------------------------------------------------------------------------------------------


def test_records_of_others_are_taken_in(bench: Bench) -> None:
    tracked = bench.tracked("a")
    ledger.pause(tracked.cgroup, PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.MANUAL, "mine", since_ns=1))
    bench.actuator.read_record(tracked)
    assert bench.held() == ["a"]
    ledger.resume(tracked.cgroup)
    bench.actuator.read_record(tracked)
    assert bench.held() == []


def test_a_damaged_record_sets_the_pod_aside_and_is_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    os.setxattr(bench.folders["a"], "user.cgpause", b"\xff\nforged")
    for _ in range(3):
        bench.actuator.read_record(bench.tracked("a"))
    bench.pause("b")
    assert bench.held() == ["b"]
    assert bench.tracked("a").pod.protected is not None
    assert all("\n" not in line for line in lines(caplog))
    assert len(lines(caplog, "could not resume")) == 1
    assert bench.tracked("a").damaged
    assert os.getxattr(bench.folders["a"], "user.cgpause") == b"\xff\nforged"


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_a_pod_whose_record_is_lost_is_resumed_by_what_the_daemon_remembers(
    bench: Bench, caplog: pytest.LogCaptureFixture, damage: str, mechanism: Mechanism
) -> None:
    """Nobody else could: there is no systemd here that knows the original."""
    bench.pause("b", mechanism=mechanism)
    if damage == "removed":
        os.removexattr(bench.folders["b"], "user.cgpause")
    else:
        os.setxattr(bench.folders["b"], "user.cgpause", b"{}")
    bench.actuator.read_record(bench.tracked("b"))
    assert (bench.cpu_max(), bench.frozen(), bench.held()) == (ORIGINALS, [], [])
    assert records_left(bench.fake.root) == []
    assert len(lines(caplog, "resumed")) == 1
    paused, resumed = bench.kept
    assert (resumed.result, resumed.pause) == ("lost", paused.pause)


def test_a_lost_record_does_not_undo_what_somebody_else_wrote_since(bench: Bench) -> None:
    bench.pause("b")
    os.removexattr(bench.folders["b"], "user.cgpause")
    (bench.folders["b"] / "cpu.max").write_text("70000 100000\n")
    bench.actuator.read_record(bench.tracked("b"))
    assert (bench.cpu_max()[1], bench.held()) == ("70000 100000", [])


def test_a_pod_whose_lost_record_could_not_be_replaced_at_once_is_tried_again(bench: Bench) -> None:
    bench.pause("b")
    os.removexattr(bench.folders["b"], "user.cgpause")
    with locked(bench, "b"):
        bench.actuator.read_record(bench.tracked("b"))
    assert bench.tracked("b").damaged
    assert bench.held() == ["b"]
    bench.actuator.read_record(bench.tracked("b"))
    assert (bench.cpu_max(), bench.held(), bench.tracked("b").damaged) == (ORIGINALS, [], False)


@pytest.mark.parametrize("lost", [False, True], ids=["recorded", "record-lost"])
def test_a_resume_needs_no_free_descriptor(bench: Bench, lost: bool) -> None:  # noqa: FBT001 - a table
    bench.pause("a", "b")
    if lost:
        os.removexattr(bench.folders["a"], "user.cgpause")
    taken = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        bench.resume("a", "b")
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (bench.cpu_max(), bench.held()) == (ORIGINALS, [])


# --- drift ---------------------------------------------------------------------------------------------------------


def test_a_foreign_write_is_answered_and_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.pause("b")
    (bench.folders["b"] / "cpu.max").write_text("30000 100000\n")
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)
    assert bench.cpu_max()[1] == "1001 100000"
    assert bench.actuator.counts.drifts == 1
    assert 'cpu_max_from="30000 100000"' in lines(caplog)[-1]
    bench.resume("b")
    assert bench.cpu_max()[1] == "30000 100000"


@pytest.mark.parametrize("mechanism", [None, *Mechanism])
def test_what_is_no_drift_is_not_answered(bench: Bench, mechanism: Mechanism | None) -> None:
    if mechanism is not None:
        bench.pause("b", mechanism=mechanism)
    if mechanism is not Mechanism.THROTTLE:
        (bench.folders["b"] / "cpu.max").write_text("30000 100000\n")
    before = bench.cpu_max()
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)
    assert (bench.cpu_max(), bench.actuator.counts.drifts) == (before, 0)


def drift(bench: Bench, times: int) -> None:
    for number in range(times):
        (bench.folders["b"] / "cpu.max").write_text(f"{30000 + number} 100000\n")
        bench.actuator.answer_drift(bench.tracked("b"), CONFIG)


def test_a_second_controller_is_answered_ten_times_and_then_left_alone(bench: Bench) -> None:
    bench.pause("b")
    drift(bench, 10)
    assert bench.held() == ["b"]
    drift(bench, 1)
    assert bench.held() == []
    assert bench.cpu_max()[1] == "30000 100000"
    assert bench.tracked("b").pod.protected is not None
    assert records_left(bench.fake.root) == []


@pytest.mark.parametrize("answered", [0, 10], ids=["asserted-again", "given-up"])
@pytest.mark.parametrize("trouble", ["locked", "gone", "refused"])
def test_trouble_while_answering_a_drift_is_never_raised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trouble: str, answered: int
) -> None:
    """It happens outside of any decision, so it would end the daemon."""
    bench.pause("b")
    tracked = bench.tracked("b")
    tracked.drifts = answered
    (bench.folders["b"] / "cpu.max").write_text("30000 100000\n")

    def fail(cgroup: Cgroup, _name: str, *_: object) -> bytes:
        if trouble == "gone":
            raise CgroupGoneError(cgroup.path)
        raise KernelWriteError(cgroup.path, OSError(errno.EIO, os.strerror(errno.EIO)))

    with ExitStack() as stack:
        if trouble == "locked":
            stack.enter_context(locked(bench, "b"))
        else:
            patched = stack.enter_context(monkeypatch.context())
            patched.setattr(Cgroup, "read", fail)
        bench.actuator.answer_drift(tracked, CONFIG)
    bench.resume("b")
    assert (bench.cpu_max()[1], records_left(bench.fake.root)) == ("30000 100000", [])


# --- freeze --------------------------------------------------------------------------------------------------------


def test_a_throttled_pod_is_frozen_logged_counted_and_resumed_from_both(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pause("a", "b")
    bench.freeze("b")
    assert (bench.frozen(), bench.held(), bench.actuator.counts.freezes) == (["b"], ["a", "b"], 1)
    paused = bench.tracked("b").pod.paused
    assert paused is not None
    assert (paused.mechanism, paused.reason) == (Mechanism.FREEZE, "it grows")
    froze = lines(caplog)[-1]
    assert froze.startswith(f"froze pod=default/b uid={bench.fake.uids['b']} mechanism=freeze held_s=")
    assert froze.endswith('used_pct=95.0 reason="it grows"')
    bench.resume("a", "b")
    assert (bench.frozen(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])
    assert "mechanism=freeze" in lines(caplog, "resumed pod=default/b")[0]


def test_freezing_a_frozen_pod_again_says_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.pause("b")
    for _ in range(3):
        bench.freeze("b")
    assert (len(lines(caplog, "froze")), bench.actuator.counts.freezes) == (1, 1)


@pytest.mark.parametrize(
    "code", [errno.EINVAL, errno.EACCES, errno.ENODEV, errno.EIO], ids=lambda code: errno.errorcode[code]
)
def test_a_pod_that_cannot_be_frozen_stays_throttled_is_told_once_and_stops_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    bench.pause("a", "b", "c")
    with monkeypatch.context() as patched:
        refuse(patched, bench.folders["b"], code, ("cgroup.freeze",))
        for _ in range(3):
            bench.freeze("a", "b", "c")
    assert (bench.frozen(), bench.held(), bench.actuator.counts.freezes) == (["a", "c"], ["a", "b", "c"], 2)
    assert len(lines(caplog, "could not freeze")) == (code != errno.ENODEV)
    assert bench.tracked("b").pod.protected is None  # set aside, it would run again
    bench.resume("a", "b", "c")
    assert (bench.frozen(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])


def test_a_pod_frozen_by_somebody_else_is_told_once_and_left_to_them(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pause("b")
    (bench.folders["b"] / "cgroup.freeze").write_text("1\n")
    for _ in range(3):
        bench.freeze("b")
    assert [line.split(" pod=")[0] for line in lines(caplog)] == ["paused", "could not freeze"]
    bench.resume("b")
    assert (bench.frozen(), bench.cpu_max()) == (["b"], ORIGINALS)


def test_a_busy_pod_is_frozen_by_a_later_decision(bench: Bench) -> None:
    bench.pause("b")
    with locked(bench, "b"):
        bench.freeze("b")
    assert bench.frozen() == []
    bench.freeze("b")
    assert bench.frozen() == ["b"]


@pytest.mark.parametrize("owner", [None, Owner.MANUAL], ids=["resumed", "paused-by-hand"])
def test_an_operator_who_was_faster_than_a_freeze_has_the_pod(
    bench: Bench, caplog: pytest.LogCaptureFixture, owner: Owner | None
) -> None:
    bench.pause("b")
    tracked = bench.tracked("b")
    ledger.resume(tracked.cgroup)
    if owner is not None:
        ledger.pause(tracked.cgroup, PauseRequest(Mechanism.THROTTLE, THROTTLE, owner, "mine", since_ns=1))
    bench.freeze("b")
    assert (bench.frozen(), bench.actuator.counts.freezes, len(lines(caplog))) == ([], 0, 1)
    assert (tracked.pod.paused and tracked.pod.paused.owner) is owner


def test_a_foreign_write_to_a_frozen_pod_is_answered(bench: Bench) -> None:
    bench.pause("b")
    bench.freeze("b")
    drift(bench, 1)
    assert (bench.cpu_max()[1], bench.frozen(), bench.actuator.counts.drifts) == ("1001 100000", ["b"], 1)
    bench.resume("b")
    assert (bench.cpu_max()[1], bench.frozen()) == ("30000 100000", [])


# --- sacrifice -----------------------------------------------------------------------------------------------------


def killed(folder: Path) -> list[str]:
    return sorted(kill.parent.name for kill in folder.glob("*.scope/cgroup.kill") if kill.read_text() == "1\n")


def container_of(folder: Path) -> Path:
    (found,) = (s for s in folder.glob("*.scope") if (s / "memory.oom.group").read_text() == "1\n")
    return found


def test_a_sacrifice_kills_containers_not_the_sandbox_and_resumes_the_pod(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.pause("a", "b")
    bench.sacrifice("b")
    assert killed(bench.folders["b"]) == [container_of(bench.folders["b"]).name]
    assert killed(bench.folders["a"]) == []
    assert (bench.held(), bench.cpu_max()[1]) == (["a"], "50000 100000")
    assert bench.actuator.counts.sacrifices == 1
    assert [r.levelname for r in caplog.records if r.getMessage().startswith("sacrificed")] == ["WARNING"]


@pytest.mark.parametrize("before", [True, False], ids=["taken-over", "paused-meanwhile"])
def test_what_an_operator_holds_by_now_is_not_sacrificed(bench: Bench, before: bool) -> None:  # noqa: FBT001 - a table
    if before:
        bench.pause("b")
    decided = Sacrifice(bench.tracked("b").pod, 1, "test")
    if before:
        take_over(bench, "b")
    else:
        ledger.pause(bench.tracked("b").cgroup, BY_HAND)
    bench.apply(decided)
    assert killed(bench.folders["b"]) == []
    record = bench.tracked("b").pod.paused
    assert record is not None
    assert record.owner is Owner.MANUAL


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EACCES], ids=lambda code: errno.errorcode[code])
def test_a_sacrifice_the_kernel_refuses_is_told_once_and_counts_for_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    bench.pause("a", "b")
    refuse(monkeypatch, bench.folders["b"], code, ("cgroup.kill",))
    for _ in range(3):
        bench.sacrifice("b")
    assert bench.actuator.counts.sacrifices == 0
    assert len(lines(caplog, "could not sacrifice")) == 1
    bench.sacrifice("a")
    assert killed(bench.folders["a"])


def test_on_a_kernel_without_cgroup_kill_a_sacrifice_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.pause("b")
    (container_of(bench.folders["b"]) / "cgroup.kill").unlink()
    bench.sacrifice("b")
    assert len(lines(caplog, "could not sacrifice")) == 1


def test_a_restarted_container_is_killed_too(bench: Bench) -> None:
    """Its id is newer than the last reading of the log folders (kubelet before 1.28: no memory.oom.group either)."""
    folder = bench.folders["b"]
    old = container_of(folder)
    logs = bench.fake.log_dir / "containers"
    logs.mkdir(parents=True)
    (old / "memory.oom.group").write_text("0\n")
    (logs / f"b_default_main-{old.name.removeprefix('cri-containerd-').removesuffix('.scope')}.log").touch()
    bench.fake.add_pod("new")
    bench.tree.refresh(1)  # reads the names
    new = folder / f"cri-containerd-{'e' * 64}.scope"
    shutil.copytree(old, new)
    (logs / f"b_default_side-{'e' * 64}.log").touch()
    bench.pause("b")
    bench.sacrifice("b")
    assert killed(folder) == sorted([old.name, new.name])


def test_a_sacrificed_pod_that_could_not_be_resumed_is_resumed_by_the_next_decision(bench: Bench) -> None:
    """Nothing can be started in a paused pod, and what was killed in it dies slowly."""
    bench.pause("b")
    with locked(bench, "b"):
        bench.sacrifice("b")
    assert bench.held() == ["b"]
    with Sampler(bench.tree) as sampler:
        decision = decide(State(), sampler.sample(now_ns()), CONFIG)
    assert [type(action) for action in decision.actions if action.pod.name == "b"] == [Resume]


# --- dry runs ------------------------------------------------------------------------------------------------------


def whole_tree(root: Path) -> dict[str, object]:
    """Everything in a tree: names, texts, modes, times of change, xattrs."""
    found: dict[str, object] = {}
    for base, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            path = os.path.join(base, name)
            status = os.lstat(path)
            xattrs = {x: os.getxattr(path, x) for x in os.listxattr(path)}
            text = Path(path).read_bytes() if name in files else b""
            found[path] = (status.st_ino, status.st_mode, status.st_mtime_ns, status.st_ctime_ns, text, xattrs)
    return found


def test_a_dry_run_says_everything_and_writes_nothing(
    tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, watch, dry_run=True)
    before = whole_tree(bench.fake.root)
    bench.pause("a", "b")
    bench.pause("b")
    assert bench.held() == ["a", "b"]
    bench.resume("a")
    bench.freeze("a", "b")
    bench.freeze("b")
    bench.actuator.answer_drift(bench.tracked("b"), CONFIG)
    bench.sacrifice("b")
    bench.actuator.read_record(bench.tracked("c"))
    assert bench.held() == []
    assert whole_tree(bench.fake.root) == before
    said = [" ".join(line.split()[:4]) for line in lines(caplog)]
    assert said == [
        "would have paused pod=default/a",
        "would have paused pod=default/b",
        "would have resumed pod=default/a",
        "would have frozen pod=default/b",
        "would have sacrificed pod=default/b",
        "would have resumed pod=default/b",
    ]
    bench.tree.close()


def test_a_dry_run_leaves_real_pauses_alone_and_says_what_it_would_do(
    tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, watch, dry_run=True)
    request = PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.DAEMON, "a predecessor's", since_ns=1)
    ledger.pause(bench.tracked("a").cgroup, request)
    before = whole_tree(bench.fake.root)
    bench.actuator.read_record(bench.tracked("a"))
    assert bench.held() == ["a"]
    bench.resume("a")
    assert whole_tree(bench.fake.root) == before
    assert [line.split(" uid=")[0] for line in lines(caplog)] == ["would have resumed pod=default/a"]
    bench.tree.close()


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("cpu_max", ["max 100000", "50000 100000", "2000 1000000"])
def test_a_dry_run_remembers_what_a_pause_would_have_recorded(bench: Bench, cpu_max: str, mechanism: Mechanism) -> None:
    (bench.folders["b"] / "cpu.max").write_text(f"{cpu_max}\n")
    (bench.folders["b"] / "cpu.max.burst").write_text("2000\n")
    cgroup = bench.tracked("b").cgroup
    request = PauseRequest(mechanism, THROTTLE, Owner.DAEMON, "test", since_ns=1)
    dry = DryLedger()
    pretended = [dry.pause(cgroup, request), dry.freeze(cgroup, "it grows"), dry.freeze(cgroup, "again")]
    real = [ledger.pause(cgroup, request), ledger.freeze(cgroup, "it grows"), ledger.freeze(cgroup, "again")]
    assert pretended == real


# --- watches -------------------------------------------------------------------------------------------------------


def thrash(folder: Path) -> Callable[[], None]:
    def write() -> None:
        (folder / "memory.events").write_text("max 1\noom_kill 0\n")

    return write


@pytest.mark.parametrize("failure", ["none", "refused", "busy"])
def test_only_paused_pods_wake_us_with_every_write(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """A pod that thrashes at its own memory.max would wake us a hundred times a second."""
    bench = Bench(tmp_path, watch)
    write = thrash(bench.folders["b"])
    with ExitStack() as stack:
        if failure == "refused":
            refuse(stack.enter_context(monkeypatch.context()), bench.folders["b"], errno.EACCES)
        elif failure == "busy":
            stack.enter_context(locked(bench, "b"))
        bench.pause("b")
    watch.read()
    write()
    assert bool(watch.read().pods) is (failure == "none")
    bench.resume("b")
    watch.read()
    write()
    assert watch.read().pods == {}
    bench.tree.close()
