"""`scripts/demo` up to the demo itself: what it says, installs and starts, with stubs for everything that it starts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.processes import executable

REPO = Path(__file__).parents[2]


class Checkout:
    """A checkout with the demo's script, and a PATH in which qemu is the only package that is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.calls.touch()
        for name in ("demo", "lib.sh"):
            (folder / "scripts").mkdir(exist_ok=True)
            shutil.copy(REPO / "scripts" / name, folder / "scripts" / name)
        (folder / "pyproject.toml").touch()
        self.stub("scripts/vm")
        self.stub(".venv/bin/python")
        self.stub("bin/apt-get", f'case $* in *install*) touch "{folder}/installed" ;; esac')
        query = f'case $* in *qemu*) test -e "{folder}/installed" || exit 1 ;; esac; printf installed'
        self.stub("bin/dpkg-query", query)
        self.stub("bin/awk")  # no mount of cgroup v2
        stamp = subprocess.run(["sha256sum"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        (folder / ".venv/cgpause-stamp").write_text(stamp.stdout)

    def stub(self, name: str, more: str = "") -> None:
        executable(self.folder / name, f'echo "$(basename "$0") $*" >>"{self.calls}"\n{more}')

    def demo(self, *arguments: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            ["bash", self.folder / "scripts/demo", *arguments],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "TMPDIR": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, [line.removeprefix("demo: ") for line in (done.stdout + done.stderr).splitlines()]

    def called(self, program: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith(f"{program} ")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_it_says_where_it_runs_and_what_it_installs_before_it_does(checkout: Checkout) -> None:
    _, said = checkout.demo()

    assert said[:2] == [
        "runs in a VM (QEMU); this host's cgroups stay as they are",
        "Debian packages to install: qemu-system-x86",
    ]
    assert "qemu-system-x86" in said[2], "then it installs them, or without root says how"


def test_without_native_it_runs_in_a_vm_only(checkout: Checkout) -> None:
    (checkout.folder / "installed").touch()
    status, said = checkout.demo("--seed", "3")

    assert status == 0
    assert said[1] == "Debian packages to install: none"
    assert checkout.called("apt-get") == []
    assert [call.split()[1] for call in checkout.called("vm")] == ["build", "run"]
    assert checkout.called("vm")[1].endswith("demo --seed 3")
    assert checkout.called("python") == ["python -m lab.vm.build"]


def test_a_host_that_cannot_run_it_natively_says_why_and_stays_as_it_is(checkout: Checkout) -> None:
    status, said = checkout.demo("--native")

    assert status == 1
    [why] = said
    assert why.startswith(("--native: this host has no cgroup v2", "--native: not root"))
    assert why.endswith("leave --native out to run in a VM")
    for program in ("apt-get", "vm", "python"):
        assert checkout.called(program) == []


def test_without_apt_only_packages_with_a_command_can_be_missing() -> None:
    needed = "tools_or_exit sh libc6-dev python3-venv nonesuch"
    script = f"set -euo pipefail; . {REPO}/scripts/lib.sh; {needed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.rpartition(": ")[2]) == (1, "nonesuch\n")
