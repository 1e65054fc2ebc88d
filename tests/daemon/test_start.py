"""The daemon's start: its settings and its first messages, and the settings that a reload takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.daemons import GIB, PAUSED, Running, Start
from helpers.trees import FakeTree, cpu_max, make_uid, wait_until


@pytest.mark.parametrize(("named", "said"), [("web", "own_pod=default/web"), (None, "own pod not found")])
def test_it_says_which_pod_is_its_own(tree: FakeTree, start: Start, named: str | None, said: str) -> None:
    tree.add_pod("web")
    uid = tree.uids[named] if named else make_uid(99)

    daemon = start(before=f"import os; os.environ['CGPAUSE_POD_UID'] = '{uid}'")

    assert said in daemon.log


def test_reload_takes_a_good_file_and_keeps_the_old_one_for_a_bad_one(tree: FakeTree, start: Start) -> None:
    pod = tree.add_pod("web")
    tree.set_used(int(0.7 * GIB))
    daemon = start()

    daemon.reload("[watermark]\nupper_pct = 60\nlower_pct = 70\nbatch = 0\n")
    daemon.wait_for_log("configuration not reloaded, the old one stays")
    assert f"{daemon.config}: watermark.batch" in daemon.log
    assert cpu_max(pod) == "max 100000"

    daemon.reload('policy = "watermark"\n[watermark]\nupper_pct = 60\nlower_pct = 50\n')
    daemon.wait_for_log("configuration reloaded")
    wait_until(lambda: cpu_max(pod) == PAUSED, "the pause the new file asks for")


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        pytest.param("", 0, "started", id="an-empty-file"),
        pytest.param("[watermark]\nupper_pct = 'x'\n", 2, "watermark.upper_pct", id="wrong-type"),
        pytest.param("[[[", 2, "config.toml:1", id="no-toml"),
    ],
)
def test_the_configuration_decides_whether_it_starts(tree: FakeTree, config: str, code: int, message: str) -> None:
    daemon = Running(tree, config)
    daemon.wait_for_log(message)

    assert (daemon.stop() if code == 0 else daemon.process.wait(60)) == code


def test_a_cgroup_root_that_is_missing_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cgpause.daemon", "--cgroup-root", str(tmp_path / "none")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert str(tmp_path / "none") in done.stderr
    assert "Traceback" not in done.stderr
