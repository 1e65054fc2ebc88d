"""The tree alone is enough to resume every paused pod; one failure does not stop the others; each owner has its own."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from helpers.commandline import record_of
from helpers.fixtures import Capture, Patch
from helpers.ledgers import high_state
from helpers.refusals import refusing_at
from helpers.restoring import ORIGINALS, brake
from helpers.trees import CAPTURES, FakeTree, cpu_max, damage, lay_out_capture, pause_pod, records_left

from cgpause import restore
from cgpause.core.clock import now_ns
from cgpause.core.errors import CgroupGoneError, KernelReadError, RestoreError
from cgpause.core.model import CpuMax, Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import ledger
from cgpause.ledger.ledger import Resumed
from cgpause.ledger.plan import PauseRequest
from cgpause.pods.discover import OnError, list_pods, paused_cgroups
from cgpause.restore import Restored, braked_roots, resume_all


def pause_three(tree: FakeTree) -> list[Path]:
    """Return three paused pods, each with a different original."""
    return [pause_pod(tree.root, tree.add_pod(f"pod-{n}", cpu_max=original)) for n, original in enumerate(ORIGINALS)]


@pytest.mark.parametrize("driver", CAPTURES)
def test_every_pause_of_a_captured_tree_is_undone_to_its_own_original(driver: str, tmp_path: Path) -> None:
    root, _ = lay_out_capture(driver, tmp_path)
    with Cgroup(str(root), "kubepods.slice" if driver == "systemd" else "kubepods") as kubepods:
        pods = [root / pod.cgroup.path for pod in list_pods(kubepods)[0]]
    running, *paused = pods
    (running / "cpu.max").write_text("1001 100000\n")
    before = {pod: (cpu_max(pod), (pod / "cgroup.freeze").read_text()) for pod in pods}
    for number, pod in enumerate(paused):
        pause_pod(root, pod, mechanism=Mechanism.FREEZE if number % 2 else Mechanism.THROTTLE)

    outcomes = resume_all(str(root))

    assert len(pods) == 7
    assert {outcome.path for outcome in outcomes} == {str(pod.relative_to(root)) for pod in paused}
    assert all(outcome.error is None and outcome.resumed is not None for outcome in outcomes)
    assert {pod: (cpu_max(pod), (pod / "cgroup.freeze").read_text()) for pod in pods} == before
    assert records_left(root) == []
    assert resume_all(str(root)) == []


def test_records_of_a_container_are_neither_believed_nor_waited_for(
    tree: FakeTree, monkeypatch: Patch, no_systemd: None
) -> None:
    """A container that owns its cgroup can make any number of them, below a name like kubelet's."""
    pod = pause_pod(tree.root, tree.add_pod("web"))
    theirs = tree.root / "lxc" / "kubepods"
    shutil.copytree(tree.kubepods, theirs)
    forged = theirs / pod.relative_to(tree.kubepods)
    for at in (tree.kubepods, theirs):
        brake(at)
    damage(forged)
    monkeypatch.setattr(Cgroup, "owned_by_root", lambda self: not self.id.path.startswith("lxc"))

    assert all(outcome.error is None for outcome in resume_all(str(tree.root)))

    assert (records_left(tree.root), cpu_max(forged)) == ([forged], "1001 100000")
    assert [high_state(at)[1] for at in (tree.kubepods, theirs)] == [False, True]


def test_every_tree_named_like_kubepods_is_looked_at(tree: FakeTree) -> None:
    """An old kubelet or another driver leaves a second tree behind, and its pods may be paused too."""
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
        pause_pod(tree.root, pod, owner=Owner.DAEMON)

    outcomes = resume_all(str(tree.root), owner=Owner.DAEMON)

    assert len(outcomes) == 3
    assert [cpu_max(pod) for pod in (first, *others)] == ["50000 100000"] * 3
    assert records_left(tree.root) == []


@pytest.mark.parametrize("bad", range(3), ids=["first", "middle", "last"])
def test_one_that_fails_never_stops_the_others(bad: int, tree: FakeTree, no_systemd: None) -> None:
    pods = pause_three(tree)
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
    """The kernel may refuse one directory (EACCES, EIO); a record may be in it, so this is a failure, not a detail."""
    bad, good = tree.add_pod("bad"), pause_pod(tree.root, tree.add_pod("good", cpu_max="50000 100000"))
    error = KernelReadError(str(bad), OSError(errno.EIO, ""))
    monkeypatch.setattr(Cgroup, method, refusing_at(bad, error, method))
    outcomes = {outcome.path: outcome.error for outcome in resume_all(str(tree.root))}

    assert cpu_max(good) == "50000 100000"
    assert outcomes[str(good.relative_to(tree.root))] is None
    assert isinstance(outcomes[str(bad.relative_to(tree.root))], KernelReadError)


