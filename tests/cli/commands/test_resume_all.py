"""`resume --all`, which has to work even with a broken configuration, missing names or failing pods."""

from __future__ import annotations

import os
import signal

import pytest
from helpers.commandline import THROTTLED, invoke, run, with_config
from helpers.fixtures import Patch
from helpers.restoring import brake
from helpers.trees import FakeTree, cpu_max, damage, pause_pod

from cgpause.cli import byhand
from cgpause.core.errors import Exit
from cgpause.core.model import CpuMax, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.ledger import high


@pytest.mark.parametrize("args", [["--all"], ["web"]], ids=["all", "by-name"])
@pytest.mark.parametrize(
    "config",
    ["not toml [", "unknown = 1\n", "[watermark]\nlower_pct = 99\n", None],
    ids=["syntax", "unknown", "conflict", "missing"],
)
def test_a_broken_configuration_never_keeps_a_pod_paused(config: str | None, args: list[str], tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000")
    pause_pod(tree.root, web, Owner.MANUAL)
    options = ["--config", "/nonexistent/x.toml"] if config is None else with_config(tree, config)

    assert run(tree, *options, "resume", *args).exit_code == 0
    assert cpu_max(web) == "50000 100000"
    assert run(tree, *options, "pause", "web").exit_code == 2


def test_resume_all_needs_no_names(tree: FakeTree) -> None:
    web = tree.add_pod("web", cpu_max="50000 100000", log=False)
    pause_pod(tree.root, web, Owner.MANUAL)

    result = invoke("--cgroup-root", str(tree.root), "--log-dir", "/nonexistent", "resume", "--all")

    assert result.exit_code == 0
    assert result.stdout == f"{web.relative_to(tree.root)} resumed: cpu.max 50000 100000\n"
    assert invoke("--cgroup-root", str(tree.root), "resume", "--all").stdout == "nothing is paused\n"


def test_resume_all_names_the_pods(tree: FakeTree) -> None:
    pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"), Owner.DAEMON)

    assert run(tree, "resume", "--all", "--dry-run").stdout == "default/web would be resumed\n"
    assert run(tree, "resume", "--all").stdout == "default/web resumed: cpu.max 50000 100000\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP])
def test_an_interruption_comes_after_the_report(tree: FakeTree, monkeypatch: Patch, number: signal.Signals) -> None:
    pods = [tree.add_pod(name, cpu_max="50000 100000") for name in "abc"]
    for pod in pods:
        pause_pod(tree.root, pod, Owner.MANUAL)
    history = tree.folder / "state" / "history.jsonl"
    history.parent.mkdir()
    write, came = Cgroup.write, list[int]()

    def interrupted(cgroup: Cgroup, name: str, value: str) -> None:
        if cgroup.path == str(pods[1]) and name == "cpu.max":
            os.kill(os.getpid(), number)
        write(cgroup, name, value)

    monkeypatch.setattr(Cgroup, "write", interrupted)
    before = signal.signal(number, lambda *_: came.append(len(history.read_text().splitlines())))
    try:
        done = run(tree, "--state-dir", str(history.parent), "resume", "--all")
    finally:
        signal.signal(number, before)

    assert [cpu_max(pod) for pod in pods] == ["50000 100000"] * 3
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["default/a", "default/b", "default/c"]
    assert came == [3], "after all of it is recorded"


@pytest.mark.parametrize("refs", [["web"], ["--all"]], ids=" ".join)
@pytest.mark.parametrize(
    ("by_systemd", "code", "said"),
    [(None, Exit.NOT_RESTORED, ""), (CpuMax(None, 100_000), Exit.DONE, "would be resumed, with systemd's value")],
    ids=["lost", "systemd"],
)
def test_a_rehearsal_says_what_becomes_of_a_damaged_record(
    tree: FakeTree, monkeypatch: Patch, refs: list[str], by_systemd: CpuMax | None, code: Exit, said: str
) -> None:
    web = tree.add_pod("web")
    pause_pod(tree.root, web, Owner.DAEMON)
    os.setxattr(web, "user.cgpause", b'{"schema": 1}')
    monkeypatch.setattr(byhand, "original_from_systemd", lambda _: by_systemd)

    result = run(tree, "resume", *refs, "--dry-run")

    assert (result.exit_code, said in result.stdout) == (code, True)
    assert ("damaged" in result.stderr) is (by_systemd is None)


def test_resume_all_of_a_namespace_leaves_the_others_paused(tree: FakeTree) -> None:
    web, db = tree.add_pod("web"), tree.add_pod("db", namespace="prod")
    tree.add_pod("runs")
    for pod in (web, db):
        pause_pod(tree.root, pod, Owner.MANUAL)

    result = run(tree, "resume", "--all", "-n", "default")

    assert (result.exit_code, result.stdout) == (0, "default/web resumed: cpu.max max 100000\n")
    assert (cpu_max(web), cpu_max(db)) == ("max 100000", THROTTLED)
    assert run(tree, "resume", "--all", "-n", "default").stdout == "nothing is paused of the 2 pods that match '*'\n"


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_resume_all_of_a_namespace_without_pods_here_is_done(tree: FakeTree, options: tuple[str, ...]) -> None:
    pause_pod(tree.root, tree.add_pod("web"), Owner.MANUAL)

    result = run(tree, "resume", "--all", "-n", "batch", *options)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "nothing is paused\n", "")
    assert run(tree, "resume", "*", "-n", "batch", *options).exit_code == 3, "a glob may be a typing error"


def test_resume_all_of_a_namespace_does_not_leave_out_paused_pods_without_a_name(tree: FakeTree) -> None:
    pause_pod(tree.root, tree.add_pod("web", log=False), Owner.MANUAL)

    result = run(tree, "resume", "--all", "-n", "batch")

    assert (result.exit_code, result.stdout) == (3, "")
    assert "no pod matches '*'" in result.stderr


def test_resume_all_gives_memory_high_back(tree: FakeTree) -> None:
    brake(tree.kubepods)
    all_of_it = ("--cgroup-root", str(tree.root), "resume", "--all")

    assert invoke(*all_of_it, "--dry-run").stdout == f"{tree.kubepods.name} would get its memory.high back\n"
    assert invoke(*all_of_it).stdout == f"{tree.kubepods.name} released: memory.high max\n"
    assert invoke(*all_of_it, "--dry-run").stdout == "nothing is paused\n"


def test_a_rehearsal_of_memory_high_says_what_the_release_says(tree: FakeTree) -> None:
    brake(tree.kubepods)
    all_of_it = ("--cgroup-root", str(tree.root), "resume", "--all")
    (tree.kubepods / "memory.high").write_text("4096\n")
    words = "would keep its memory.high 4096: another program wrote it"
    assert invoke(*all_of_it, "--dry-run").stdout == f"{tree.kubepods.name} {words}\n"
    damage(tree.kubepods, high.XATTR)
    rehearsed, done = invoke(*all_of_it, "--dry-run"), invoke(*all_of_it)
    assert (rehearsed.exit_code, rehearsed.stdout, rehearsed.stderr) == (6, "", done.stderr)
    assert done.exit_code == 6
