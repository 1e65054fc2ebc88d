"""The test bed's pure parts; every test in tests/vm shows that a VM boots and runs commands."""

import contextlib
from pathlib import Path

from lab.vm.host import building
from lab.vm.payload import wheel_inputs


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
