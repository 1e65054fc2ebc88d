"""`cgpause bug-report`: its parts, its redaction, and its limits and errors."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.commandline import Patch, argv, invoke, process, run, with_config
from helpers.processes import executable
from helpers.refusals import refusing
from helpers.trees import FakeTree, pause_pod, wait_until

from cgpause import __version__
from cgpause.cli import bugreport
from cgpause.cli.bugreport import FOLDER, Part
from cgpause.core.model import Owner
from cgpause.core.paths import HISTORY_FILE
from cgpause.telemetry import history
from cgpause.telemetry.events import Event

REPO = Path(__file__).resolve().parents[3]
PARTS = {
    *("README.txt", "version.txt", "kernel.txt", "memory.txt", "cgroups.txt", "check.json", "config.toml"),
    *("status.json", "explain.json", "history.jsonl", "unit.txt", "journal.txt", "metrics-journal.txt"),
}
HOST = os.uname().nodename
SECRETS = ("pw-of-proxy", "acme", "shop-7d4f", "gone-1", "payments", "alice", HOST)
UID = f"{'0' * 8}-0000-4000-8000-{'0' * 12}"
JOURNAL = f"""\
2026-11-22T10:00:00.000000+00:00 cgpause[7]: paused pod=acme/shop-7d4f uid={UID} reason="cgpause pause by alice"
2026-11-22T10:00:01.000000+00:00 cgpause[7]: pod gone pod=payments/gone-1
2026-11-22T10:00:02.000000+00:00 cgpause[7]: started on {HOST}
2026-11-22T10:00:03.000000+00:00 cgpause[7]: configuration not reloaded, the old one stays: a.toml: policy: found "my \\"pw"; allowed: reserve
2026-11-22T10:00:04.000000+00:00 cgpause[7]: a.toml:3: not TOML: Invalid value; found "token = hunter2"
"""  # noqa: E501
SYSTEMCTL = """\
case "$*" in
    --version) echo systemd 252 ;;
    "show --property="*) echo LoadState=loaded ;;
esac
case "$*" in cat* | *Environment* | "show cgpause"*) echo Environment=TOKEN=pw-of-proxy ;; esac
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


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """Make shell scripts with the given names, such as systemctl; return the environment that has them first."""
    for name, script in scripts.items():
        executable(folder / name, script)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def only(patch: Patch, *commands: str) -> None:
    """Let a report have only these commands, as the parts 0.txt, 1.txt and so on."""
    parts = [Part(f"{number}.txt", "about it", command) for number, command in enumerate(commands)]
    patch.setattr(bugreport, "parts_of", lambda *_: parts)
    patch.setenv("PATH", "/usr/bin:/bin")


