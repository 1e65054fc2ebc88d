"""`cgpause tune`: what it writes, that it repeats itself to the byte, and what it says of a mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commandline import invoke

from cgpause.exits import Exit

WORKLOAD = """\
[nodes]
memory_mib = 384
cpus = 1
oversubscription_pct = 150
backoff_scale = 0.2
[[jobs]]
name = "job"
count = 9
limit_mib = 64
unit_cpu_s = 0.2
rounds = 1
"""
FILES = ["tune.json", "tune.md", "tune.png", "tuned.toml"]


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "workload.toml"
    path.write_text(WORKLOAD)
    return str(path)


def test_the_same_command_writes_the_same_bytes_with_one_process_and_with_two(workload: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for jobs, folder in enumerate(folders, start=1):
        given = ["--policy", "watermark", "--trials", "4", "--seeds", "2", "--jobs", str(jobs)]
        result = invoke("tune", workload, *given, "--output", str(folder))
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"wrote {folder}: tuned.toml, tune.json, tune.md, tune.png\n" in result.stdout
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert sorted(first) == FILES
    assert first == second
    assert first["tune.png"].startswith(b"\x89PNG")
    values = json.loads(first["tune.json"])
    assert [len(runs) for runs in values["held_out"].values()] == [4] * 4
    checked = invoke("--config", str(folders[0] / "tuned.toml"), "config", "--check")
    assert (checked.exit_code, checked.stdout) == (0, f"{folders[0] / 'tuned.toml'}: valid\n")


def test_the_reserve_is_compared_with_itself_untuned(workload: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    result = invoke("tune", workload, "--trials", "2", "--seeds", "2", "--jobs", "1", "--output", str(folder))
    assert result.exit_code == 0
    values = json.loads((folder / "tune.json").read_text())
    assert values["policy"] == "reserve"
    assert list(values["held_out"]) == ["none", "untuned", "tuned"]
    assert list(values["values"]) == ["margin_pct", "horizon_s", "ahead_s", "resume_pct"]


def test_nothing_is_left_of_a_run_that_fails(workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cgpause.errors import HostError  # noqa: PLC0415
    from cgpause.tune import study  # noqa: PLC0415

    def fail(*_: object) -> None:
        raise HostError("one of 2 processes was killed")

    monkeypatch.setattr(study, "tune", fail)
    folder = tmp_path / "out"
    result = invoke("tune", workload, "--jobs", "1", "--output", str(folder))
    assert (result.exit_code, result.stderr) == (Exit.CHECK_FAILED, "cgpause: one of 2 processes was killed\n")
    assert not folder.exists()


@pytest.mark.parametrize("package", ["optuna", "matplotlib"])
def test_without_the_extra_it_says_what_to_install(
    package: str, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package or name.startswith("cgpause.tune")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("tune", workload, "--output", str(tmp_path / "out"))
    assert result.exit_code == Exit.CHECK_FAILED
    assert f"needs the Python package {package}" in result.stderr
    assert "pip install 'cgpause[tune]'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--preset", "paper-2g-15"], "did you mean paper-2g-150?"),
        ([], "give a WORKLOAD.toml"),
        (["--preset", "paper-2g-150", "--trials", "0"], "--trials"),
        (["--preset", "paper-2g-150", "--seeds", "1"], "--seeds"),
        (["--preset", "paper-2g-150", "--policy", "none"], "--policy"),
        (["/nonexistent/workload.toml"], "cannot be read"),
        (["--preset", "paper-2g-*"], "tune takes one workload, not 6"),
    ],
)
def test_a_mistake_is_named(args: list[str], said: str, tmp_path: Path) -> None:
    result = invoke("tune", "--output", str(tmp_path / "out"), *args)
    assert result.exit_code == Exit.USAGE
    assert said in result.stderr
    assert not (tmp_path / "out").exists()
