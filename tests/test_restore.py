"""Undoing pauses with nothing but the tree: `resume_all`, the second source, and `python -m cgpause.restore`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from trees import CAPTURES, FakeTree, lay_out_capture, records_left

from cgpause import high, history, restore
from cgpause.cgroupfs import Cgroup
from cgpause.clock import now_ns
from cgpause.errors import CgroupGoneError, KernelReadError, RestoreError
from cgpause.findpods import walk
from cgpause.high import set_high
from cgpause.ledger import LOCK_WAIT_S, PauseRequest, Resumed, pause, resume, take_over
from cgpause.model import CpuMax, Mechanism, Owner
from cgpause.restore import resume_all
from cgpause.systemd import original_from_systemd

ORIGINALS = ("max 100000", "50000 100000", "200000 50000")
SLICE = "/sys/fs/cgroup/kubepods.slice/kubepods-pod00000001_0000_4000_8000_000000000001.slice"
Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture(autouse=True)
def quiet_logging() -> Iterator[None]:
    """`main` sets logging up for the whole process; a test must not."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def no_systemd(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))


def pause_pod(root: Path, pod: Path, mechanism: Mechanism = Mechanism.THROTTLE, owner: Owner = Owner.DAEMON) -> None:
    request = PauseRequest(mechanism, CpuMax(1000, 100_000), owner, "test", since_ns=1)
    with Cgroup(str(root), str(pod.relative_to(root))) as cgroup:
        _, changed = pause(cgroup, request)
    assert changed


def damage(pod: Path) -> None:
    os.setxattr(pod, "user.cgpause", b"rubbish")


def cpu_max(pod: Path) -> str:
    return (pod / "cpu.max").read_text().rstrip("\n")


def test_every_pause_is_undone_to_its_own_original(tree: FakeTree) -> None:
    pods = [tree.add_pod(f"pod-{n}", cpu_max=original) for n, original in enumerate(ORIGINALS)]
    frozen = tree.add_pod("frozen", cpu_max="30000 100000", tier="besteffort")
    guaranteed = tree.add_pod("guaranteed", cpu_max="40000 100000", tier="", static=True)
    running = tree.add_pod("running", cpu_max="1000 100000")
    for pod in (*pods, guaranteed):
        pause_pod(tree.root, pod)
    pause_pod(tree.root, frozen, Mechanism.FREEZE)

    outcomes = resume_all(str(tree.root))

    assert [cpu_max(pod) for pod in (*pods, frozen, guaranteed)] == [*ORIGINALS, "30000 100000", "40000 100000"]
    assert (frozen / "cgroup.freeze").read_text() == "0\n"
    assert cpu_max(running) == "1000 100000"
    assert records_left(tree.root) == []
    assert {outcome.path for outcome in outcomes} == {
        str(pod.relative_to(tree.root)) for pod in (*pods, frozen, guaranteed)
    }
    assert all(outcome.error is None and outcome.resumed is not None for outcome in outcomes)
    assert resume_all(str(tree.root)) == []


@pytest.mark.parametrize("driver", CAPTURES)
def test_a_captured_tree_gets_everything_back(driver: str, tmp_path: Path) -> None:
    root, _ = lay_out_capture(driver, tmp_path)
    with Cgroup(str(root), "kubepods.slice" if driver == "systemd" else "kubepods") as kubepods:
        pods = [root / pod.cgroup.path for pod in walk(kubepods)[0]]
    before = {pod: (cpu_max(pod), (pod / "cgroup.freeze").read_text()) for pod in pods}
    for number, pod in enumerate(pods):
        pause_pod(root, pod, Mechanism.FREEZE if number % 2 else Mechanism.THROTTLE)

    outcomes = resume_all(str(root))

    assert len(pods) == len(outcomes) == 7
    assert {pod: (cpu_max(pod), (pod / "cgroup.freeze").read_text()) for pod in pods} == before
    assert records_left(root) == []


