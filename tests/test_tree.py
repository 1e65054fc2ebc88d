"""The walk: both drivers as captured, everything strange beside them, and trees that come and go."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trees import CAPTURED, CAPTURES, FakeTree, lay_out_capture, open_descriptors

from cgpause import tree as tree_module
from cgpause.cgroupfs import Cgroup
from cgpause.config import Config, HoldConfig, PodClass, PodRule, ProtectConfig, ReserveConfig
from cgpause.errors import CgroupGoneError, KernelReadError
from cgpause.kubepods import CgroupDriver
from cgpause.model import CpuMax, Mechanism, Owner, PauseRecord, Workload
from cgpause.tree import PodTree, count_oom_kills

S = 1_000_000_000
ALLOW_ALL = Config(protect=ProtectConfig(namespaces=(), static_pods=False, guaranteed=False, unnamed=False))


def labels(tree: PodTree) -> set[str]:
    return {tracked.pod.label for tracked in tree.pods.values()}


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path)


@pytest.fixture
def tree(fake: FakeTree) -> Iterator[PodTree]:
    made = PodTree(str(fake.root), str(fake.log_dir), Config(reserve=ReserveConfig(sacrifice=True)))
    yield made
    made.close()


# --- captured trees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", CAPTURES)
def test_the_walk_finds_every_pod_of_a_captured_tree(tmp_path: Path, driver: str) -> None:
    root, log_dir = lay_out_capture(driver, tmp_path)
    tree = PodTree(str(root), str(log_dir), Config())
    appeared, gone = tree.refresh(0)
    found = {t.pod.uid: (t.pod.label, t.pod.qos, t.pod.memory_max_bytes) for t in appeared}
    assert found == CAPTURED
    assert gone == []
    assert tree.driver == CgroupDriver(driver)
    assert tree.kubepods is not None
    assert tree.kubepods.id.path == {"systemd": "kubepods.slice", "cgroupfs": "kubepods"}[driver]
    assert len(tree.tiers) == 2
    assert all(t.pod.protected == "static pod (protect.static_pods)" for t in appeared)
    tree.close()


# --- strange neighbours --------------------------------------------------------------------------------------------


def test_unknown_names_beside_real_pods_are_left_alone(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    for parent in (fake.root, fake.kubepods, pod.parent, pod):
        for name in (
            "with space",
            "new\nline",
            "\udcff\udcfe",
            "kubepods-podxyz.slice",
            "crio-conmon-" + "a" * 64 + ".scope",
        ):
            (parent / name / "inner").mkdir(parents=True)
        (parent / "kubepods-pod").write_text("a file")
    tree.refresh(0)
    assert labels(tree) == {"default/web"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("memory.current", None, id="no-memory.current"),
        pytest.param("memory.max", None, id="no-memory.max"),
        pytest.param("memory.max", "", id="empty"),
        pytest.param("memory.max", "garbage\n", id="garbage"),
        pytest.param("memory.max", "-1\n", id="negative"),
        pytest.param("memory.max", "9" * 30, id="huge"),
        pytest.param("memory.max", "max\x00", id="nul"),
    ],
)
def test_a_pod_that_cannot_be_read_is_left_alone_and_told_once(
    fake: FakeTree, tree: PodTree, caplog: pytest.LogCaptureFixture, file: str, text: str | None
) -> None:
    fake.add_pod("good")
    bad = fake.add_pod("bad")
    if text is None:
        (bad / file).unlink()
    else:
        (bad / file).write_text(text)
    before = open_descriptors()
    for at_ns in range(3):
        tree.refresh(at_ns)
    protected = {tracked.pod.label for tracked in tree.pods.values() if tracked.pod.protected is not None}
    assert [labels(tree), protected] == [{"default/good", "default/bad"}, {"default/bad"}]
    assert [record.getMessage().partition(" uid=")[0] for record in caplog.records] == ["pod left alone"]
    # kubepods, and two for each pod, but for a memory.current that cannot be opened
    assert open_descriptors() == before + 5 - (file == "memory.current")


def test_a_pod_that_can_be_read_again_may_be_paused(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    (pod / "memory.max").write_text("garbage")
    tree.refresh(0)
    (pod / "memory.max").write_text("max\n")
    tree.refresh(1)
    assert [tracked.pod.protected for tracked in tree.pods.values()] == [None]


def test_a_known_pod_that_can_no_longer_be_read_is_protected_until_it_can(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    tree.refresh(0)
    (pod / "memory.max").write_text("garbage")
    tree.refresh(1)
    (tracked,) = tree.pods.values()
    assert tracked.pod.protected is not None
    assert "cannot be read" in tracked.pod.protected
    (pod / "memory.max").write_text("5\n")
    tree.refresh(2)
    assert [tracked.pod.protected, tracked.pod.memory_max_bytes] == [None, 5]


# --- pods and trees that come and go -------------------------------------------------------------------------------


def test_pods_that_appear_and_vanish_are_told_apart(fake: FakeTree, tree: PodTree) -> None:
    first = fake.add_pod("first")
    assert [[t.pod.label for t in tree.refresh(0)[0]], labels(tree)] == [["default/first"], {"default/first"}]
    fake.add_pod("second")
    shutil.rmtree(first)
    appeared, gone = tree.refresh(1)
    assert [tracked.pod.label for tracked in appeared] == ["default/second"]
    assert [pod.label for pod in gone] == ["default/first"]
    assert tree.refresh(2) == ([], [])


def test_a_pod_made_again_under_its_path_is_another_one(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    tree.refresh(0)
    shutil.copytree(pod, pod.with_name("copy"))  # its own inode, as the kernel would give it
    pod.rename(fake.folder / "old")
    pod.with_name("copy").rename(pod)
    appeared, gone = tree.refresh(1)
    assert [pod.uid for pod in gone] == [tracked.pod.uid for tracked in appeared] == [fake.uids["web"]]
    assert gone[0].cgroup != appeared[0].pod.cgroup


def test_pods_there_at_the_start_are_settled_and_later_ones_are_not(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("early")
    tree.refresh(100 * S)
    fake.add_pod("late")
    tree.refresh(200 * S)
    settled = {tracked.pod.name: tracked.pod.settled_at_ns for tracked in tree.pods.values()}
    assert settled == {"early": 0, "late": 205 * S}


def test_a_node_without_kubepods_waits_for_it(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()
    tree = PodTree(str(root), str(tmp_path / "log"), Config())
    assert tree.refresh(0) == ([], [])
    assert (tree.kubepods, tree.driver, tree.tiers) == (None, None, [])
    fake = FakeTree(tmp_path / "later")
    fake.add_pod("web")
    fake.kubepods.rename(root / "kubepods.slice")
    appeared, _ = tree.refresh(S)
    assert len(appeared) == 1
    tree.close()


def test_a_tree_that_vanishes_and_comes_back_is_followed(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("web")
    tree.refresh(0)
    before = open_descriptors()
    fake.kubepods.rename(fake.folder / "away")
    _, gone = tree.refresh(S)
    assert [pod.name for pod in gone] == ["web"]
    assert tree.kubepods is None
    (fake.folder / "away").rename(fake.kubepods)
    appeared, _ = tree.refresh(2 * S)
    assert [tracked.pod.name for tracked in appeared] == ["web"]
    assert open_descriptors() == before


def test_the_empty_tree_taken_first_is_given_up_for_the_real_one(fake: FakeTree, tree: PodTree) -> None:
    (fake.root / "kubepods" / "burstable").mkdir(parents=True)
    (fake.root / "kubepods" / "cgroup.events").write_text("populated 1\n")
    (fake.kubepods / "cgroup.events").write_text("populated 0\n")
    tree.refresh(0)
    fake.add_pod("web")
    (fake.kubepods / "cgroup.events").write_text("populated 1\n")
    (fake.root / "kubepods" / "cgroup.events").write_text("populated 0\n")
    tree.refresh(S)
    assert labels(tree) == {"default/web"}


def test_a_tier_that_vanishes_during_the_walk_is_empty(
    fake: FakeTree, tree: PodTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_pod("web")
    fake.add_pod("idle", tier="besteffort")
    fail_on(monkeypatch, "kubepods-besteffort.slice", CgroupGoneError("x"))
    tree.refresh(0)
    assert labels(tree) == {"default/web"}


def test_a_tier_that_cannot_be_read_is_not_taken_for_empty(
    fake: FakeTree, tree: PodTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMFILE for a moment must not drop pods that are paused: nobody would resume them at the end."""
    fake.add_pod("web")
    fake.add_pod("idle", tier="besteffort")
    tree.refresh(0)
    with monkeypatch.context() as patched:
        fail_on(patched, "kubepods-besteffort.slice", KernelReadError("x", OSError(24, "EMFILE")))
        try:
            _, gone = tree.refresh(S)
        except KernelReadError:
            gone = []
    assert gone == []
    assert labels(tree) == {"default/web", "default/idle"}