@pytest.mark.parametrize("place", ["kubepods.slice", "kubepods-burstable.slice"])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(place: str, tree: FakeTree, monkeypatch: Patch) -> None:
    """The message "nothing is paused" about an unreadable folder would be a guess."""
    pause_pod(tree.root, tree.add_pod("hidden"))
    error = KernelReadError(place, OSError(errno.EIO, ""))
    monkeypatch.setattr(Cgroup, "children", refusing_at(Path(place), error, "children"))
    try:
        failed = any(outcome.error is not None for outcome in resume_all(str(tree.root)))
    except KernelReadError:
        failed = True

    assert failed


def test_a_pod_that_vanishes_before_its_lock_is_nobodys_failure(tree: FakeTree, monkeypatch: Patch) -> None:
    gone, good = (pause_pod(tree.root, tree.add_pod(name)) for name in ("gone", "good"))

    def vanish(*_: object, **__: object) -> NoReturn:
        monkeypatch.undo()
        raise CgroupGoneError(str(gone))

    monkeypatch.setattr(Cgroup, "locked", vanish)
    outcomes = resume_all(str(tree.root))

    assert [(outcome.path, outcome.error) for outcome in outcomes] == [(str(good.relative_to(tree.root)), None)]


def test_a_damaged_pod_that_vanishes_hides_no_other(tree: FakeTree, monkeypatch: Patch, no_systemd: None) -> None:
    """Damaged records are tried again at the end; the first of these pods has gone by then."""
    pods = pause_three(tree)
    for pod in pods:
        damage(pod)
    damaged = {str(pod.relative_to(tree.root)) for pod in pods}
    real, opened, gone = Cgroup.__init__, list[str](), list[str]()

    def vanish(self: Cgroup, root: str, path: str) -> None:
        if path in damaged and path in opened and not gone:
            gone.append(path)
            raise CgroupGoneError(path)
        opened.append(path)
        real(self, root, path)

    monkeypatch.setattr(Cgroup, "__init__", vanish)
    outcomes = resume_all(str(tree.root))
    assert {outcome.path for outcome in outcomes if outcome.error is not None} == damaged - set(gone)
    assert len(gone) == 1


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


# --- owners ----------------------------------------------------------------------------------------------------------


THROTTLE = CpuMax(1000, 100_000)


@pytest.mark.parametrize(
    ("by", "asked", "ended_s", "undone"),
    [
        pytest.param(Owner.DAEMON, None, None, True, id="anybodys"),
        pytest.param(Owner.MANUAL, None, 3600, True, id="anybodys-by-hand"),
        pytest.param(Owner.DAEMON, Owner.DAEMON, None, True, id="the-daemons-own"),
        pytest.param(Owner.DAEMON, Owner.MANUAL, -1, False, id="the-daemons-is-not-the-operators"),
        pytest.param(Owner.MANUAL, Owner.DAEMON, -1, True, id="the-daemon-would-have-ended-it"),
        pytest.param(Owner.MANUAL, Owner.DAEMON, 3600, False, id="still-wanted"),
        pytest.param(Owner.MANUAL, Owner.DAEMON, None, False, id="for-good"),
        pytest.param(Owner.MANUAL, Owner.MANUAL, 3600, True, id="the-operators-own"),
    ],
)
def test_a_pause_is_its_owners_to_end_and_once_its_time_is_over_the_daemons_too(
    tree: FakeTree, by: Owner, asked: Owner, ended_s: int | None, undone: bool
) -> None:
    pod = tree.add_pod("web", cpu_max="50000 100000")
    expires_ns = None if ended_s is None else now_ns() + ended_s * 10**9
    pause_pod(tree.root, pod, by, since_ns=now_ns() - 10**10, expires_ns=expires_ns)

    outcomes = resume_all(str(tree.root), owner=asked)

    assert len(outcomes) == undone
    assert (cpu_max(pod) == "50000 100000") is undone
    assert records_left(tree.root) == ([] if undone else [pod])


@pytest.mark.parametrize("owner", [Owner.DAEMON, None])
def test_a_pod_taken_over_between_the_look_and_the_lock_stays_the_operators(
    tree: FakeTree, monkeypatch: Patch, owner: Owner | None
) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"))
    real = Cgroup.locked

    @contextmanager
    def locked(cgroup: Cgroup, *, wait_s: float) -> Iterator[None]:
        monkeypatch.undo()
        by_hand = PauseRequest(Mechanism.THROTTLE, THROTTLE, Owner.MANUAL, "by hand", 2)
        assert ledger.take_over(cgroup, by_hand) is not None
        with real(cgroup, wait_s=wait_s):
            yield

    monkeypatch.setattr(Cgroup, "locked", locked)
    outcomes = resume_all(str(tree.root), owner=owner)

    if owner is None:
        assert cpu_max(pod) == "50000 100000"
    else:
        assert outcomes == []
        assert (record_of(tree, pod).owner, cpu_max(pod)) == (Owner.MANUAL, "1001 100000")


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("owner", [None, *Owner])
def test_a_damaged_record_is_anybodys_and_replaced_by_what_systemd_knows(
    tree: FakeTree, systemctl: Path, owner: Owner | None, mechanism: Mechanism
) -> None:
    systemctl.write_text("ActiveState=active\nCPUQuotaPerSecUSec=750ms\nCPUQuotaPeriodUSec=100ms\n")
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="75000 100000"), mechanism=mechanism)
    damage(pod)

    (outcome,) = resume_all(str(tree.root), owner=owner)

    assert isinstance(outcome.resumed, Resumed)
    assert outcome.resumed.record is None
    assert (cpu_max(pod), records_left(tree.root)) == ("75000 100000", [])
    assert (pod / "cgroup.freeze").read_text() == "0\n"


