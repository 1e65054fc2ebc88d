"""systemd/restore.sh: the Python that resumes pods if the installation's own Python no longer works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.trees import FakeTree, cpu_max, damage, pause_pod, records_left

import cgpause

LAUNCHER = Path(__file__).parents[2] / "systemd/restore.sh"


class Installation:
    """A folder that looks like a virtual environment with cgpause in it."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin/python"
        self.python.parent.mkdir(parents=True)
        self.site = folder / "lib/python3.0/site-packages"
        self.site.mkdir(parents=True)
        (self.site / "cgpause").symlink_to(Path(cgpause.__file__).parent)
        self.launcher = folder / "share/cgpause/restore.sh"
        self.launcher.parent.mkdir(parents=True)
        shutil.copy(LAUNCHER, self.launcher)

    def runs(self, script: str) -> None:
        """Make this shell script the installation's Python."""
        self.python.write_text(f"#!/bin/sh\n{script}\n")
        self.python.chmod(0o755)

    def restore(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", self.launcher, *options], capture_output=True, text=True, check=False)


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "prefix")


def test_its_own_python_does_it_where_it_works(installation: Installation) -> None:
    installation.runs('echo "$@"')

    done = installation.restore("--daemon-only", "--log-dir", "/a b")

    assert (done.returncode, done.stdout) == (0, "-I -m cgpause.restore --daemon-only --log-dir /a b\n")
    assert done.stderr == ""


@pytest.mark.parametrize("status", [2, 6])
def test_what_another_python_would_say_too_is_not_tried_again(installation: Installation, status: int) -> None:
    installation.runs(f"echo once; exit {status}")

    done = installation.restore()

    assert (done.returncode, done.stdout, done.stderr) == (status, "once\n", "")


def test_a_python_that_runs_is_not_said_to_be_broken(installation: Installation) -> None:
    installation.runs(f'exec {sys.executable} "$@"')

    done = installation.restore("--cgroup-root", "/nowhere")

    assert done.returncode == 1
    assert done.stderr.count("no such directory") == 1
    assert "does not run" not in done.stderr


@pytest.mark.parametrize("how", ["gone", "without the modules"])
def test_the_nodes_python_does_it_where_an_upgrade_took_its_own_away(
    installation: Installation, tree: FakeTree, how: str
) -> None:
    if how == "gone":
        installation.python.symlink_to("/usr/bin/python3.1")
    else:
        installation.runs(f'exec {sys.executable} -I -S "$@"')
    pod, damaged = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000")), tree.add_pod("damaged")

    done = installation.restore("--daemon-only", "--cgroup-root", str(tree.root))

    assert (done.returncode, cpu_max(pod), records_left(tree.root)) == (0, "50000 100000", []), done.stderr
    assert "/bin/python3" in done.stderr
    assert "resumes; install cgpause again" in done.stderr
    damage(damaged)
    assert installation.restore("--daemon-only", "--cgroup-root", str(tree.root)).returncode == 6


def test_without_modules_it_fails_and_says_why(installation: Installation) -> None:
    installation.runs("echo broken >&2; exit 1")
    (installation.site / "cgpause").unlink()

    done = installation.restore()

    assert (done.returncode, done.stderr) == (1, "broken\n")


def test_it_needs_the_standard_library_only() -> None:
    """-S: without site-packages."""
    code = f"import sys; sys.path.append({str(Path(cgpause.__file__).parents[1])!r}); import cgpause.restore"

    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