def fail_on(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    child = Cgroup.child

    def fail(cgroup: Cgroup, wanted: str) -> Cgroup:
        if wanted == name:
            raise error
        return child(cgroup, wanted)

    monkeypatch.setattr(Cgroup, "child", fail)


def test_closing_gives_every_descriptor_back(fake: FakeTree) -> None:
    for number in range(5):
        fake.add_pod(f"pod{number}")
    before = open_descriptors()
    tree = PodTree(str(fake.root), str(fake.log_dir), Config())
    tree.refresh(0)
    tree.refresh(1)
    tree.close()
    assert open_descriptors() == before


# --- facts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "protected"),
    [
        ({}, None),
        ({"tier": "besteffort"}, None),
        ({"tier": ""}, "QoS class Guaranteed (protect.guaranteed)"),
        ({"static": True}, "static pod (protect.static_pods)"),
        ({"namespace": "kube-system"}, "namespace kube-system (protect.namespaces)"),
        ({"log": False}, "its name is unknown while rules depend on names (protect.unnamed)"),
    ],
    ids=["burstable", "besteffort", "guaranteed", "static", "kube-system", "unnamed"],
)
def test_protection_follows_from_the_tree(
    fake: FakeTree, tree: PodTree, arguments: dict[str, object], protected: str | None
) -> None:
    fake.add_pod("web", **arguments)  # type: ignore[arg-type] # a row of the table
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.protected == protected


