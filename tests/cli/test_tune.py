"""`cgpause tune`: what it writes, that it repeats itself to the byte, and what it says of a mistake."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from commandline import invoke
from recordings import record, write
from simpods import worker

from cgpause.exits import Exit
from cgpause.simulate.node import SimNode
from cgpause.simulate.pods import MIB, SimPod
from cgpause.trace.encode import Hide, hasher

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


def recording(path: Path, hide: Hide | None = None, protected: str | None = None) -> str:
    """A node that was too small for its pods."""
    pods = [SimPod(f"job-{n}", worker(300 * MIB, seed=n), limit_bytes=300 * MIB, start_s=1 + 2 * n) for n in range(5)]
    for pod in pods:
        pod.protected = protected
    write(path, record(SimNode(pods, config=None, kubepods_max_bytes=700 * MIB, cpus=8), 30), hide=hide)
    return str(path)


def test_a_trace_is_tuned_on_alike_with_one_process_and_with_two(tmp_path: Path) -> None:
    trace = recording(tmp_path / "node.trace")
    folders = [tmp_path / "one", tmp_path / "two"]
    for jobs, folder in enumerate(folders, start=1):
        given = ["--policy", "watermark", "--trials", "3", "--seeds", "2", "--jobs", str(jobs)]
        result = invoke("tune", trace, *given, "--output", str(folder))
        assert (result.exit_code, result.stderr) == (0, "")
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert first == second
    values = json.loads(first["tune.json"])
    assert values["workload"] == trace
    assert values["trace"]["pods"] == 5
    assert values["trace"]["seconds"] == pytest.approx(30, abs=1)
    assert values["trace"]["oom_kills"] > 0
    assert any(run["restarts"] for run in values["held_out"]["none"])
    for name in ("tune.md", "tuned.toml"):
        text = " ".join(first[name].decode().replace("#", "").split())
        assert "variations of the recording" in text
        assert "5 pods" in text
        assert "Assumed: a pod that is held does later what it did" in text


def test_it_is_said_where_no_policy_can_pause_anybody(tmp_path: Path) -> None:
    trace = recording(tmp_path / "node.trace", protected="its name is not known")
    said = "5 of 5 pods are protected, so no policy pauses them (its name is not known: 5)"
    result = invoke("tune", trace, "--trials", "1", "--seeds", "2", "--output", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert said in " ".join(result.stdout.split())
    assert said in " ".join((tmp_path / "out/tune.md").read_text().split())
    assert said in invoke("replay", trace).stdout


def test_of_a_trace_with_hashes_no_name_is_needed(tmp_path: Path) -> None:
    trace = Path(recording(tmp_path / "node.trace", hasher(b"salt")))
    assert "job-1" not in trace.read_text()
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    result = invoke("tune", str(packed), "--trials", "1", "--seeds", "2", "--output", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr) == (0, "")


def test_what_is_cut_off_is_tuned_on_up_to_there(tmp_path: Path) -> None:
    trace = Path(recording(tmp_path / "node.trace"))
    trace.write_bytes(gzip.compress(trace.read_bytes())[:-400])
    result = invoke("tune", str(trace), "--trials", "1", "--seeds", "2", "--output", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr) == (0, "")


HEADER = (
    b'{"cgpause_trace":1,"version":"0.1.0","boot":"b","time":1.5,"at":9,"interval":1.0,"quantum":65536,'
    b'"by":"record","hashed":false}\n'
)
HOST = b'{"t":0,"h":[1073741824,null,0],"a":9000,"u":0}\n'
NEITHER = "nor is it a trace; give what cgpause record wrote, or a WORKLOAD.toml"


@pytest.mark.parametrize(
    ("data", "exit_code", "said"),
    [
        pytest.param(b"", Exit.USAGE, NEITHER, id="nothing"),
        pytest.param(b"\xf8\x00garbage", Exit.USAGE, NEITHER, id="garbage"),
        pytest.param(b"some words\n", Exit.USAGE, NEITHER, id="text"),
        pytest.param(b'{"a": 1}\n', Exit.REFUSED, "the first line is no header", id="another JSON"),
        pytest.param(gzip.compress(b"\xf8garbage"), Exit.REFUSED, "no JSON", id="packed garbage"),
        pytest.param(HEADER, Exit.REFUSED, "there is no sample in it", id="an empty trace"),
        pytest.param(HEADER + HOST, Exit.REFUSED, "record for longer", id="one sample"),
        pytest.param(HEADER + HOST + b'{"t":1000000}\n', Exit.REFUSED, "there is no pod in it", id="no pods"),
        pytest.param(b"jobs = 3\n", Exit.USAGE, "jobs: found 3", id="a workload with a mistake"),
    ],
)
def test_what_is_no_trace_and_no_workload_is_said_to_be(
    data: bytes, exit_code: Exit, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "given"
    path.write_bytes(data)
    result = invoke("tune", str(path), "--output", str(tmp_path / "out"))
    assert result.exit_code == exit_code
    assert said in result.stderr
    assert (NEITHER in result.stderr) == (said == NEITHER)
    assert not (tmp_path / "out").exists()


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
        ([], "give a trace (cgpause record writes one), a WORKLOAD.toml or --preset"),
        (["--preset", "paper-2g-150", "--trials", "0"], "--trials"),
        (["--preset", "paper-2g-150", "--seeds", "1"], "--seeds"),
        (["--preset", "paper-2g-150", "--policy", "none"], "--policy"),
        (["/nonexistent/workload.toml"], "cannot be read"),
        (["x.toml", "--preset", "paper-2g-150"], "and not two of them"),
        (["--preset", "paper-2g-*"], "tune takes one workload, not 6"),
    ],
)
def test_a_mistake_is_named(args: list[str], said: str, tmp_path: Path) -> None:
    result = invoke("tune", "--output", str(tmp_path / "out"), *args)
    assert result.exit_code == Exit.USAGE
    assert said in result.stderr
    assert not (tmp_path / "out").exists()