def test_memory_high_is_never_the_operators(tree: FakeTree) -> None:
    brake(tree.kubepods)

    assert resume_all(str(tree.root), owner=Owner.MANUAL) == []

    assert high_state(tree.kubepods) == (str(1 << 30), True)


# --- unreadable cgroups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["__init__", "get_xattr"])
@pytest.mark.parametrize("place", ["pod", "kubepods"])
def test_what_is_gone_is_nobodys_failure(tree: FakeTree, monkeypatch: Patch, method: str, place: str) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web"))
    gone = pod if place == "pod" else tree.kubepods
    monkeypatch.setattr(Cgroup, method, refusing_at(gone, CgroupGoneError(str(gone)), method))
    told: list[str] = []

    list(paused_cgroups(str(tree.root), lambda path, _: told.append(path)))

    assert told == []
    assert list(braked_roots(str(tree.root))) == []


@pytest.mark.parametrize("method", ["get_xattr", "__init__"], ids=["asked", "listed"])
def test_a_kubepods_that_cannot_be_read_is_one_failure(tree: FakeTree, monkeypatch: Patch, method: str) -> None:
    error = KernelReadError(str(tree.kubepods), OSError(errno.EIO, ""))
    monkeypatch.setattr(Cgroup, method, refusing_at(tree.kubepods, error, method))
    assert resume_all(str(tree.root)) == [Restored(tree.kubepods.name, None, error)]


@pytest.mark.parametrize("driver", ["kubepods.slice", "kubelet.slice/kubelet-kubepods.slice"])
def test_a_kubepods_that_cannot_be_opened_any_more_is_reported(driver: str, tree: FakeTree, monkeypatch: Patch) -> None:
    """The node may have no file left at that moment (ENFILE)."""
    kubepods = tree.root / driver
    if not kubepods.exists():
        kubepods.parent.mkdir()
        tree.kubepods.rename(kubepods)
    brake(kubepods)
    top = tree.root / driver.partition("/")[0]
    error = KernelReadError(str(top), OSError(errno.ENFILE, ""))

    def then_refuse(root: str, on_error: OnError) -> Iterator[object]:
        yield from paused_cgroups(root, on_error)
        monkeypatch.setattr(Cgroup, "__init__", refusing_at(top, error, "__init__"))

    monkeypatch.setattr(restore, "paused_cgroups", then_refuse)
    assert resume_all(str(tree.root)) == [Restored(top.name, None, error)]
    assert high_state(kubepods) == (str(1 << 30), True)


def test_a_pod_that_cannot_be_opened_when_its_turn_comes_again_is_one(tree: FakeTree, monkeypatch: Patch) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web"))
    damage(pod)
    error = KernelReadError(str(pod), OSError(errno.EIO, ""))

    def released(*_: object) -> Iterator[Cgroup]:
        monkeypatch.setattr(Cgroup, "__init__", refusing_at(pod, error, "__init__"))
        return iter(())

    monkeypatch.setattr(restore, "braked_roots", released)
    assert resume_all(str(tree.root)) == [Restored(str(pod.relative_to(tree.root)), None, error)]


def test_after_the_patience_no_pod_waits_for_systemd(tree: FakeTree, systemctl: Path, monkeypatch: Patch) -> None:
    """systemd gives the clean-up 30 s in all."""
    systemctl.write_text("ActiveState=active\nCPUQuotaPerSecUSec=750ms\nCPUQuotaPeriodUSec=100ms\n")
    pods = [pause_pod(tree.root, tree.add_pod(name)) for name in ("a", "b")]
    for pod in pods:
        damage(pod)
    monkeypatch.setattr(restore, "_PATIENCE_S", 0)
    assert [outcome.error is not None for outcome in resume_all(str(tree.root))] == [True, True]
    assert sorted(records_left(tree.root)) == sorted(pods)
    monkeypatch.setattr(restore, "_PATIENCE_S", 600)
    assert [outcome.error for outcome in resume_all(str(tree.root))] == [None, None]


def test_a_root_that_cannot_be_read_is_exit_code_6(tree: FakeTree, monkeypatch: Patch, capsys: Capture) -> None:
    error = KernelReadError(str(tree.root), OSError(errno.EIO, ""))
    monkeypatch.setattr(restore, "resume_all", lambda *_, **__: (_ for _ in ()).throw(error))

    assert restore.main(["--cgroup-root", str(tree.root)]) == 6
    assert str(tree.root) in capsys.readouterr().err