def test_every_tree_named_like_kubepods_is_looked_at(tree: FakeTree) -> None:
    """An old kubelet, or another driver, leaves a second tree behind; its pods may be paused too."""
    first = tree.add_pod("first", cpu_max="50000 100000")
    places = ("kubepods/burstable", "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice")
    others = []
    for place in places:
        (tree.root / place).mkdir(parents=True)
        uid = "00000009-0000-4000-8000-000000000009"
        name = f"pod{uid}" if "slice" not in place else f"kubelet-kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        shutil.copytree(first, tree.root / place / name)
        others.append(tree.root / place / name)
    for pod in (first, *others):
        pause_pod(tree.root, pod)

    outcomes = resume_all(str(tree.root))

    assert len(outcomes) == 3
    assert [cpu_max(pod) for pod in (first, *others)] == ["50000 100000"] * 3
    assert records_left(tree.root) == []


@pytest.mark.parametrize("owner", [None, Owner.DAEMON, Owner.MANUAL], ids=["any", "daemon", "manual"])
def test_only_the_pauses_of_the_owner_asked_for_are_undone(owner: Owner | None, tree: FakeTree) -> None:
    pods = {owner: tree.add_pod(f"by-{owner}", cpu_max="50000 100000") for owner in Owner}
    for by, pod in pods.items():
        pause_pod(tree.root, pod, owner=by)

    resume_all(str(tree.root), owner=owner)

    for by, pod in pods.items():
        assert cpu_max(pod) == ("50000 100000" if owner in (None, by) else "1000 100000")


@pytest.mark.parametrize("bad", range(3), ids=["first", "middle", "last"])
def test_one_that_fails_never_stops_the_others(bad: int, tree: FakeTree, no_systemd: None) -> None:
    pods = [tree.add_pod(f"pod-{n}", cpu_max=original) for n, original in enumerate(ORIGINALS)]
    for pod in pods:
        pause_pod(tree.root, pod)
    damage(pods[bad])

    outcomes = resume_all(str(tree.root))

    failed = [outcome for outcome in outcomes if outcome.error is not None]
    assert [outcome.path for outcome in failed] == [str(pods[bad].relative_to(tree.root))]
    assert isinstance(failed[0].error, RestoreError)
    assert "setfattr -x user.cgpause" in str(failed[0].error)
    assert [cpu_max(pod) == original for pod, original in zip(pods, ORIGINALS, strict=True)] == [
        number != bad for number in range(3)
    ]
    assert records_left(tree.root) == [pods[bad]]


@pytest.mark.parametrize("method", ["__init__", "get_xattr"])
def test_one_that_cannot_be_looked_at_never_stops_the_others(method: str, tree: FakeTree, monkeypatch: Patch) -> None:
    """The kernel may refuse one directory (EACCES, EIO); it may hold a record, so it is a failure, not a detail."""
    bad, good = tree.add_pod("bad"), tree.add_pod("good", cpu_max="50000 100000")
    pause_pod(tree.root, good)
    real = getattr(Cgroup, method)

    def refuse(self: Cgroup, *args: str) -> object:
        if bad.name in (args[1] if method == "__init__" else self.path):
            raise KernelReadError(str(bad), OSError(errno.EIO, ""))
        return real(self, *args)

    monkeypatch.setattr(Cgroup, method, refuse)
    outcomes = {outcome.path: outcome.error for outcome in resume_all(str(tree.root))}

    assert cpu_max(good) == "50000 100000"
    assert outcomes[str(good.relative_to(tree.root))] is None
    assert isinstance(outcomes[str(bad.relative_to(tree.root))], KernelReadError)


@pytest.mark.parametrize("place", ["kubepods.slice", "kubepods-burstable.slice"])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(place: str, tree: FakeTree, monkeypatch: Patch) -> None:
    """Saying "nothing is paused" of a folder nobody could look into would be a guess."""
    pause_pod(tree.root, tree.add_pod("hidden"))
    real = Cgroup.children

    def refuse(self: Cgroup) -> list[tuple[str, int]]:
        if self.path.endswith(place):
            raise KernelReadError(self.path, OSError(errno.EIO, ""))
        return real(self)

    monkeypatch.setattr(Cgroup, "children", refuse)
    try:
        failed = any(outcome.error is not None for outcome in resume_all(str(tree.root)))
    except KernelReadError:
        failed = True

    assert failed


