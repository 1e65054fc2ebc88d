"""The test bed's pure parts; every test in tests/vm shows that a VM boots and runs commands."""

import contextlib
import marshal
import sys
import tarfile
from pathlib import Path

from lab.vm.host import building
from lab.vm.payload import ensure_bytecode, wheel_inputs, write_payload


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


def test_the_guest_gets_byte_code_that_fits_its_sources(tmp_path: Path) -> None:
    names = ["cgpause/here.py", "scripts/install", "tests/conftest.py", "tests/test_here.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("here = 1\n")

    bytecode = ensure_bytecode(tmp_path / "cache", tmp_path, names, "{}.{}".format(*sys.version_info))
    with (tmp_path / "payload").open("wb") as out:
        write_payload(out, tmp_path, names, bytecode, {})

    compiled = f"src/cgpause/__pycache__/here.{sys.implementation.cache_tag}.pyc"
    with tarfile.open(tmp_path / "payload") as payload:
        assert sorted(payload.getnames()) == sorted([compiled, *(f"src/{name}" for name in names)])
        source = payload.getmember("src/cgpause/here.py")
        file = payload.extractfile(compiled)
        assert file is not None
        data = file.read()
    # The header of importlib: magic number, flags, and the time and size of the source.
    assert [int.from_bytes(data[at : at + 4], "little") for at in (4, 8, 12)] == [0, source.mtime, source.size]
    assert marshal.loads(data[16:]).co_filename == "/opt/cgpause/src/cgpause/here.py"
