"""The test bed's pure parts; every test in tests/vm shows that a VM boots and runs commands."""

import contextlib
from pathlib import Path

import pytest
from lab.vm import machine as vm
from lab.vm.host import building
from lab.vm.payload import wheel_inputs
from lab.vm.qemu import Machine


def test_a_build_takes_its_name_only_when_it_is_done(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with contextlib.suppress(ZeroDivisionError), building(target) as work:
        assert work is not None
        (work / "half").touch()
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]

    with building(target) as work:
        assert work is not None
        (work / "whole").touch()
    with building(target) as work:
        assert work is None
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_only_files_that_can_change_the_wheel_ask_for_a_new_one() -> None:
    wanted = ["README.md", "cgpause/cli/main.py", "docs/cli.md", "docs/measurements/timeline.png", "docs/man/cgpause.1"]
    wanted += ["pyproject.toml", "scripts/completions/_cgpause", "systemd/config.toml"]
    others = ["docs/cost.json", "docs/old/cli.md", "scripts/install", "tests/test_cli.py"]
    assert wheel_inputs([*wanted, *others]) == wanted


@pytest.mark.parametrize(
    ("failures", "status", "boots"),
    [
        pytest.param(0, 7, 1, id="never-lost"),
        pytest.param(1, 7, 2, id="lost-once"),
        pytest.param(2, 125, 2, id="lost-twice"),
    ],
)
def test_a_lost_vm_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, failures: int, status: int, boots: int) -> None:
    booted = 0

    class FakeVm:
        def __init__(self, machine: Machine, *, extra: Path | None) -> None:
            assert extra is None

        def __enter__(self) -> "FakeVm":
            nonlocal booted
            booted += 1
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, command: list[str], *, timeout: float, terminal: bool) -> int:
            assert (command, timeout > 1, terminal) == (["true"], True, False)
            if booted <= failures:
                raise vm.VmLostError("gone")
            return 7

    monkeypatch.setattr(vm, "Vm", FakeVm)

    assert vm.main(["run", "--", "true"]) == status
    assert booted == boots