def test_a_pod_that_vanishes_while_its_folder_is_listed_does_not_hide_its_neighbours(
    tree: FakeTree, monkeypatch: Patch
) -> None:
    gone, good = tree.add_pod("gone"), tree.add_pod("good", cpu_max="50000 100000")
    pause_pod(tree.root, good)
    real = os.scandir

    class Racing:
        """Lists the folder, and only then does the pod vanish."""

        def __init__(self, fd: int) -> None:
            self._entries = real(fd)

        def __enter__(self) -> list[os.DirEntry[str]]:
            entries = list(self._entries)
            if gone.name in [entry.name for entry in entries]:
                gone.rename(tree.folder / "gone")
            return entries

        def __exit__(self, *_: object) -> None:
            self._entries.close()

    with monkeypatch.context() as patch:
        patch.setattr("cgpause.cgroupfs.os.scandir", lambda fd: Racing(fd) if isinstance(fd, int) else real(fd))
        resume_all(str(tree.root))

    assert not gone.exists()
    assert cpu_max(good) == "50000 100000"


@pytest.mark.parametrize("step", ["opened", "locked"])
def test_a_pod_that_vanishes_in_between_is_nobodys_failure(step: str, tree: FakeTree, monkeypatch: Patch) -> None:
    gone, good = tree.add_pod("gone"), tree.add_pod("good")
    for pod in (gone, good):
        pause_pod(tree.root, pod)

    def vanish(*_: object, **__: object) -> NoReturn:
        monkeypatch.undo()
        raise CgroupGoneError(str(gone))

    monkeypatch.setattr(Cgroup, "get_xattr" if step == "opened" else "locked", vanish)
    outcomes = resume_all(str(tree.root))

    assert [(outcome.path, outcome.error) for outcome in outcomes] == [(str(good.relative_to(tree.root)), None)]


def test_a_locked_pod_is_a_failure_that_says_so(tree: FakeTree) -> None:
    locked, good = tree.add_pod("locked"), tree.add_pod("good")
    for pod in (locked, good):
        pause_pod(tree.root, pod)
    fd = os.open(locked / "cgroup.kill", os.O_WRONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        outcomes = {outcome.path: outcome.error for outcome in resume_all(str(tree.root))}
    finally:
        os.close(fd)

    assert "locked by another process" in str(outcomes[str(locked.relative_to(tree.root))])
    assert outcomes[str(good.relative_to(tree.root))] is None


@pytest.mark.parametrize(
    "arrange",
    [
        pytest.param(lambda root: None, id="no-kubepods"),
        pytest.param(lambda root: (root / "kubepods").write_text(""), id="kubepods-is-a-file"),
        pytest.param(lambda root: (root / "kubepods").symlink_to("kubepods"), id="kubepods-is-a-loop"),
        pytest.param(lambda root: (root / "kubepods.slice").mkdir(), id="empty-kubepods"),
        pytest.param(lambda root: (root / os.fsdecode(b"\xff\n\x1b")).mkdir(), id="odd-names"),
    ],
)
def test_without_pods_nothing_is_paused(arrange: Callable[[Path], object], tmp_path: Path) -> None:
    arrange(tmp_path)

    assert resume_all(str(tmp_path)) == []
    assert restore.main(["--cgroup-root", str(tmp_path)]) == 0


# --- memory.high -----------------------------------------------------------------------------------------------------


def brake(kubepods: Path, original: str = "max") -> None:
    (kubepods / "cgroup.kill").touch()
    (kubepods / "memory.high").write_text(f"{original}\n")
    with Cgroup(str(kubepods.parent), kubepods.name) as cgroup:
        assert set_high(cgroup, 1 << 30, since_ns=1) is not None


def braked(kubepods: Path) -> tuple[str, bool]:
    return (kubepods / "memory.high").read_text().strip(), "user.cgpause.high" in os.listxattr(kubepods)


@pytest.mark.parametrize("options", [[], ["--daemon-only"]], ids=["all", "daemon-only"])
def test_memory_high_of_every_tree_named_like_kubepods_comes_back(
    options: list[str], tree: FakeTree, capsys: Capture
) -> None:
    nested = tree.root / "kubelet.slice/kubelet-kubepods.slice"
    stale = tree.root / "kubepods"
    untouched = tree.root / "other.slice" / "kubepods.slice"
    for path in (nested, stale, untouched):
        path.mkdir(parents=True)
        (path / "memory.high").write_text("2147483648\n")
    for path in (tree.kubepods, nested, stale):
        brake(path, "2147483648" if path == nested else "max")

    assert restore.main(["--cgroup-root", str(tree.root), *options]) == 0

    assert [braked(path) for path in (tree.kubepods, stale)] == [("max", False)] * 2
    assert [braked(path) for path in (nested, untouched)] == [("2147483648", False)] * 2
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.split(" memory_high_to=")[0] for line in lines) == [
        "info: released memory.high cgroup=kubelet.slice/kubelet-kubepods.slice",
        "info: released memory.high cgroup=kubepods",
        "info: released memory.high cgroup=kubepods.slice",
    ]


