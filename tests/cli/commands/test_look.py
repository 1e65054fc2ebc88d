"""The commands that only read (`status`, `explain`, `config`), and `run`."""

from __future__ import annotations

import json
import os
import sys

import pytest
from helpers.commandline import ABSENT, ESCAPED, GIB, HOSTILE, MIB, Patch, hostile_tree, invoke, run, with_config
from helpers.trees import FakeTree, cpu_max, damage, pause_pod

from cgpause.config.load import parse_config
from cgpause.config.settings import Config, HowPaused
from cgpause.core.model import Owner


def test_hostile_names_of_cgroups_and_reasons_are_escaped_wherever_they_are_shown(tree: FakeTree) -> None:
    web = hostile_tree(tree)
    pause_pod(tree.root, web, reason=HOSTILE)

    commands = ("status", "check", "explain", "explain web", "pause web", "resume --all --dry-run", "resume --all")
    for command in commands:
        result = run(tree, *command.split())
        assert result.exit_code == 0, result.output
        assert result.output.replace("\n", "").isprintable()
        if command in ("status", "check"):
            assert ESCAPED in result.stdout
    assert cpu_max(web) == "50000 100000"
    assert json.loads(run(tree, "status", "-ojson").stdout)["kubepods"]["cgroup"] == f"{HOSTILE}/kubepods.slice"


@pytest.mark.parametrize("command", ["resume web", "resume --all", "status"])
def test_hostile_cgroup_names_are_escaped_in_errors(command: str, tree: FakeTree) -> None:
    web = hostile_tree(tree)
    damage(web)
    if command == "status":
        (web.parent.parent / "memory.stat").unlink()

    result = run(tree, *command.split())

    assert result.exit_code in (5, 6)
    assert ESCAPED in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.rstrip("\n").isprintable()


def test_explain_shows_what_the_policy_would_do(tree: FakeTree) -> None:
    tree.set_used(GIB * 15 // 16)
    for name, size in (("c", 30), ("a", 10), ("b", 20)):
        tree.add_pod(name, size * MIB)
    tree.add_pod("guarded", 5 * MIB, tier="")
    pause_pod(tree.root, tree.add_pod("paused", 15 * MIB), Owner.MANUAL, reason="by hand")
    policy = with_config(tree, 'policy = "watermark"\n')

    shown = json.loads(run(tree, *policy, "explain", "-ojson").stdout)

    pods = shown.pop("pods")
    assert shown == {"schema": 1, "policy": "watermark", "used_pct": 93.75, "headroom_bytes": GIB // 16}
    assert pods[0] == {
        "rank": None,
        "uid": tree.uids["guarded"],
        "namespace": "default",
        "name": "guarded",
        "qos": "Guaranteed",
        "memory_current_bytes": 5 * MIB,
        "verdict": "runs: protected: QoS class Guaranteed (protect.guaranteed)",
        "reserve": None,
    }
    ranks = [("guarded", None), ("a", 1), ("paused", None), ("b", 2), ("c", 3)]
    assert [(pod["name"], pod["rank"]) for pod in pods] == ranks
    assert [pod["name"] for pod in pods if pod["verdict"].startswith("would pause")] == ["a", "b"]
    for pod, line in zip(pods, run(tree, *policy, "explain").stdout.splitlines()[2:], strict=True):
        assert f"default/{pod['name']} " in line
        assert pod["verdict"] in line


@pytest.mark.parametrize("command", ["config", "config --check", "check", "status", "explain", "pause x"])
def test_all_that_is_wrong_in_a_configuration_is_said_at_once(command: str, tree: FakeTree) -> None:
    _, file = options = with_config(tree, 'mechanism = "kill"\nunknown = 1\n[watermark]\nbatch = 0\n')

    result = run(tree, *options, *command.split())

    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert all(line.startswith(f"cgpause: {file}:") for line in lines)
    assert sorted(line.split(": ")[2] for line in lines) == ["mechanism", "unknown", "watermark.batch"]


CHANGED = 'mechanism = "freeze"\n[watermark]\nupper_pct = 92.5\n[[pods]]\nmatch = "*/db"\nprotect = true\n'


@pytest.mark.parametrize("name", ["new\nline = 1.toml", "\x1b[31m.toml", os.fsdecode(b"\xff.toml")], ids=ascii)
def test_the_configuration_of_an_oddly_named_file_parses_back(name: str, tree: FakeTree) -> None:
    file = tree.folder / name
    file.write_text(CHANGED)

    shown = run(tree, "--config", str(file), "config")
    checked = run(tree, "--config", str(file), "config", "--check")

    assert (shown.exit_code, checked.exit_code) == (0, 0)
    assert parse_config(shown.stdout, "shown") == parse_config(CHANGED, "given")
    assert checked.stdout.rstrip("\n").isprintable()


def test_the_default_configuration_need_not_exist(tree: FakeTree) -> None:
    shown = run(tree, "config")
    checked = run(tree, "config", "--check")

    assert (shown.exit_code, checked.exit_code) == (0, 0)
    assert parse_config(shown.stdout, "shown") == Config()
    assert shown.stdout.splitlines()[0] == f"# {ABSENT} does not exist: these are the defaults"
    assert checked.stdout == f"{ABSENT} does not exist: these are the defaults\n"


def test_the_default_configuration_is_read_when_it_exists(tree: FakeTree, monkeypatch: Patch) -> None:
    file = tree.folder / "default.toml"
    file.write_text(CHANGED)
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_CONFIG", str(file))

    assert parse_config(run(tree, "config").stdout, "shown").mechanism is HowPaused.FREEZE
    assert run(tree, "config", "--check").stdout == f"{file}: valid\n"
    file.write_text("unknown = 1\n")
    assert run(tree, "config").exit_code == 2


# --- run -------------------------------------------------------------------------------------------------------------


def test_run_becomes_the_daemon(monkeypatch: Patch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "execv", lambda *call: calls.append(call))
    options, flags = ["--cgroup-root", "/cg", "--config", "\udcff", "--log-dir", "/logs"], ["--dry-run", "--verbose"]

    invoke("run")
    invoke(*options, "run", *flags)

    daemon = [sys.executable, "-P", "-m", "cgpause.daemon"]
    assert calls == [
        (sys.executable, [*daemon, "--log-dir", "/var/log"]),
        (sys.executable, [*daemon, *options, *flags]),
    ]
