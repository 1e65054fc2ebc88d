"""Containers of a pod that can be killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fixtures import Patch
from helpers.processes import containers, killed
from helpers.trees import CAPTURED_POD, CAPTURES, FakeTree, lay_out_capture

from cgpause.core.errors import CgpauseError, KernelWriteError
from cgpause.core.pod_names import Names
from cgpause.kernel.cgroupfs import MOST_BELOW, Cgroup
from cgpause.pods.containers import kill_containers, limit_bytes
from cgpause.pods.names import read_names

NO_NAMES = Names({}, {})
CAPTURED_CONTAINERS = {
    "systemd": {
        "9b3087ad7a94782edb76cf58e45988009682b96820ca076a5784fac07e335997",
        "a92fe8313d086bbc44d86281b7f4178ce494afe2b7f876f5c3c80b5cbe47bc83",
    },
    "cgroupfs": {
        "7d8d41e5f74698e85e9a8eb519415b4cbed230f3f70f8649dd46c662d0a3624b",
        "bd074b92a067048409927b6f644109df17641fa940262f1b6721877280b192ce",
    },
}


@pytest.fixture
def folder(fake: FakeTree) -> Path:
    return fake.add_pod("web")


@pytest.fixture
def pod(fake: FakeTree, folder: Path) -> Iterator[Cgroup]:
    with Cgroup(str(fake.root), str(folder.relative_to(fake.root))) as opened:
        yield opened


@pytest.mark.parametrize("by", ["log links", "memory.oom.group"])
@pytest.mark.parametrize("driver", CAPTURES)
def test_containers_of_a_captured_pod_are_killed_and_its_sandbox_is_not(tmp_path: Path, driver: str, by: str) -> None:
    root, log_dir = lay_out_capture(driver, tmp_path)
    folder = root / CAPTURED_POD[driver]
    for scope in folder.iterdir():
        if scope.is_dir():
            (scope / "cgroup.kill").touch()
            if by == "log links":  # kubelet before 1.28 leaves memory.oom.group at 0 everywhere
                (scope / "memory.oom.group").write_text("0\n")
    names = read_names(str(log_dir)) if by == "log links" else NO_NAMES
    with Cgroup(str(root), CAPTURED_POD[driver]) as pod:
        assert set(kill_containers(pod, names)) == CAPTURED_CONTAINERS[driver]
    assert {name.removeprefix("cri-containerd-").removesuffix(".scope") for name in killed(folder)} == (
        CAPTURED_CONTAINERS[driver]
    )


def test_without_a_way_to_tell_the_sandbox_nobody_is_killed(folder: Path, pod: Cgroup) -> None:
    for scope in containers(folder):
        (scope / "memory.oom.group").write_text("0\n")
    with pytest.raises(CgpauseError, match="cannot tell its containers from its sandbox"):
        kill_containers(pod, NO_NAMES)
    assert killed(folder) == set()


def test_monitors_and_strangers_are_not_killed(folder: Path, pod: Cgroup) -> None:
    _, container = containers(folder)
    for name in (f"crio-conmon-{'a' * 64}.scope", "init.scope", "new\nline"):
        shutil.copytree(container, folder / name)
    kill_containers(pod, NO_NAMES)
    assert killed(folder) == {container.name}


def test_a_container_that_vanishes_meanwhile_saves_no_other(folder: Path, pod: Cgroup, monkeypatch: Patch) -> None:
    _, first = containers(folder)
    second, third = (folder / f"cri-containerd-{digit * 64}.scope" for digit in "12")
    for copy in (second, third):
        shutil.copytree(first, copy)
    listed = pod.children()
    shutil.rmtree(second)
    monkeypatch.setattr(Cgroup, "children", lambda _: listed)
    kill_containers(pod, NO_NAMES)
    assert killed(folder) == {first.name, third.name}


def test_a_kernel_without_cgroup_kill_is_an_error_that_says_so(folder: Path, pod: Cgroup) -> None:
    """Before 5.14. A caller that took the pod for gone would hide that no process was killed."""
    (containers(folder)[1] / "cgroup.kill").unlink()
    with pytest.raises(KernelWriteError, match=r"cgroup\.kill"):
        kill_containers(pod, NO_NAMES)


@pytest.mark.parametrize(("number", "known"), [(MOST_BELOW - 1, True), (MOST_BELOW, False)])
def test_of_too_many_containers_no_sum_is_known(pod: Cgroup, folder: Path, number: int, known: bool) -> None:
    for child in containers(folder):
        shutil.rmtree(child)
    for name in range(number):
        child = folder / f"cri-containerd-{name:064x}.scope"
        child.mkdir()
        (child / "memory.max").write_text("1000\n")
        (child / "memory.current").write_text("0\n")
    assert (limit_bytes(pod) is not None) is known


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param("01", 5000, id="a-large-sandbox"),
        pytest.param("00", None, id="kubelet-before-1.28"),
        pytest.param("11", None, id="no-sandbox"),
    ],
)
def test_a_large_sandbox_is_told_by_the_groups_of_the_containers(
    pod: Cgroup, folder: Path, monkeypatch: Patch, groups: str, expected: int | None
) -> None:
    (folder / "memory.current").write_text(f"{4 << 20}\n")
    for child, limit, used, group in zip(containers(folder), ("max", 5000), (4 << 20, 0), groups, strict=True):
        (child / "memory.max").write_text(f"{limit}\n")
        (child / "memory.current").write_text(f"{used}\n")
        (child / "memory.oom.group").write_text(f"{group}\n")
    listed = [(child.name, number) for number, child in enumerate(containers(folder))]
    monkeypatch.setattr(Cgroup, "children", lambda *_, **__: listed)
    assert limit_bytes(pod) == expected


@pytest.mark.parametrize(
    ("used", "children", "total"),
    [
        pytest.param(0, [], None, id="nothing"),
        pytest.param(400, [("max", 400)], None, id="sandbox"),
        pytest.param(4400, [("max", 400), ("5000", 4000)], 5000, id="container"),
        pytest.param(4300, [("max", 400), ("5000", 4000)], 5000, id="read-while-it-grew"),
        pytest.param(5500, [("max", 400), ("5000", 4000)], 6100, id="an-ended-one-left-memory"),
        pytest.param(4400, [("max", 400), ("5000", 4000), ("3000", 0)], 8000, id="two-containers"),
        pytest.param(4400, [("max", 400), ("5000", 4000), ("max", 0)], None, id="one-without-a-limit"),
        pytest.param(4000, [("5000", 4000), ("3000", 0)], 8000, id="without-a-sandbox"),
        pytest.param(3 << 20, [("max", 3 << 20), ("3000", 0)], None, id="without-a-sandbox-and-a-limit"),
        pytest.param(4400, [("max", 400), ("5000", 4000), (None, 0)], None, id="unreadable"),
    ],
)
def test_the_limits_of_containers_are_summed_up(
    pod: Cgroup, folder: Path, monkeypatch: Patch, used: int, children: list[tuple[str | None, int]], total: int | None
) -> None:
    (folder / "memory.current").write_text(f"{used}\n")
    for number, (limit, own) in enumerate(children):
        (folder / f"c{number}").mkdir()
        (folder / f"c{number}/memory.current").write_text(f"{own}\n")
        if limit is not None:
            (folder / f"c{number}/memory.max").write_text(f"{limit}\n")
    listed = [(f"c{number}", number) for number in range(len(children))]
    listed.append((f"crio-conmon-{'a' * 64}.scope", 99))
    monkeypatch.setattr(Cgroup, "children", lambda *_, **__: listed[::-1])
    assert limit_bytes(pod) == total