def test_a_foreign_memory_high_stays(tree: FakeTree) -> None:
    brake(tree.kubepods)
    (tree.kubepods / "memory.high").write_text("4096\n")

    (outcome,) = resume_all(str(tree.root))

    assert outcome.resumed == high.Released(4096, foreign=True)

    assert braked(tree.kubepods) == ("4096", False)


def test_memory_high_is_not_an_operators(tree: FakeTree) -> None:
    brake(tree.kubepods)

    assert resume_all(str(tree.root), owner=Owner.MANUAL) == []

    assert braked(tree.kubepods) == ("1073741824", True)


def test_memory_high_that_cannot_be_restored_is_a_failure_and_stops_nobody(tree: FakeTree, capsys: Capture) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, pod)
    brake(tree.kubepods)
    os.setxattr(tree.kubepods, "user.cgpause.high", b"rubbish")
    stale = tree.root / "kubepods"
    stale.mkdir()
    brake(stale)

    assert restore.main(["--cgroup-root", str(tree.root)]) == 6

    assert cpu_max(pod) == "50000 100000"
    assert braked(stale) == ("max", False)
    assert "could not resume cgroup=kubepods.slice error=" in capsys.readouterr().err


# --- the second source -----------------------------------------------------------------------------------------------


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A `systemctl` that prints the file returned here, and writes down how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "systemctl"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/called\ncat {folder}/output\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "output"


def properties(quota: str, period: str = "infinity", state: str = "active") -> bytes:
    return f"ActiveState={state}\nCPUQuotaPerSecUSec={quota}\nCPUQuotaPeriodUSec={period}\n".encode()


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param(properties("750ms", "100ms"), CpuMax(75_000, 100_000), id="quota"),
        pytest.param(properties("750ms"), CpuMax(75_000, 100_000), id="quota-of-the-default-period"),
        pytest.param(properties("infinity"), CpuMax(None, 100_000), id="no-limit"),
        pytest.param(properties("infinity", "50ms"), CpuMax(None, 50_000), id="no-limit-with-a-period"),
        pytest.param(properties("4s", "50ms"), CpuMax(200_000, 50_000), id="four-cores"),
        pytest.param(properties("1.5s"), CpuMax(150_000, 100_000), id="fraction"),
        pytest.param(properties("1min 4s"), CpuMax(6_400_000, 100_000), id="64-cores"),
        pytest.param(properties("20ms", "10ms"), CpuMax(200, 10_000), id="little"),
        pytest.param(properties("750ms", state="inactive"), None, id="never-started"),
        pytest.param(properties("750ms", state="failed"), None, id="failed"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"ActiveState=active\n", None, id="old-systemd-without-the-property"),
        pytest.param(b"ActiveState=active\nCPUQuotaPerSecUSec=750ms\n", None, id="truncated"),
        pytest.param(properties(""), None, id="empty-quota"),
        pytest.param(properties("rubbish"), None, id="garbage"),
        pytest.param(properties("750"), None, id="without-unit"),
        pytest.param(properties("-750ms"), None, id="negative"),
        pytest.param(properties("9" * 400 + "s"), None, id="huge"),
        pytest.param(properties("750ms", "9" * 400 + "s"), None, id="huge-period"),
        pytest.param(b"\x00" * 100, None, id="zeros"),
        pytest.param(b"ActiveState=\xff\xfe\n", None, id="not-utf-8"),
        pytest.param(b"=" * 100_000, None, id="long"),
    ],
)
def test_systemd_knows_the_original_of_a_slice(shown: bytes, expected: CpuMax | None, systemctl: Path) -> None:
    systemctl.write_bytes(shown)

    assert original_from_systemd(SLICE) == expected
    assert (systemctl.parent / "called").read_text().splitlines() == [
        "show",
        "--property=ActiveState,CPUQuotaPerSecUSec,CPUQuotaPeriodUSec",
        "--",
        "kubepods-pod00000001_0000_4000_8000_000000000001.slice",
    ]