@pytest.mark.parametrize(("value", "protects"), [(b"1", True), (b"", True), (b"0", False)])
@pytest.mark.parametrize("xattr", ["user.oomd_omit", "user.oomd_avoid"])
def test_the_marks_of_systemd_oomd_protect(
    fake: FakeTree,
    tree: PodTree,
    monkeypatch: pytest.MonkeyPatch,
    xattr: str,
    value: bytes,
    protects: bool,  # noqa: FBT001 - a table
) -> None:
    os.setxattr(fake.add_pod("web"), xattr, value)
    (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected is not None) is protects
    monkeypatch.setattr(Cgroup, "owned_by_root", lambda _: False)  # anybody else may not opt out
    tree.refresh(1)
    assert tracked.pod.protected is None


@pytest.mark.parametrize(
    ("place", "protects"),
    [("", True), ("a.scope", True), ("a.scope/inner", True), ("../beside", False)],
    ids=["itself", "container", "crun", "elsewhere"],
)
def test_the_pod_we_run_in_is_protected(
    fake: FakeTree,
    place: str,
    protects: bool,  # noqa: FBT001 - a table
) -> None:
    """By process id: seen from a container, the path of our cgroup is "/"."""
    folder = fake.add_pod("web") / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    tree = PodTree(str(fake.root), str(fake.log_dir), ALLOW_ALL)
    (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected == "cgpause itself runs in it") is protects
    tree.close()


