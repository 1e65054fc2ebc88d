"""`cgpause bug-report`: its parts, its redaction, and its limits and errors."""

from __future__ import annotations

import errno
import json
import os
import stat
import tarfile
import threading
from pathlib import Path

import pytest
from helpers.commandline import Patch, as_nobody, invoke, place, run, snapshot, with_config
from helpers.refusals import failing, refusing
from helpers.trees import FakeTree, pause_pod

from cgpause import __version__
from cgpause.cli import bugreport
from cgpause.cli.bugreport import FOLDER, report
from cgpause.cli.evidence import Document, DocumentSource, collect
from cgpause.core.model import Owner
from cgpause.core.paths import HISTORY_FILE
from cgpause.core.redact import HiddenNames
from cgpause.telemetry import history
from cgpause.telemetry.events import Event

PARTS = {
    *("README.txt", "version.txt", "kernel.txt", "cgroups.txt", "check.json", "config.toml", "status.json"),
    *("explain.json", "history.jsonl", "unit.txt", "journal.txt", "metrics-unit.txt", "metrics-journal.txt"),
    *("pressure.txt", "meminfo.txt"),
}
SECRETS = ("pw-of-proxy", "acme", "shop-7d4f", "gone-1", "payments", "alice", "teapot")
UID = f"{'0' * 8}-0000-4000-8000-{'0' * 12}"
JOURNAL = f"""\
2026-11-22T10:00:00.000000+00:00 cgpause[7]: paused pod=acme/shop-7d4f uid={UID} reason="cgpause pause by alice"
2026-11-22T10:00:01.000000+00:00 cgpause[7]: pod gone pod=payments/gone-1
2026-11-22T10:00:02.000000+00:00 cgpause[7]: started on teapot
"""


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        found = {}
        for entry in tar:
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name.removeprefix(f"{FOLDER}/")] = file.read().decode()
    return found


def write(tree: FakeTree, *options: str) -> dict[str, str]:
    file = tree.folder / "report.tar.gz"
    result = run(tree, *options, "bug-report", str(file))
    assert result.exit_code == 0, result.stderr
    return read(file)


def programs(tree: FakeTree, monkeypatch: Patch, **scripts: str) -> None:
    """Put shell scripts with the given names, such as systemctl, first in PATH."""
    folder = tree.folder / "bin"
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def a_node(tree: FakeTree, monkeypatch: Patch) -> list[str]:
    """Set up a node with names in pods, history, journal, unit, host and configuration; return the options."""
    pause_pod(tree.root, tree.add_pod("shop-7d4f", namespace="acme"), Owner.MANUAL, reason="cgpause pause by alice")
    tree.add_pod("web", namespace="batch")
    state = tree.folder / "state"
    state.mkdir()
    gone = Event(1.7e9, "resumed", "payments/gone-1", "u-gone", "memory came back", result="room")
    history.append(str(state / HISTORY_FILE), gone, 1 << 20)
    journal = tree.folder / "journal"
    journal.write_text(JOURNAL)
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setattr(bugreport, "_host_names", lambda: {"teapot"})
    systemctl = 'echo LoadState=loaded; if [ "$1" = cat ]; then echo Environment=TOKEN=pw-of-proxy; fi'
    programs(tree, monkeypatch, systemctl=systemctl, journalctl=f"cat {journal}")
    return ["--state-dir", str(state), *with_config(tree, '[protect]\nnamespaces = ["acme-*", "batch"]\n')]


def test_it_has_every_part_and_can_be_read(tree: FakeTree, monkeypatch: Patch) -> None:
    found = write(tree, *a_node(tree, monkeypatch))

    assert set(found) == PARTS
    assert [name for name, text in found.items() if text.startswith("not collected")] == []
    assert f"cgpause {__version__}" in found["version.txt"]
    assert {check["name"] for check in json.loads(found["check.json"])["checks"]} >= {"kernel", "psi", "kubepods"}
    [paused, free] = sorted(json.loads(found["status.json"])["pods"], key=lambda pod: pod["paused"] is None)
    assert (paused["paused"]["owner"], free["class"]) == ("manual", "service")
    assert json.loads(found["explain.json"])["policy"] == "reserve"
    assert 'policy = "reserve"' in found["config.toml"]
    assert json.loads(found["history.jsonl"])["reason"] == "memory came back"
    assert "memory.current: 0" in found["cgroups.txt"]
    assert "MemTotal" in found["meminfo.txt"]
    assert all(name in found["README.txt"] for name in PARTS - {"README.txt"})


def test_no_name_of_this_node_is_in_it_and_one_pod_has_one_hash(tree: FakeTree, monkeypatch: Patch) -> None:
    found = write(tree, *a_node(tree, monkeypatch))

    for name, text in found.items():
        for secret in (*SECRETS, *tree.uids.values(), *(uid.replace("-", "_") for uid in tree.uids.values())):
            assert secret not in text, name
    pod = next(pod for pod in json.loads(found["status.json"])["pods"] if pod["paused"])
    assert f"pod={pod['namespace']}/{pod['name']} " in found["journal.txt"]
    assert f"pod{pod['uid']}.slice" in pod["cgroup"]
    batch = next(pod["namespace"] for pod in json.loads(found["status.json"])["pods"] if not pod["paused"])
    assert f'"{batch}"]' in found["config.toml"], "a namespace that is an ordinary word"


def test_names_can_be_kept(tree: FakeTree, monkeypatch: Patch) -> None:
    options = a_node(tree, monkeypatch)
    file = tree.folder / "report.tar.gz"

    result = run(tree, *options, "bug-report", "--keep-names", str(file))

    assert "Names are as they were" in result.stdout
    found = read(file)
    assert json.loads(found["history.jsonl"])["pod"] == "payments/gone-1"
    assert found["journal.txt"] == JOURNAL