def test_a_systemctl_that_fails_knows_nothing(systemctl: Path) -> None:
    # `cat` of a file that is not there exits with 1.
    assert original_from_systemd(SLICE) is None
    assert (systemctl.parent / "called").exists()


def test_a_cgroup_that_is_no_slice_is_not_asked_about(systemctl: Path) -> None:
    systemctl.write_bytes(properties("750ms"))

    assert original_from_systemd("/sys/fs/cgroup/kubepods/burstable/pod1") is None
    assert not (systemctl.parent / "called").exists()


def test_without_systemd_nobody_knows(no_systemd: None) -> None:
    assert original_from_systemd(SLICE) is None


def test_a_systemctl_that_hangs_is_cut_off(systemctl: Path, monkeypatch: Patch) -> None:
    (systemctl.parent / "systemctl").write_text("#!/bin/sh\nexec sleep 60\n")
    real = subprocess.run
    limits = []

    def impatient(command: list[str], *, timeout: float, **options: bool) -> object:
        limits.append(timeout)
        return real(command, timeout=0.2, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", impatient)
    started = time.monotonic()

    assert original_from_systemd(SLICE) is None
    assert time.monotonic() - started < 30
    assert limits == [10]


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_damaged_record_is_replaced_by_what_systemd_knows(
    mechanism: Mechanism, tree: FakeTree, systemctl: Path
) -> None:
    systemctl.write_bytes(properties("750ms", "100ms"))
    pod = tree.add_pod("web", cpu_max="75000 100000")
    pause_pod(tree.root, pod, mechanism)
    damage(pod)

    (outcome,) = resume_all(str(tree.root))

    assert outcome.error is None
    assert isinstance(outcome.resumed, Resumed)
    assert outcome.resumed.record is None
    assert cpu_max(pod) == "75000 100000"
    assert (pod / "cgroup.freeze").read_text() == "0\n"
    assert records_left(tree.root) == []


# --- python -m cgpause.restore ---------------------------------------------------------------------------------------


def test_main_resumes_all_and_says_what(tree: FakeTree, capsys: Capture) -> None:
    pods = [tree.add_pod("daemon", cpu_max="50000 100000"), tree.add_pod("manual")]
    pause_pod(tree.root, pods[0])
    pause_pod(tree.root, pods[1], owner=Owner.MANUAL)

    assert restore.main(["--cgroup-root", str(tree.root)]) == 0

    assert records_left(tree.root) == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert f" resumed pod={tree.uids['daemon']} " in lines[0]
    assert f" cgroup={pods[0].relative_to(tree.root)} " in lines[0]
    assert 'cpu_max_to="50000 100000"' in lines[0]


@pytest.mark.parametrize(
    ("options", "owners"),
    [([], {"daemon": "operator", "manual": "operator"}), (["--daemon-only"], {"daemon": "crashed", "late": "expired"})],
    ids=["all", "daemon-only"],
)
def test_main_notes_what_it_resumed_with_its_name(tree: FakeTree, options: list[str], owners: dict[str, str]) -> None:
    state = tree.folder / "state"
    state.mkdir()
    for name in owners:
        pod, owner = tree.add_pod(name), Owner.DAEMON if name == "daemon" else Owner.MANUAL
        at_ns = now_ns()
        expires_ns = at_ns - 10**9 if name == "late" else None
        request = PauseRequest(Mechanism.THROTTLE, CpuMax(1000, 100_000), owner, "test", at_ns - 10**10, expires_ns)
        with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
            pause(cgroup, request)
    place = ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir), "--state-dir", str(state)]

    assert restore.main([*place, *options]) == 0

    found = list(history.read(history.path_in(str(state))))
    assert {event.pod.removeprefix("default/"): event.result for event in found} == owners
    assert all(event.held_s is not None and event.held_s >= 10 for event in found)
    assert {event.pause_reason for event in found} == {"test"}