def test_the_pod_we_run_in_is_protected_also_where_the_first_walk_missed_it(fake: FakeTree, tree: PodTree) -> None:
    """A walk finds nothing where a tree is only just being made, or another one looks as if it were in use."""
    aside = fake.kubepods.rename(fake.folder / "aside")
    fake.kubepods.mkdir()
    tree.refresh(0)
    fake.kubepods.rmdir()
    aside.rename(fake.kubepods)
    (fake.add_pod("web") / "cgroup.procs").write_text(f"{os.getpid()}\n")
    fake.add_pod("other")

    tree.refresh(1)

    assert tree.own_pod is not None
    assert tree.own_pod.pod.label == "default/web"
    assert {t.pod.label: t.pod.protected for t in tree.pods.values()} == {
        "default/web": "cgpause itself runs in it",
        "default/other": None,
    }


@pytest.mark.parametrize("spelling", [str, str.upper], ids=["lower", "upper"])
def test_the_pod_the_manifest_names_as_ours_is_protected(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch, spelling: Callable[[str], str]
) -> None:
    for name in ("web", "other"):
        (fake.add_pod(name) / "cgroup.procs").write_text("0\n0\n")  # processes of another PID namespace
    monkeypatch.setenv("CGPAUSE_POD_UID", spelling(fake.uids["web"]))
    tree = PodTree(str(fake.root), str(fake.log_dir), ALLOW_ALL)

    tree.refresh(0)

    assert {t.pod.label: t.pod.protected for t in tree.pods.values()} == {
        "default/web": "cgpause itself runs in it",
        "default/other": None,
    }
    tree.close()


@pytest.mark.parametrize(("refused", "protects"), [(errno.EIO, True), (errno.EOPNOTSUPP, False), (errno.ENODEV, False)])
def test_a_pod_whose_processes_cannot_be_listed_is_protected_until_they_can(
    fake: FakeTree,
    monkeypatch: pytest.MonkeyPatch,
    refused: int,
    protects: bool,  # noqa: FBT001 - a table
) -> None:
    """Not for a threaded cgroup (EOPNOTSUPP): a container may make one, and gains nothing by it."""
    fake.add_pod("web")
    tree = PodTree(str(fake.root), str(fake.log_dir), ALLOW_ALL)
    read = Cgroup.read

    def refuse(cgroup: Cgroup, name: str) -> bytes:
        if name.endswith("cgroup.procs"):
            error = OSError(refused, os.strerror(refused))
            raise CgroupGoneError(name) if refused == errno.ENODEV else KernelReadError(name, error)
        return read(cgroup, name)

    with monkeypatch.context() as patch:
        patch.setattr(Cgroup, "read", refuse)
        (tracked,) = tree.refresh(0)[0]
    assert (tracked.pod.protected is not None) is protects
    assert tree.own_pod is None

    tree.refresh(1)

    assert (tracked.pod.protected, tracked.holds_us) == (None, False)
    tree.close()