@dataclass
class Node:
    """A node with names in pods, history, journal, unit and configuration, and its reports."""

    tree: FakeTree
    hidden: dict[str, str]
    kept: dict[str, str]
    said: str
    """Output of the command with --keep-names."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    tree = FakeTree(tmp_path_factory.mktemp("node"))
    pause_pod(tree.root, tree.add_pod("shop-7d4f", namespace="acme"), Owner.MANUAL, reason="cgpause pause by alice")
    tree.add_pod("web", namespace="batch")
    state = tree.folder / "state"
    state.mkdir()
    gone = Event(1.7e9, "resumed", "payments/gone-1", "u-gone", "memory came back", result="headroom")
    history.append(str(state / HISTORY_FILE), gone, 1 << 20)
    journal = tree.folder / "journal"
    journal.write_text(JOURNAL)
    env = programs(tree.folder / "bin", systemctl=SYSTEMCTL, journalctl=f"cat {journal}")
    options = ["--state-dir", str(state), *with_config(tree, '[protect]\nnamespaces = ["acme-*", "batch"]\n')]

    def made(name: str, *flags: str) -> tuple[dict[str, str], str]:
        file = str(tree.folder / name)
        done = process(tree, *options, "bug-report", *flags, file, env=env | {"SUDO_USER": "alice"})
        assert (done.returncode, done.stderr) == (0, b"")
        return read(tree.folder / name), done.stdout.decode()

    (hidden, _), (kept, said) = made("hidden.tar.gz"), made("kept.tar.gz", "--keep-names")
    return Node(tree, hidden, kept, said)


def test_it_has_every_part_and_can_be_read(node: Node) -> None:
    found = node.kept

    assert set(found) == set(node.hidden) == PARTS
    assert [name for name, text in found.items() if text.startswith("not collected")] == []
    assert f"cgpause {__version__}" in found["version.txt"]
    assert all(line in found["version.txt"] for line in ("Python 3", "typer ", "psutil ", "systemd 252"))
    assert os.uname().release in found["kernel.txt"]
    assert {check["name"] for check in json.loads(found["check.json"])["checks"]} >= {"kernel", "psi", "kubepods"}
    assert 'policy = "reserve"' in found["config.toml"]
    assert json.loads(found["explain.json"])["policy"] == "reserve"
    assert json.loads(found["history.jsonl"])["pod"] == "payments/gone-1"
    assert "kubepods.slice/memory.current:0" in found["cgroups.txt"]
    assert "MemTotal" in found["memory.txt"]
    assert found["unit.txt"] == "LoadState=loaded\n"
    assert found["journal.txt"] == JOURNAL
    assert "policy: found (left out); allowed: reserve" in node.hidden["journal.txt"]
    assert "hunter2" not in node.hidden["journal.txt"]


def test_no_name_of_this_node_is_in_it_and_one_pod_has_one_hash(node: Node) -> None:
    found = node.hidden

    for name, text in found.items():
        for secret in (*SECRETS, *node.tree.uids.values(), *(uid.replace("-", "_") for uid in node.tree.uids.values())):
            assert secret not in text, name
    [paused, free] = sorted(json.loads(found["status.json"])["pods"], key=lambda pod: pod["paused"] is None)
    assert (paused["paused"]["owner"], free["class"]) == ("manual", "service")
    assert f"pod={paused['namespace']}/{paused['name']} " in found["journal.txt"]
    assert f"pod{paused['uid']}.slice" in paused["cgroup"]
    assert f'"{free["namespace"]}"]' in found["config.toml"], "a namespace that is an ordinary word"
    assert json.loads(found["check.json"]) == json.loads(node.kept["check.json"])
    assert json.loads(found["history.jsonl"])["reason"] == "memory came back"


def test_the_manual_has_the_same_parts() -> None:
    section = (REPO / "docs/cli.md").read_text().partition("\n## `bug-report`\n")[2].partition("\n## ")[0]

    rows = re.findall(r"^\| (`[^|]*`) \|", section.partition("| in the report")[0], re.MULTILINE)

    assert {name.strip("`") for row in rows for name in row.split(", ")} == PARTS


def test_it_says_what_is_inside_and_to_look_first(node: Node) -> None:
    said, file = node.said.splitlines(), node.tree.folder / "kept.tar.gz"

    assert said[0] == f"wrote {file}:"
    assert {line.split()[0] for line in said[1:-2]} == PARTS - {"README.txt"}
    assert said[-2].startswith("Names are as they were")
    assert "before you post it" in said[-2]
    assert all(name in node.hidden["README.txt"] for name in PARTS - {"README.txt"})
    assert stat.filemode(file.stat().st_mode) == "-rw-------"


@pytest.mark.parametrize("names", [[], ["../reports.tar.gz"]], ids=["without-a-name", "a-folder"])
def test_without_a_name_and_in_a_folder_it_gets_a_name_of_its_own(
    names: list[str], tree: FakeTree, monkeypatch: Patch
) -> None:
    folder = tree.folder / "reports.tar.gz"
    folder.mkdir()
    monkeypatch.chdir(folder)

    only(monkeypatch, "echo text")
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

    only(monkeypatch, "echo text")
    result = run(tree, "bug-report", str(tree.folder / "report.tar.gz"))

    assert result.exit_code == 5
    assert "ENOSPC" in result.stderr
    assert not (tree.folder / "report.tar.gz").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_no_half_a_file_and_ends_the_commands(number: int, tree: FakeTree) -> None:
    began, file = tree.folder / "began", tree.folder / "report.tar.gz"
    env = programs(tree.folder / "bin", systemctl=f"echo $$ > {began}.new; mv {began}.new {began}; sleep 600; true")
    # A shell's background job, such as these tests may be, has SIGINT ignored.
    command = ["env", "--default-signal=INT,HUP", *argv(tree, "bug-report", str(file))]
    with subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.DEVNULL) as report:
        wait_until(began.exists, "the first systemctl")
        assert file.exists()
        report.send_signal(number)
        assert report.wait(60) != 0

    assert not file.exists()
    pid = int(began.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), "the end of systemctl")


def test_it_works_without_cgroup_v2_systemd_and_configuration(tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"

    result = invoke("--cgroup-root", str(tmp_path / "nowhere"), "bug-report", str(file))

    assert result.exit_code == 0
    found = read(file)
    assert "no such directory" in found["status.json"]
    assert "none is kept for another tree" in found["history.jsonl"]
    assert "not found" in found["journal.txt"]
    assert "no such directory" in result.stdout


def test_an_invalid_configuration_is_named_and_not_shown(tree: FakeTree, monkeypatch: Patch) -> None:
    tree.add_pod("web")
    journal = "echo \"configuration refused: found 'acme-prod'\""
    monkeypatch.setenv("PATH", programs(tree.folder / "bin", journalctl=journal)["PATH"])

    found = write(tree, *with_config(tree, 'policy = "acme"\n[[pods]]\nmatch = "acme-prod"\n'))

    assert found["config.toml"].startswith("not collected: the configuration is invalid (mistakes: 2)")
    assert "acme" not in "".join(found.values())
    assert "configuration refused" in found["journal.txt"]
    assert len(json.loads(found["status.json"])["pods"]) == 1


def test_a_configuration_that_is_no_file_is_no_reason_to_wait(tree: FakeTree, monkeypatch: Patch) -> None:
    os.mkfifo(tree.folder / "fifo")

    only(monkeypatch, "echo text")
    found = write(tree, "--config", str(tree.folder / "fifo"))

    assert found["config.toml"].startswith("not collected: the configuration is invalid (mistakes: 1)")


def test_without_root_there_is_less_in_it(open_folder: Path) -> None:
    tree = FakeTree(open_folder)
    tree.add_pod("web")
    state = tree.folder / "state"
    state.mkdir()
    state.chmod(0)
    file = tree.folder / "report.tar.gz"
    # Root without capabilities: another user might not reach the interpreter.
    powerless = [] if os.geteuid() else ["setpriv", "--bounding-set=-all"]
    command = [*powerless, *argv(tree, "--state-dir", str(state), "bug-report", str(file))]
    try:
        done = subprocess.run(command, env={**os.environ, "PATH": "/usr/bin:/bin"}, capture_output=True, check=False)
    finally:
        state.chmod(0o700)

    assert done.returncode == 0, done.stderr
    found = read(file)
    assert re.match("not collected: .*Permission denied", found["history.jsonl"])
    assert len(json.loads(found["status.json"])["pods"]) == 1


def test_a_part_that_hangs_costs_only_itself(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(bugreport, "_PART_S", 0.5)

    only(monkeypatch, "sleep 600 | cat", "echo text")
    found = write(tree)

    assert found["0.txt"] == "not collected: it took longer than 0.5 s\n"
    assert "1.txt" in found, "with or without its text: on a busy machine it may take as long"


def test_a_part_that_fails_costs_only_itself(tree: FakeTree, monkeypatch: Patch) -> None:
    only(monkeypatch, "echo first >&2; echo /home/bob: no >&2; false", "false", "echo text; false")
    found = write(tree)

    assert re.fullmatch("not collected: /home/h[0-9a-f]{10}: no\n", found["0.txt"]), "names are hidden here too"
    assert found["1.txt"] == "not collected: no output, exit code 1\n"
    assert found["2.txt"] == "text\n"


def test_a_part_that_cannot_be_started_is_none(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(subprocess, "Popen", refusing(errno.EAGAIN))

    assert write(tree)["status.json"] == f"not collected: /bin/sh: {os.strerror(errno.EAGAIN)}\n"


def test_of_a_part_that_is_too_long_whole_lines_of_its_end_are_kept(tree: FakeTree, monkeypatch: Patch) -> None:
    monkeypatch.setattr(bugreport, "MAX_BYTES", 100)
    tree.add_pod("shop-7d4f")

    only(monkeypatch, "seq 1000; echo pod shop-7d4f; printf '%90s\\n' end")
    assert write(tree)["0.txt"].splitlines() == ["[cut here: the last 91 of 3998 bytes]", f"{'end':>90}"]


def test_only_known_boot_options_are_shown() -> None:
    def shown(word: str) -> bool:
        return re.fullmatch(bugreport._BOOT_OPTIONS, word) is not None

    known = ["psi=1", "cgroup_disable=memory", "systemd.unified_cgroup_hierarchy=0", "nohz_full=1-3", "mitigations=off"]
    assert all(map(shown, known))
    assert not any(map(shown, ["root=UUID=1", "systemd.setenv=TOKEN=x", "a.psi=1", "psifoo", "nfsroot=10.0.0.1:/acme"]))