def test_a_history_that_cannot_be_written_changes_nothing_for_who_restores(tree: FakeTree, capsys: Capture) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, pod)
    place = ["--cgroup-root", str(tree.root), "--state-dir", str(tree.folder / "absent")]

    assert restore.main([*place, "--daemon-only"]) == 0

    assert cpu_max(pod) == "50000 100000"
    assert "warning: history not written" in capsys.readouterr().err


def test_daemon_only_leaves_manual_pauses(tree: FakeTree) -> None:
    daemon, manual = tree.add_pod("daemon", cpu_max="50000 100000"), tree.add_pod("manual")
    pause_pod(tree.root, daemon)
    pause_pod(tree.root, manual, owner=Owner.MANUAL)

    assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 0

    assert (cpu_max(daemon), cpu_max(manual)) == ("50000 100000", "1000 100000")
    assert records_left(tree.root) == [manual]


def test_daemon_only_leaves_what_an_operator_takes_over_in_the_same_moment(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, pod)

    def just_before(cgroup: Cgroup, *, wait_s: float = LOCK_WAIT_S, owner: Owner | None = None) -> Resumed | None:
        by_hand = PauseRequest(Mechanism.THROTTLE, CpuMax(1000, 100_000), Owner.MANUAL, "by hand", since_ns=2)
        assert take_over(cgroup, by_hand) is not None
        return resume(cgroup, wait_s=wait_s, owner=owner)

    monkeypatch.setattr(restore, "resume", just_before)

    assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 0
    assert (cpu_max(pod), records_left(tree.root)) == ("1000 100000", [pod])


@pytest.mark.parametrize(("ended", "resumed"), [(-1, True), (3600, False)], ids=["expired", "still-wanted"])
def test_daemon_only_ends_a_manual_pause_whose_time_is_over(tree: FakeTree, ended: int, resumed: bool) -> None:  # noqa: FBT001 - a table
    """The daemon does that while it runs; a stopped one must not leave it held for ever."""
    pod = tree.add_pod("web", cpu_max="50000 100000")
    at_ns = now_ns()
    request = PauseRequest(
        Mechanism.THROTTLE, CpuMax(1000, 100_000), Owner.MANUAL, "test", at_ns - 10**10, at_ns + ended * 10**9
    )
    with Cgroup(str(tree.root), str(pod.relative_to(tree.root))) as cgroup:
        pause(cgroup, request)
    assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 0
    assert (cpu_max(pod) == "50000 100000") is resumed