def test_a_name_that_comes_later_is_found(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("web", log=False)
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.label == fake.uids["web"]
    (fake.log_dir / "pods" / f"default_web_{fake.uids['web']}").mkdir(parents=True)
    tree.refresh(1)
    assert (tracked.pod.label, tracked.pod.protected) == ("default/web", None)


def test_a_changed_limit_is_read_again(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    (pod / "memory.max").write_text("123\n")
    tree.refresh(1)
    assert tracked.pod.memory_max_bytes == 123


def test_oom_kills_are_counted(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    assert count_oom_kills(tracked.cgroup) == 0
    (pod / "memory.events").write_text("oom 2\noom_kill 3\noom_group_kill 1\n")
    assert count_oom_kills(tracked.cgroup) == 3
    (pod / "memory.events").write_text("low 0\n")
    assert count_oom_kills(tracked.cgroup) == 0


# --- class and priority --------------------------------------------------------------------------------------------


class Asked:
    """Stands for `listens`: answers as set for each pod, and counts who was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bool | None] = {}
        self.pods: list[str] = []

    def __call__(self, cgroup: Cgroup) -> bool | None:
        self.pods.append(cgroup.path)
        return self.answers.get(cgroup.path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(tree_module, "listens", made)
    return made


@pytest.mark.parametrize(
    ("answer", "workload"),
    [(True, Workload.SERVICE), (False, Workload.BATCH), (None, Workload.SERVICE)],
    ids=["listens", "does-not", "cannot-be-told"],
)
def test_a_pod_in_which_nothing_listens_is_batch(
    fake: FakeTree,
    tree: PodTree,
    asked: Asked,
    answer: bool | None,  # noqa: FBT001 - a table
    workload: Workload,
) -> None:
    asked.answers[str(fake.add_pod("web"))] = answer
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.workload is workload


def test_a_pod_whose_processes_cannot_be_found_is_a_service(fake: FakeTree, tree: PodTree) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.workload is Workload.SERVICE


def test_rules_come_before_what_the_kernel_shows(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    tree.config = Config(
        pods=(
            PodRule(match="default/a", class_=PodClass.SERVICE, priority=3),
            PodRule(match="default/b", class_=PodClass.BATCH),
            PodRule(match="default/c", class_=PodClass.AUTO, priority=-3),
        )
    )
    asked.answers = {str(fake.add_pod("a")): False, str(fake.add_pod("b")): True, str(fake.add_pod("c")): False}
    tree.refresh(0)
    found = {t.pod.name: (t.pod.workload, t.pod.priority) for t in tree.pods.values()}
    assert found == {"a": (Workload.SERVICE, 3), "b": (Workload.BATCH, 0), "c": (Workload.BATCH, -3)}
    assert len(asked.pods) == 1  # whose class a rule decides is not asked

    tree.config = Config()
    tree.refresh(S)
    found = {t.pod.name: (t.pod.workload, t.pod.priority) for t in tree.pods.values()}
    assert found == {"a": (Workload.BATCH, 0), "b": (Workload.SERVICE, 0), "c": (Workload.BATCH, 0)}


def test_a_batch_pod_is_asked_again_after_10_s_and_a_service_never(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    late, early = str(fake.add_pod("late")), str(fake.add_pod("early"))
    asked.answers = {late: False, early: True}
    tree.refresh(0)
    asked.answers = {late: True, early: False}
    asked.pods.clear()
    tree.refresh(10 * S - 1)
    assert [asked.pods, workloads(tree)] == [[], {"late": Workload.BATCH, "early": Workload.SERVICE}]
    tree.refresh(10 * S)
    assert [asked.pods, workloads(tree)] == [[late], {"late": Workload.SERVICE, "early": Workload.SERVICE}]
    tree.refresh(100 * S)
    assert asked.pods == [late]


def test_a_container_that_starts_may_yet_listen(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    """One that takes its time would otherwise be held for minutes before it ever listens, as often as it starts."""
    slow, known = str(fake.add_pod("slow")), str(fake.add_pod("known"))
    asked.answers = {slow: False, known: True}
    tree.refresh(0)
    assert workloads(tree) == {"slow": Workload.BATCH, "known": Workload.SERVICE}
    for tracked in tree.pods.values():
        tree.starts(tracked, 5 * S)
    assert workloads(tree) == {"slow": Workload.SERVICE, "known": Workload.SERVICE}
    starting_ns = int(tree.config.hold.starting_s * S)
    tree.refresh(5 * S + starting_ns - 1)
    assert workloads(tree) == {"slow": Workload.SERVICE, "known": Workload.SERVICE}
    tree.refresh(5 * S + starting_ns)
    assert workloads(tree) == {"slow": Workload.BATCH, "known": Workload.SERVICE}


def workloads(tree: PodTree) -> dict[str | None, Workload]:
    return {tracked.pod.name: tracked.pod.workload for tracked in tree.pods.values()}


def test_a_pod_that_had_no_process_yet_is_asked_again_after_1_s(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    path = str(fake.add_pod("web"))
    tree.refresh(0)
    asked.answers[path] = False
    tree.read_details(S - 1)
    assert workloads(tree) == {"web": Workload.SERVICE}
    tree.read_details(S)
    assert workloads(tree) == {"web": Workload.BATCH}


def test_a_new_pod_is_asked_at_once_and_known_ones_in_turns(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    paths = {str(fake.add_pod(f"pod{number}")) for number in range(20)}
    asked.answers = dict.fromkeys(paths, False)
    tree.refresh(0)
    assert set(asked.pods) == paths
    asked.pods.clear()
    tree.read_details(10 * S)
    assert len(asked.pods) == 16
    tree.read_details(11 * S)
    assert set(asked.pods) == paths  # the four that had to wait; nobody twice
    assert len(asked.pods) == 20


def test_a_pod_that_is_held_is_not_asked(fake: FakeTree, tree: PodTree, asked: Asked) -> None:
    asked.answers[str(fake.add_pod("web"))] = False
    (tracked,) = tree.refresh(0)[0]
    record = PauseRecord(Mechanism.FREEZE, Owner.DAEMON, "test", 0, None, CpuMax(None, 100_000), 0, None)
    tracked.pod = replace(tracked.pod, paused=record)
    tree.read_details(100 * S)
    assert len(asked.pods) == 1
    tracked.pod = replace(tracked.pod, paused=None)
    tree.read_details(101 * S)
    assert len(asked.pods) == 2


# --- details -------------------------------------------------------------------------------------------------------


def write_stats(pod: Path, reclaimable: int, *usages: int) -> None:
    (pod / "memory.stat").write_text(f"anon 5\ninactive_file {reclaimable}\nactive_file 0\nslab_reclaimable 0\n")
    (pod / "cpu.stat").write_text("usage_usec 999999999\nuser_usec 1\n")
    for scope, usage in zip(sorted(path for path in pod.iterdir() if path.is_dir()), usages, strict=True):
        (scope / "cpu.stat").write_text(f"usage_usec {usage}\nuser_usec 1\nsystem_usec 2\n")


def details(tree: PodTree) -> dict[str | None, tuple[int, int | None]]:
    return {t.pod.name: (t.pod.reclaimable_bytes, t.pod.cpu_usage_usec) for t in tree.pods.values()}


def test_details_are_what_reclaim_can_take_back_and_what_running_containers_have_used(
    fake: FakeTree, tree: PodTree
) -> None:
    pod = fake.add_pod("web")
    write_stats(pod, 4096, 1000, 20)
    tree.refresh(0)
    assert details(tree) == {"web": (0, None)}
    tree.read_details(S)
    assert details(tree) == {"web": (4096, 1020)}
    (pod / "memory.current").write_text("9999999\n")
    write_stats(pod, 0, 1500, 30)
    tree.read_details(2 * S)
    assert details(tree) == {"web": (0, 1530)}
    tree.refresh(3 * S)
    assert details(tree) == {"web": (0, 1530)}


@pytest.mark.parametrize(
    ("reclaimable", "change", "seen"),
    [
        (0, 0, 0),
        (0, 1 << 14, 0),
        (0, 1 << 15, 7),
        (0, -(1 << 15), 7),
        (1 << 17, 1 << 14, 1 << 17),
        ((1 << 17) + 1, 0, (1 << 17) + 1),
        ((1 << 17) + 1, 1, 7),  # so much page cache could turn into anonymous memory behind a steady figure
    ],
)
def test_memory_stat_is_read_again_where_something_may_have_changed(
    fake: FakeTree, tree: PodTree, reclaimable: int, change: int, seen: int
) -> None:
    pod = fake.add_pod("web")
    current = pod / "memory.current"
    current.write_text(f"{1 << 20}\n")
    write_stats(pod, reclaimable, 0, 0)
    tree.refresh(0)
    tree.read_details(S)
    assert details(tree)["web"][0] == reclaimable
    current.write_text(f"{(1 << 20) + change}\n")
    write_stats(pod, 7, 0, 0)
    tree.read_details(2 * S)
    assert details(tree)["web"][0] == seen
    tree.read_details(12 * S)
    assert details(tree)["web"][0] == 7  # at the latest


def test_a_container_that_ended_no_longer_counts_and_a_new_one_does(fake: FakeTree, tree: PodTree) -> None:
    pod = fake.add_pod("web")
    write_stats(pod, 0, 1000, 20)
    tree.refresh(0)
    tree.read_details(0)
    shutil.rmtree(next(path for path in pod.iterdir() if path.is_dir() and "1000" in (path / "cpu.stat").read_text()))
    tree.read_details(S)
    assert details(tree) == {"web": (0, 1020)}  # what was read last; it is listed again next time
    tree.read_details(2 * S)
    assert details(tree) == {"web": (0, 20)}
    (pod / ("crio-" + "c" * 64 + ".scope")).mkdir()
    write_stats(pod, 0, 20, 7)
    tree.read_details(12 * S)
    assert details(tree) == {"web": (0, 27)}


@pytest.mark.parametrize(
    ("file", "text"),
    [("memory.stat", None), ("memory.stat", "garbage"), ("container", None), ("container", "usage_usec x\n")],
)
def test_a_pod_whose_details_cannot_be_read_keeps_what_was_read_last(
    fake: FakeTree, tree: PodTree, file: str, text: str | None
) -> None:
    good, bad = fake.add_pod("good"), fake.add_pod("bad")
    for pod in (good, bad):
        write_stats(pod, 10, 1, 2)
    tree.refresh(0)
    tree.read_details(0)
    for pod in (good, bad):
        write_stats(pod, 11, 3, 4)
    path = bad / file if file == "memory.stat" else next(bad.glob("*/cpu.stat"))
    path.unlink()
    if text is not None:
        path.write_text(text)
    tree.read_details(11 * S)
    assert details(tree) == {"good": (11, 7), "bad": (10, 3)}
    write_stats(bad, 11, 3, 4)
    tree.read_details(12 * S)
    assert details(tree) == {"good": (11, 7), "bad": (11, 7)}


def test_a_pod_that_vanishes_does_not_stop_the_details_of_others(fake: FakeTree, tree: PodTree) -> None:
    gone, web = fake.add_pod("gone"), fake.add_pod("web")
    write_stats(web, 5, 6, 7)
    tree.refresh(0)
    before = open_descriptors()
    shutil.rmtree(gone)
    tree.read_details(S)
    assert details(tree) == {"gone": (0, None), "web": (5, 13)}
    assert open_descriptors() == before


@pytest.mark.parametrize(("ruled", "becomes"), [(PodClass.AUTO, Workload.SERVICE), (PodClass.BATCH, Workload.BATCH)])
def test_who_was_visited_is_held_like_a_service_unless_a_rule_says_otherwise(
    fake: FakeTree, ruled: PodClass, becomes: Workload
) -> None:
    """An exec probe is a probe, although nothing listens."""
    fake.add_pod("web")
    config = Config(pods=(PodRule("*/*", class_=ruled),))
    tree = PodTree(str(fake.root), str(fake.log_dir), config)
    (tracked,) = tree.refresh(0)[0]
    tracked.listens = False
    tree.update_facts(tracked, 1)
    assert tracked.pod.workload is Workload.BATCH
    tree.was_visited(tracked)
    assert tracked.pod.workload is becomes
    tree.update_facts(tracked, 2)
    assert tracked.pod.workload is becomes
    tree.close()


def test_a_pod_is_left_alone_for_the_longest_of_its_reasons(fake: FakeTree, tree: PodTree) -> None:
    """A sidecar that ends during a pod's grace period does not cut it short."""
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    tracked.spare(10 * S)
    tracked.settle(0, HoldConfig(settle_s=5))
    assert (tracked.pod.spared_until_ns, tracked.pod.settled_at_ns) == (10 * S, 10 * S)
    tracked.settle(9 * S, HoldConfig(settle_s=5))
    assert (tracked.pod.spared_until_ns, tracked.pod.settled_at_ns) == (10 * S, 14 * S)


@pytest.mark.parametrize(("settle_s", "spared_s"), [(5, 0.5), (0.2, 0.2)], ids=["half-a-second", "never-longer"])
def test_a_new_pod_is_spared_for_the_first_part_of_its_settling(
    fake: FakeTree, tree: PodTree, settle_s: float, spared_s: float
) -> None:
    fake.add_pod("web")
    (tracked,) = tree.refresh(0)[0]
    assert tracked.pod.settled_at_ns == 0  # it was there before us
    tracked.settle(S, HoldConfig(settle_s=settle_s))
    assert tracked.pod.spared_until_ns == S + int(spared_s * S)
    assert tracked.pod.settled_at_ns == S + int(settle_s * S)
