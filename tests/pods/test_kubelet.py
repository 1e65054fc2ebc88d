"""The kubelet of a node: its process and its flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.fixtures import Patch
from helpers.nodes import S

from cgpause.pods.kubelet import KUBELET_CONFIG, KubeletFlags, KubeletProcess, parse_flags

UID = "00000001-0000-4000-8000-000000000001"
CONTAINER = f"pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope"
UNIT = "/system.slice/kubelet.service"


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        pytest.param([], KubeletFlags(None), id="none"),
        pytest.param(["--config=/a"], KubeletFlags("/a"), id="equals-sign"),
        pytest.param(["--config", "/a"], KubeletFlags("/a"), id="two-words"),
        pytest.param(["--config=/a", "--config=/b"], KubeletFlags("/b"), id="the-last-one-counts"),
        pytest.param(["--config_dir=/d"], KubeletFlags(None, "/d"), id="underscore"),
        pytest.param(["--v=2", "--config-dir=/d", "--config=/a"], KubeletFlags("/a", "/d"), id="folder"),
        pytest.param(
            ["--eviction-hard=memory.available<1Gi,nodefs.available<5%", "--eviction-soft", "memory.available<2Gi"],
            KubeletFlags(None, None, "memory.available<1Gi,nodefs.available<5%", "memory.available<2Gi"),
            id="thresholds",
        ),
        pytest.param(["--eviction-hard="], KubeletFlags(None, None, ""), id="an-empty-threshold"),
        pytest.param(
            ["--eviction-hard=memory.available<2Gi", "--eviction-hard", "nodefs.available<10%"],
            KubeletFlags(None, None, "memory.available<2Gi,nodefs.available<10%"),
            id="thresholds-add-up",
        ),
        pytest.param(["--config"], KubeletFlags(None), id="cut-off"),
    ],
)
def test_flags_on_a_command_line(words: list[str], flags: KubeletFlags) -> None:
    assert parse_flags("\0".join(["/usr/bin/kubelet", *words, ""]).encode()) == flags


def put(
    proc: Path, pid: int, name: str, started: int, *words: str, cgroup: str = UNIT, uid: int = 0, nested: int = 0
) -> None:
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self/status").write_text("Name:\tcgpause\nNSpid:\t7\n")
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    ids = "\t".join(("NSpid:", str(pid), *nested * ("1",)))
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\nGid:\t0\t0\t0\t0\n{ids}\n")
    (folder / "stat").write_text(f"{pid} ({name}) S " + "0 " * 18 + f"{started} 0\n")
    (folder / "cmdline").write_text("\0".join([name, *words, ""]))


def test_a_kubelet_is_found_and_followed(tmp_path: Path) -> None:
    put(tmp_path, 9, "kubelet-exporter", 5)
    kubelet = KubeletProcess(str(tmp_path))
    assert kubelet.new_flags(0) is None

    put(tmp_path, 10, "kubelet", 7, "--config=/a")
    assert [kubelet.new_flags(at_s * S) for at_s in (9, 10, 11)] == [None, KubeletFlags("/a"), None]

    put(tmp_path, 10, "another", 9)
    assert kubelet.new_flags(12 * S) is None, "until there is another one, nothing is known to have changed"
    put(tmp_path, 11, "kubelet", 10, "--eviction-hard=memory.available<1Gi")
    assert kubelet.new_flags(22 * S) == KubeletFlags(None, eviction_hard="memory.available<1Gi")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"cgroup": f"/kubepods.slice/kubepods-{CONTAINER}"}, id="systemd"),
        pytest.param({"cgroup": f"/kubepods/burstable/pod{UID}/{'a' * 64}"}, id="cgroupfs"),
        pytest.param({"cgroup": f"/../../kubepods-besteffort-{CONTAINER}/init"}, id="from-a-namespace"),
        pytest.param({"cgroup": "/user.slice", "uid": 65534}, id="another-user-with-a-setuid-program"),
        pytest.param({"nested": 1}, id="of-a-node-inside-this-one"),  # kind and LXC run whole nodes in containers
    ],
)
def test_no_other_process_can_pose_as_kubelet(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Its flags could keep all memory free, so that its neighbours are paused."""
    put(tmp_path, 5, "kubelet", 5, "--eviction-hard=memory.available<99%", **facts)
    kubelet = KubeletProcess(str(tmp_path))
    assert kubelet.new_flags(0) is None
    put(tmp_path, 10, "kubelet", 7, "--config=/a", cgroup=f"/../../../..{UNIT}")
    assert kubelet.new_flags(10 * S) == KubeletFlags("/a")


@pytest.mark.parametrize("flag", ["--config=/a", "--config-dir=/a"])
def test_a_kubelet_with_a_configuration_comes_before_one_that_tells_its_version(tmp_path: Path, flag: str) -> None:
    put(tmp_path, 5, "kubelet", 5, "--version")
    put(tmp_path, 10, "kubelet", 7, flag)
    put(tmp_path, 15, "kubelet", 8, "--kubeconfig=/b")
    assert KubeletProcess(str(tmp_path)).new_flags(0) == parse_flags(flag.encode())


def test_a_kubelet_that_is_a_zombie_has_no_flags(tmp_path: Path) -> None:
    put(tmp_path, 5, "kubelet", 5)
    (tmp_path / "5/cmdline").write_text("")
    assert KubeletProcess(str(tmp_path)).new_flags(0) == KubeletFlags(KUBELET_CONFIG)


@pytest.mark.parametrize("missing", [".", "10/comm", "10/stat"])
def test_a_look_that_fails_is_taken_again(tmp_path: Path, missing: str) -> None:
    """No descriptor is free, or kubelet ends during the look, so that its successor could not be told from it."""
    proc, kubelet = tmp_path / "proc", KubeletProcess(str(tmp_path / "proc"))
    put(proc, 10, "kubelet", 7)
    aside = (proc / missing).rename(tmp_path / "aside")
    assert kubelet.new_flags(0) is None
    aside.rename(proc / missing)
    assert kubelet.new_flags(10 * S) is not None


def test_without_a_kubelet_the_looks_become_rare(tmp_path: Path, monkeypatch: Patch) -> None:
    """Each one reads the name of every process of the node."""
    kubelet, looks = KubeletProcess(str(tmp_path)), []
    for at_s in range(0, 3000, 10):
        monkeypatch.setattr(kubelet, "_find", lambda: looks.append(at_s))  # noqa: B023
        assert kubelet.new_flags(at_s * S) is None
    assert looks == [0, 10, 50, 210, 810, 1410, 2010, 2610]


def test_a_real_process_of_that_name_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.pods.kubelet.pod_uid", lambda _: None)  # the tests may run in a pod
    os.symlink(sys.executable, tmp_path / "kubelet")
    program = "import time; print(flush=True); time.sleep(600)"
    argv = [str(tmp_path / "kubelet"), "-S", "-c", program, "--config=/x"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert KubeletProcess().new_flags(0) == KubeletFlags("/x")
        finally:
            process.kill()
