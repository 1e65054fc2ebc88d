"""`cgpause lab record`: traces of a tree that changes, their replay, and the end by a signal."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.commandline import MIB, argv, run, snapshot
from helpers.refusals import refusing
from helpers.trees import FakeTree, damage, rewrite, wait_until

from cgpause.telemetry.trace.read import load_trace
from cgpause.telemetry.trace.values import TraceError
from cgpause.telemetry.trace.write import TraceFiles


@contextmanager
def recording(tree: FakeTree, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a recording that goes on until a signal ends it; wait for its first sample."""
    command = argv(tree, "lab", "record", str(path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: bool(samples(path)), "the first sample")
            yield process
        finally:
            process.kill()


def samples(path: Path) -> list[dict[str | None, int]]:
    """Return the MiB of each pod in each sample that is written by now."""
    try:
        moments = list(load_trace(str(path)).moments())
    except TraceError:  # nothing is written yet
        return []
    return [{pod.name: amount // MIB for amount, pod in one.sample.pods} for one in moments]


@pytest.mark.parametrize(("name", "number"), [("x.jsonl", signal.SIGINT), ("x.jsonl.gz", signal.SIGTERM)])
def test_a_tree_that_changes_is_recorded_until_a_signal_comes(
    name: str, number: signal.Signals, tree: FakeTree
) -> None:
    web = tree.add_pod("web", 100 * MIB, memory_max=str(900 * MIB))
    path = tree.folder / name

    with recording(tree, path) as process:
        rewrite(web / "memory.current", f"{200 * MIB:020}")
        rewrite(web / "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n")
        tree.add_pod("late", 50 * MIB)
        wait_until(lambda: samples(path)[-1] == {"web": 200, "late": 50}, "the change to be recorded")
        process.send_signal(number)
        said, wrong = process.communicate(timeout=60)

    assert (process.returncode, wrong) == (0, "")
    said = said.splitlines()[0]
    assert re.fullmatch(rf"wrote {re.escape(str(path))}: \d+ samples in \S+, 2 pods at the end, \d+Ki", said), said
    assert samples(path)[0] == {"web": 100}
    trace = load_trace(str(path))
    (late,) = (pod for _, pod in list(trace.moments())[-1].sample.pods if pod.name == "late")
    assert late.settled_at_ns > 0, "it is known to be new"
    assert trace.headers[0].interval_s == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pod_with_a_damaged_record_is_protected_and_stays_as_it_is(tree: FakeTree) -> None:
    damage(tree.add_pod("held"))
    before = snapshot(tree.root)
    path = tree.folder / "x"
    assert run(tree, "lab", "record", "--for", "1s", str(path)).exit_code == 0

    assert snapshot(tree.root) == before
    for moment in load_trace(str(path)).moments():
        ((_, pod),) = moment.sample.pods
        assert str(pod.protected).startswith("its record cannot be read: ")


def test_names_can_be_left_out(tree: FakeTree) -> None:
    tree.add_pod("secret", namespace="acme")
    path = tree.folder / "x.jsonl"
    assert run(tree, "lab", "record", "--for", "1s", "--hash-names", str(path)).exit_code == 0

    text = path.read_text()
    assert "secret" not in text
    assert "acme" not in text
    assert tree.uids["secret"] not in text
    assert load_trace(str(path)).headers[0].hashed


def test_without_kubepods_the_node_is_recorded(tmp_path: Path) -> None:
    tree = FakeTree(tmp_path)
    tree.kubepods.rename(tree.root / "other.slice")
    result = run(tree, "lab", "record", "--for", "1s", str(tmp_path / "x"))

    assert result.exit_code == 0
    assert "there is no pod below" in result.stdout
    assert load_trace(str(tmp_path / "x")).pods == 0


@pytest.mark.parametrize("taken", ["x", "x.3"])
def test_nothing_is_overwritten(taken: str, tree: FakeTree) -> None:
    (tree.folder / taken).write_text("mine")
    result = run(tree, "lab", "record", "--for", "1s", str(tree.folder / "x"))

    assert result.exit_code == 5
    assert result.stderr == (f"cgpause: cannot write {tree.folder / taken}: EEXIST (File exists): name another file\n")
    assert (tree.folder / taken).read_text() == "mine"
    assert not (tree.folder / "x").exists() or taken == "x"


def test_a_full_disk_ends_it_and_is_said(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TraceFiles, "_write", refusing(errno.ENOSPC))
    tree.add_pod("web")
    result = run(tree, "lab", "record", "--for", "1s", str(tree.folder / "x"))

    assert result.exit_code == 5
    assert "ENOSPC (No space left on device): samples written before, if any, can be read" in result.stderr
    assert not (tree.folder / "x").exists(), "nothing was written to it"