def test_those_that_take_long_come_last_and_their_time_is_bounded(
    tree: FakeTree, no_systemd: None, monkeypatch: Patch
) -> None:
    """systemd ends ExecStopPost= after 30 s; a dozen of locked pods must not use them up for all the others."""
    pods = [tree.add_pod(f"pod-{n}", cpu_max="50000 100000") for n in range(6)]
    for pod in pods:
        pause_pod(tree.root, pod)
    damage(pods[0])
    brake(tree.kubepods)
    waits: list[float] = []

    def waiting(
        cgroup: Cgroup,
        *,
        wait_s: float = LOCK_WAIT_S,
        second_source: Callable[[str], CpuMax | None] | None = None,
        owner: Owner | None = None,
    ) -> Resumed | None:
        waits.append(wait_s)
        return resume(cgroup, wait_s=0, second_source=second_source, owner=owner)

    clock = SimpleNamespace(monotonic=lambda: 10 * waits.count(LOCK_WAIT_S))
    monkeypatch.setattr(restore, "resume", waiting)
    monkeypatch.setattr(restore, "time", clock)
    with contextlib.ExitStack() as stack:
        for pod in pods[1:4]:
            lock = stack.enter_context((pod / "cgroup.kill").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        outcomes = resume_all(str(tree.root))
    done = [outcome.path for outcome in outcomes if outcome.error is None]
    failed = [outcome.path for outcome in outcomes if outcome.error is not None]
    assert done == [str(path.relative_to(tree.root)) for path in (*pods[4:], tree.kubepods)]
    assert failed == [str(path.relative_to(tree.root)) for path in pods[:4]]
    assert [outcome.path for outcome in outcomes] == done + failed
    # The damaged one and the first that is locked are waited for, 10 s each; then patience is at its end.
    assert waits == [0] * 6 + [LOCK_WAIT_S] * 2 + [0] * 2


def test_daemon_only_takes_a_damaged_record_for_the_daemons(tree: FakeTree, no_systemd: None) -> None:
    """Nobody can tell whose it was, and left paused is worse than resumed: so it is tried, and the failure is loud."""
    pod = tree.add_pod("web")
    damage(pod)

    assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 6


def test_main_exits_6_when_one_cannot_be_restored_and_restores_the_others(
    tree: FakeTree, no_systemd: None, capsys: Capture
) -> None:
    bad, good = tree.add_pod("bad"), tree.add_pod("good", cpu_max="50000 100000")
    for pod in (bad, good):
        pause_pod(tree.root, pod)
    damage(bad)

    assert restore.main(["--cgroup-root", str(tree.root)]) == 6

    assert cpu_max(good) == "50000 100000"
    assert f"could not resume cgroup={bad.relative_to(tree.root)} error=" in capsys.readouterr().err


def test_what_failed_is_said_before_anything_waits_for_the_disk(
    tree: FakeTree, no_systemd: None, capsys: Capture, monkeypatch: Patch
) -> None:
    for name in ("web", "job"):
        pause_pod(tree.root, tree.add_pod(name))
    bad = tree.add_pod("bad")
    pause_pod(tree.root, bad)
    damage(bad)
    said: list[str] = []
    monkeypatch.setattr(history, "append", lambda *_: said.append(capsys.readouterr().err))

    assert restore.main(["--cgroup-root", str(tree.root), "--state-dir", str(tree.folder)]) == 6

    assert said[0].count(" resumed pod=") == 2
    assert f"could not resume cgroup={bad.relative_to(tree.root)} error=" in said[0]
    assert said[1:] == [""]


def test_main_exits_1_without_cgroup_v2(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("cgpause.cgroupfs.open", lambda *_: io.BytesIO(b""), raising=False)

    assert restore.main([]) == 1
    assert "no cgroup v2 is mounted here" in capsys.readouterr().err


def test_main_exits_1_without_its_cgroup_root(tmp_path: Path, capsys: Capture) -> None:
    """As its docstring and `cgpause resume --all` have it."""
    assert restore.main(["--cgroup-root", str(tmp_path / "absent")]) == 1
    assert str(tmp_path / "absent") in capsys.readouterr().err


def test_errors_with_control_characters_do_not_forge_log_lines(tmp_path: Path, capsys: Capture) -> None:
    restore.main(["--cgroup-root", str(tmp_path / "absent\nresumed cgroup=all")])

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_process_restores_and_exits_with_its_code(tree: FakeTree) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, pod)
    command = [sys.executable, "-m", "cgpause.restore", "--cgroup-root", str(tree.root), "--daemon-only"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, cpu_max(pod)) == (0, "50000 100000")
    assert done.stdout == ""
    assert done.stderr.startswith("info: resumed ")