def test_it_says_what_is_inside_and_to_look_first(tree: FakeTree) -> None:
    file = tree.folder / "report.tar.gz"

    said = run(tree, "bug-report", str(file)).stdout.splitlines()

    assert said[0] == f"wrote {file}:"
    assert {line.split()[0] for line in said[1:-2]} == PARTS - {"README.txt"}
    assert "before you post it" in said[-2]
    assert stat.filemode(file.stat().st_mode) == "-rw-------"


@pytest.mark.parametrize("names", [[], ["../reports.tar.gz"]], ids=["without-a-name", "a-folder"])
def test_without_a_name_and_in_a_folder_it_gets_a_name_of_its_own(
    names: list[str], tree: FakeTree, monkeypatch: Patch
) -> None:
    folder = tree.folder / "reports.tar.gz"
    folder.mkdir()
    monkeypatch.chdir(folder)

    result = run(tree, "bug-report", *names)

    assert result.exit_code == 0
    [file] = folder.iterdir()
    assert result.stdout.splitlines()[0].endswith(f"{file.name}:")
    assert file.name.startswith("cgpause-bug-report-")
    assert file.name.endswith(".tar.gz")


@pytest.mark.parametrize("there", ["file", "link"])
def test_nothing_is_overwritten(there: str, tree: FakeTree) -> None:
    file = tree.folder / "report.tar.gz"
    if there == "file":
        file.write_text("mine")
    else:
        file.symlink_to(tree.folder / "elsewhere")
    before = os.lstat(file)

    result = run(tree, "bug-report", str(file))

    assert (result.exit_code, result.stdout) == (5, "")
    assert "name another file" in result.stderr
    assert os.lstat(file) == before
    assert not (tree.folder / "elsewhere").exists()


def test_a_full_disk_leaves_no_half_a_file(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(bugreport, "_pack", refusing(errno.ENOSPC))

    result = run(tree, "bug-report", str(tree.folder / "report.tar.gz"))

    assert result.exit_code == 5
    assert "ENOSPC" in result.stderr
    assert not (tree.folder / "report.tar.gz").exists()


def test_it_works_without_cgroup_v2_systemd_and_configuration(tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"

    result = invoke("--cgroup-root", str(tmp_path / "nowhere"), "bug-report", str(file))

    assert result.exit_code == 0
    found = read(file)
    assert "no such directory" in found["status.json"]
    assert "No such file" in found["journal.txt"]
    assert "no such directory" in result.stdout


def test_an_invalid_configuration_is_named_and_not_shown(tree: FakeTree) -> None:
    tree.add_pod("web")

    found = write(tree, *with_config(tree, 'policy = "acme"\n[[pods]]\nmatch = "acme-prod"\n'))

    assert found["config.toml"].startswith("not collected: the configuration has 2 mistakes")
    assert "acme" not in "".join(found.values())
    assert len(json.loads(found["status.json"])["pods"]) == 1


def test_without_root_there_is_less_in_it(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    tree.add_pod("web")
    state = tree.folder / "state"
    state.mkdir(mode=0o700)
    state.chmod(0)
    folder = tree.folder / "mine"
    folder.mkdir()
    folder.chmod(0o777)
    file = folder / "report.tar.gz"
    try:
        with as_nobody():
            result = invoke(*place(tree), "--state-dir", str(state), "bug-report", str(file))
    finally:
        state.chmod(0o700)

    assert result.exit_code == 0
    found = read(file)
    assert found["history.jsonl"].startswith("not collected: ")
    assert len(json.loads(found["status.json"])["pods"]) == 1


def test_nothing_but_the_report_is_written(tree: FakeTree) -> None:
    """The exception is a test by `cgpause check`: an xattr on kubepods, for an instant."""
    tree.add_pod("web")
    pods = tree.kubepods / "kubepods-burstable.slice"
    before = snapshot(pods), snapshot(tree.log_dir)

    write(tree)

    assert (snapshot(pods), snapshot(tree.log_dir)) == before


def test_a_part_that_hangs_or_fails_costs_only_itself() -> None:
    hanging = threading.Event()

    def hang() -> str:
        hanging.wait()
        return ""

    fails = DocumentSource("fails", "", failing(RuntimeError("oh no")))
    works = DocumentSource("works", "", lambda: "text")
    try:
        [hung] = collect([DocumentSource("hangs", "", hang)], part_s=0.1)
        failed, worked = collect([fails, works])
        [late] = collect([works], whole_s=0)
    finally:
        hanging.set()

    assert hung.problem == "it took longer than 0 s"
    assert failed.problem == "RuntimeError: oh no"
    assert (worked.content, worked.problem) == ("text", None)
    assert late.content is None


def test_every_part_is_cut_where_it_is_too_long_and_a_log_keeps_its_end(monkeypatch: Patch) -> None:
    monkeypatch.setattr(bugreport, "MAX_BYTES", 100)
    long = "first " + "ż" * 500 + " last"

    found = report([Document("meminfo.txt", long), Document("journal.txt", long)], HiddenNames(), keep_names=False)

    assert found["meminfo.txt"].startswith("first ")
    assert found["journal.txt"].endswith(" last")
    assert all("cut here: 1011 bytes" in text and len(text.encode()) < 200 for text in found.values())


def test_names_in_the_reason_for_a_missing_part_are_hidden_too() -> None:
    parts = [Document("history.jsonl", None, "/home/bob/history.jsonl: Permission denied")]

    [text] = report(parts, HiddenNames(names=frozenset({"bob"})), keep_names=False).values()

    assert "bob" not in text
    assert text.startswith("not collected: /home/h")
