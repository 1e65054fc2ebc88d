"""`pause` and `resume` of named pods."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.commandline import THROTTLED, Patch, S, frozen, invoke, place, record_of, run, snapshot, with_config
from helpers.trees import FakeTree, cpu_max, records_left
from typer.testing import CliRunner

from cgpause.cli import byhand
from cgpause.cli.main import app
from cgpause.core.model import Mechanism, Owner
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon
from cgpause.ledger import ledger
from cgpause.pods.tree import PodTree


def test_pausing_and_resuming_twice_change_nothing(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.cli.byhand.now_ns", lambda: 1000 * S)
    run(tree, "pause", "web", "--for", "10m")
    before = snapshot(tree.root)

    again = run(tree, "pause", "web")

    already = "already paused (throttle) by hand, 10m00s left: cgpause pause by tester"
    assert (again.exit_code, again.stdout, again.stderr) == (0, f"default/web {already}\n", "")
    assert snapshot(tree.root) == before
    for also in ([], ["--for", "20m"]):
        refused = run(tree, "pause", "web", "--mechanism", "freeze", *also)
        assert (refused.exit_code, refused.stdout) == (5, "")
        assert refused.stderr == f"cgpause: default/web: {already}; to pause it otherwise, cgpause resume it first\n"
        assert snapshot(tree.root) == before
    assert run(tree, "pause", "web", "--mechanism", "throttle").exit_code == 0
    run(tree, "resume", "web")
    before = snapshot(tree.root)
    again = run(tree, "resume", "web")
    assert (again.exit_code, again.stdout) == (0, "default/web is not paused\n")
    assert snapshot(tree.root) == before
    assert cpu_max(web) == "50000 100000"


@pytest.mark.parametrize(
    ("first", "then", "ends", "said"),
    [
        ([], "20m", 1300, "20m00s left (until now: no end)"),
        (["--for", "10m"], "20m", 1300, "20m00s left (until now: 8m20s left)"),
        (["--for", "10m"], "1m", 160, "1m00s left (until now: 8m20s left)"),
        (["--for", "10s"], "1m", 160, "1m00s left (until now: its time is over)"),
    ],
    ids=["without-an-end", "later", "sooner", "overdue"],
)
def test_pausing_for_a_time_sets_a_new_end_of_a_pause_by_hand(
    first: list[str], then: str, ends: int, said: str, tree: FakeTree, web: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("cgpause.cli.byhand.now_ns", lambda: 0)
    run(tree, "pause", "web", *first)
    begun = record_of(tree, web)
    monkeypatch.setattr("cgpause.cli.byhand.now_ns", lambda: 100 * S)
    before = snapshot(tree.root)

    rehearsed = run(tree, "pause", "web", "--for", then, "--dry-run")
    unchanged = snapshot(tree.root) == before
    extended = run(tree, "pause", "web", "--for", then)

    assert (rehearsed.stdout, unchanged) == (f"default/web would stay paused (throttle) by hand: {said}\n", True)
    assert (extended.exit_code, extended.stdout) == (0, f"default/web stays paused (throttle) by hand: {said}\n")
    assert record_of(tree, web) == replace(begun, expires_ns=ends * S)
    assert cpu_max(web) == THROTTLED


@pytest.mark.parametrize("options", [[], ["--for", "10m"], ["--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_pause_that_another_program_has_ended_is_no_pause(
    tree: FakeTree, web: Path, options: list[str], mechanism: Mechanism
) -> None:
    run(tree, "pause", "web", "--mechanism", mechanism)
    file, value = ("cpu.max", "max 100000") if mechanism is Mechanism.THROTTLE else ("cgroup.freeze", "0")
    (web / file).write_text(f"{value}\n")
    before = snapshot(tree.root)

    refused = run(tree, "pause", "web", *options)

    assert (refused.exit_code, refused.stdout) == (5, "")
    assert refused.stderr == (
        f"cgpause: default/web: its pause ({mechanism}) by hand is not in force, for another program has written "
        "since; cgpause resume it, then pause it again\n"
    )
    assert snapshot(tree.root) == before


def test_a_new_end_is_an_event_of_the_same_pause(tree: FakeTree) -> None:
    tree.add_pod("web")
    state = ["--state-dir", str(tree.folder)]
    run(tree, *state, "pause", "web")
    run(tree, *state, "pause", "web", "--for", "10m")

    events = [json.loads(line) for line in (tree.folder / "history.jsonl").read_text().splitlines()]
    (pause,) = json.loads(run(tree, *state, "history", "-o", "json").stdout)["pauses"]

    since_ns = events[0]["since_ns"]
    assert [(event["what"], event["since_ns"]) for event in events] == [("paused", since_ns), ("extended", since_ns)]
    assert (pause["state"], pause["owner"], pause["reason"]) == ("active", "manual", "cgpause pause by tester")


def test_a_pod_that_is_resumed_meanwhile_gets_no_new_end(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    run(tree, "pause", "web")
    really = ledger.set_end

    def too_late(cgroup: Cgroup, owner: Owner, expires_ns: int | None) -> object:
        run(tree, "resume", "web")
        return really(cgroup, owner, expires_ns)

    monkeypatch.setattr(ledger, "set_end", too_late)

    result = run(tree, "pause", "web", "--for", "10m")

    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == "cgpause: default/web: it was resumed in this moment: try again\n"
    assert cpu_max(web) == "50000 100000"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (DaemonState.RUNNING, "the daemon ends the pause when its time is over"),
        (DaemonState.STOPPED, "no daemon runs here, so the pause does not end by itself: start one"),
        (DaemonState.UNKNOWN, "whether one runs here cannot be told"),
        (DaemonState.DRY_RUN, "the daemon here is a dry run, so the pause does not end by itself"),
    ],
)
def test_of_a_pause_with_an_end_it_is_said_who_ends_it(
    state: DaemonState, said: str, tree: FakeTree, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("cgpause.cli.acting.find_daemon", lambda _: FoundDaemon(state))
    tree.add_pod("web")

    [note] = run(tree, "pause", "web", "--for", "10m").stderr.splitlines()
    assert note.startswith("note: ")
    assert said in note
    tree.add_pod("db")
    assert run(tree, "pause", "db").stderr == ""


@pytest.mark.parametrize(
    ("config", "option", "expected", "said"),
    [
        ("", "", (THROTTLED, False), "cpu.max 50000 100000 -> 1001 100000"),
        ('mechanism = "freeze"\n', "", ("50000 100000", True), "frozen"),
        ('mechanism = "freeze"\n', "--mechanism throttle", (THROTTLED, False), "cpu.max 50000 100000 -> 1001 100000"),
        ("[throttle]\nquota_us = 5000\n", "", ("5000 100000", False), "cpu.max 50000 100000 -> 5000 100000"),
        ("", "--mechanism freeze", ("50000 100000", True), "frozen"),
    ],
    ids=["default", "configured", "option-wins", "configured-quota", "option"],
)
def test_the_mechanism_is_the_option_or_what_is_configured_and_a_resume_undoes_it(
    config: str, option: str, expected: tuple[str, bool], said: str, tree: FakeTree, web: Path
) -> None:
    options = with_config(tree, config)

    assert run(tree, *options, "pause", "web", *option.split()).stdout == f"default/web paused: {said}\n"
    assert (cpu_max(web), frozen(web), records_left(tree.root)) == (*expected, [web])
    assert run(tree, *options, "resume", "web").stdout == "default/web resumed: cpu.max 50000 100000\n"
    assert (cpu_max(web), frozen(web), records_left(tree.root)) == ("50000 100000", False, [])


def test_a_foreign_write_stays(tree: FakeTree, web: Path) -> None:
    run(tree, "pause", "web")
    (web / "cpu.max").write_text("70000 100000\n")

    result = run(tree, "resume", "web")

    assert result.exit_code == 0
    assert "cpu.max 70000 100000 was written by another program" in result.stdout
    assert (cpu_max(web), records_left(tree.root)) == ("70000 100000", [])


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("5214w", 3_153_427_200)])
def test_good_times(text: str, seconds: int, tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("cgpause.cli.byhand.now_ns", lambda: 5 * S)

    assert run(tree, "pause", "web", "--for", text).exit_code == 0
    record = record_of(tree, web)
    assert (record.owner, record.since_ns, record.expires_ns) == (Owner.MANUAL, 5 * S, (5 + seconds) * S)
    assert run(tree, "status").exit_code == run(tree, "explain").exit_code == 0


def test_a_protected_pod_is_refused_by_its_rule_and_force_overrides(tree: FakeTree) -> None:
    web, db = tree.add_pod("web"), tree.add_pod("db")
    pause = [*with_config(tree, '[[pods]]\nmatch = "*/web"\nprotect = true\n'), "pause"]

    refused = run(tree, *pause, "web", "db")

    assert refused.exit_code == 4
    rule = "rule 1 ([[pods]] match = '*/web')"
    assert refused.stderr.startswith(
        f"cgpause: default/web is protected: {rule}; cgpause pause --force default/web overrides"
    )
    assert (cpu_max(web), cpu_max(db)) == ("max 100000", THROTTLED)
    assert run(tree, *pause, "web", "--force").exit_code == 0
    assert cpu_max(web) == THROTTLED
    assert run(tree, "resume", "web").exit_code == 0
    assert cpu_max(web) == "max 100000"


def test_force_does_not_pause_the_pod_in_which_cgpause_runs(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CGPAUSE_POD_UID", tree.uids["web"])
    refused = run(tree, "pause", "web", "--force", "--mechanism", "freeze")
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert refused.stderr == "cgpause: default/web is protected: cgpause itself runs in it\n"
    assert records_left(tree.root) == []


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["real", "dry"])
def test_a_pod_whose_own_word_could_not_be_read_is_paused_by_force_only(
    tree: FakeTree, web: Path, monkeypatch: Patch, dry_run: list[str]
) -> None:
    monkeypatch.setattr(PodTree, "is_word_unread", lambda *_: True)
    refused = run(tree, "pause", "web", *dry_run)
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "default/web may be protected: its own word could not be read in time" in refused.stderr
    assert run(tree, "pause", "web", "--force", *dry_run).exit_code == 0
    assert "1 own words of pods could not be read in time" in run(tree, "status").stderr


def test_a_relative_cgroup_root_works(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tree.folder)

    assert invoke("--cgroup-root", "cgroup", "--log-dir", "log", "pause", str(web)).exit_code == 0
    assert cpu_max(web) == THROTTLED


@pytest.mark.parametrize("bad", range(3), ids=["first", "middle", "last"])
def test_several_references_are_all_tried(bad: int, tree: FakeTree) -> None:
    pods = [tree.add_pod(f"pod-{n}") for n in range(3)]
    refs = [f"pod-{n}" for n in range(3)]
    refs[bad] = "nobody"

    assert run(tree, "pause", *refs).exit_code == 3
    assert [cpu_max(pod) == THROTTLED for pod in pods] == [n != bad for n in range(3)]
    assert run(tree, "resume", *refs).exit_code == 3
    assert [cpu_max(pod) for pod in pods] == ["max 100000"] * 3
    shown = run(tree, "status", *refs)
    assert shown.exit_code == 3
    assert [f"default/pod-{n}" in shown.stdout for n in range(3)] == [n != bad for n in range(3)]
    assert shown.stderr.startswith("cgpause: no pod 'nobody'")
    neither = run(tree, "status", "nobody", "nowhere")
    assert [line.split()[3] for line in neither.stderr.splitlines()] == ["'nobody'", "'nowhere'"]


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP])
def test_an_interruption_comes_after_a_pod_and_never_amid_its_writes(
    tree: FakeTree, monkeypatch: Patch, number: signal.Signals, command: str
) -> None:
    """A pause that ends between its record and its quota would last for ever, and nobody would hear of it."""
    running, throttled = "50000 100000", THROTTLED
    pods = [tree.add_pod(name, cpu_max=running) for name in "abc"]
    if command == "resume":
        run(tree, "pause", "a", "b", "c")
        running, throttled = throttled, running
    history = tree.folder / "state" / "history.jsonl"
    history.parent.mkdir()
    write, seen = Cgroup.write, list[list[str]]()

    def interrupted(cgroup: Cgroup, name: str, value: str) -> None:
        if cgroup.path == str(pods[1]) and name == "cpu.max":
            os.kill(os.getpid(), number)
        write(cgroup, name, value)

    monkeypatch.setattr(Cgroup, "write", interrupted)
    # A handler of the test's own stands in for the default, which would end or stop the tests.
    default = signal.default_int_handler if number == signal.SIGINT else lambda *_: seen.append([*map(cpu_max, pods)])
    before = signal.signal(number, default)
    try:
        done = CliRunner().invoke(app, [*place(tree), "--state-dir", str(history.parent), command, "a", "b", "c"])
        after = signal.getsignal(number)
    finally:
        signal.signal(number, before)

    left = 0 if number == signal.SIGTSTP else 1
    assert [cpu_max(pod) for pod in pods] == [throttled] * (3 - left) + [running] * left
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["default/a", "default/b", "default/c"][: 3 - left]
    assert len(history.read_text().splitlines()) == 3 - left
    assert (done.exit_code, after) == (130 if left else 0, default)
    assert seen == ([] if left else [[throttled, throttled, running]])


def test_after_an_interruption_it_says_whether_the_pauses_end_by_themselves(tree: FakeTree, monkeypatch: Patch) -> None:
    for name in "ab":
        tree.add_pod(name)
    said = byhand.pause

    def interrupted(*args: Any, **options: Any) -> str:  # noqa: ANN401
        os.kill(os.getpid(), signal.SIGTERM)
        return said(*args, **options)

    monkeypatch.setattr(byhand, "pause", interrupted)
    done = CliRunner().invoke(app, [*place(tree), "pause", "a", "b", "--for", "10m"])
    assert done.exit_code == 130
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["default/a"]
    assert "note: a running daemon ends the pause" in done.stderr


def test_a_signal_that_is_ignored_interrupts_nothing(tree: FakeTree, web: Path, monkeypatch: Patch) -> None:
    """As of a command that nohup has started."""

    def user() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        return "tester"

    monkeypatch.setattr(byhand, "user", user)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(tree, "pause", "web").exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert cpu_max(web) == THROTTLED


@pytest.mark.parametrize(
    ("sudo_user", "user", "uid", "name"),
    [("alice", "root", 0, "alice"), ("", "bob", 1000, "bob"), ("", "", 0, "root"), ("", "", 1000, "uid 1000")],
)
def test_an_operator_is_named_after_the_environment_or_the_uid(
    sudo_user: str, user: str, uid: int, name: str, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("SUDO_USER", sudo_user)
    monkeypatch.setenv("USER", user)
    monkeypatch.setattr(os, "getuid", lambda: uid)

    assert byhand.user() == name
