"""`cgpause history`: its output, its reasons for an empty history, and its record of pauses by hand."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.commandline import HOSTILE, Patch, as_nobody, invoke, json_of, place, run, with_config
from helpers.events import event
from helpers.refusals import refusing
from helpers.trees import FakeTree, pause_pod, records_left

from cgpause.cli import output
from cgpause.core.model import Owner
from cgpause.core.paths import HISTORY_FILE
from cgpause.telemetry import history
from cgpause.telemetry.events import Event

NOW = datetime.now().timestamp()
POD = {"pod": "default/web"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def note(state: Path, *events: Event) -> None:
    for one in events:
        history.append(str(state / HISTORY_FILE), one, 1 << 20)


def paused(ago_s: float, since_s: float, **more: object) -> Event:
    facts = {"owner": "daemon", "mechanism": "throttle", "cpu_max_from": "max 100000", "memory_current_bytes": 7}
    return event("paused", round(NOW - ago_s, 3), since_s, reason="needs 12Mi", **(POD | facts | more))


def resumed(ago_s: float, since_s: float, paused_s: float) -> Event:
    facts = {"result": "headroom", "cpu_max_to": "max 100000"}
    return event("resumed", round(NOW - ago_s, 3), since_s, paused_s, reason="fits again", **(POD | facts))


def show(state: Path, *options: str, tree: FakeTree | None = None) -> list[str]:
    result = invoke(*(place(tree) if tree else []), "--state-dir", str(state), "history", *options)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def document(state: Path, *options: str, tree: FakeTree | None = None) -> dict[str, Any]:
    return json_of(*(place(tree) if tree else []), "--state-dir", str(state), "history", *options)


def test_pauses_are_listed_and_then_summed_up_per_pod(state: Path) -> None:
    note(state, paused(100, 1), resumed(91, 1, 9), paused(80, 2), resumed(15, 2, 65))
    note(state, paused(70, 3, pod="batch/job-7", uid="u2"))

    header, first, second, third, blank, totals, web, job = show(state)

    start = f"{datetime.fromtimestamp(paused(100, 1).at):%Y-%m-%d %H:%M:%S}"
    assert header.split("  ")[0] == "START"
    assert first.split("  ")[0] == start
    assert first.endswith("default/web  throttle     9.0s  needs 12Mi  headroom: fits again")
    assert second.endswith("default/web  throttle    1m05s  needs 12Mi  headroom: fits again")
    assert third.endswith("throttle        ?  needs 12Mi  end unknown: the node was booted since")
    assert (blank, totals.split()) == ("", ["POD", "PAUSES", "PAUSED", "LONGEST"])
    assert web.split() == ["default/web", "2", "1m14s", "1m05s"]
    assert job.split() == ["batch/job-7", "1", "0.0s", "0.0s", "1", "of", "unknown", "length"]


def test_a_terminal_shows_the_last_pauses_of_a_long_history(state: Path, monkeypatch: Patch) -> None:
    """A pipe has all of them, and so has a terminal with --since."""
    note(state, *(one for n in (3, 2, 1) for one in (paused(100 * n, n), resumed(100 * n - 50, n, 9))))
    monkeypatch.setattr("cgpause.cli.history._READABLE", 2)
    assert sum("headroom: fits" in line for line in show(state)) == 3

    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert sum("headroom: fits" in line for line in show(state, "--since", "1h")) == 3
    result = invoke("--state-dir", str(state), "history")
    assert result.stderr == "cgpause: the last 2 of 3 pauses; --since, or a pipe, shows more\n"
    found = [line for line in result.stdout.splitlines() if "headroom: fits" in line]
    assert [line[:19] for line in found] == [f"{datetime.fromtimestamp(NOW - ago):%F %T}" for ago in (200, 100)]
    assert "3  " in result.stdout.splitlines()[-1], "the totals are of all pauses"


def test_json_has_utc_and_what_is_not_known_is_null(state: Path) -> None:
    note(state, paused(100, 1), resumed(91, 1, 9), paused(80, 2))

    found = document(state)

    assert (found["schema"], found["file"], found["since"]) == (1, str(state / HISTORY_FILE), None)
    ended, unknown = found["pauses"]
    assert datetime.fromisoformat(ended["start"]).timestamp() == paused(100, 1).at
    assert ended["start"].endswith("Z")
    assert ended | {"start": 0, "end": 0} == {
        "pod": "default/web",
        "uid": "u1",
        "state": "ended",
        "start": 0,
        "end": 0,
        "paused_s": 9,
        "mechanism": "throttle",
        "owner": "daemon",
        "reason": "needs 12Mi",
        "result": "headroom",
        "end_reason": "fits again",
        "cpu_max": "max 100000",
        "memory_current_bytes": 7,
    }
    assert (unknown["state"], unknown["end"], unknown["paused_s"], unknown["result"]) == ("unknown", None, None, None)
    assert found["totals"] == [
        {"pod": "default/web", "uids": ["u1"], "pauses": 2, "paused_s": 9, "longest_s": 9, "active": 0, "unknown": 1}
    ]


@pytest.mark.parametrize("paused_s", [1e17, 9.2e18, 1e12])
def test_a_length_that_cannot_be_is_no_traceback(state: Path, paused_s: float) -> None:
    note(state, resumed(91, 1, paused_s))

    assert show(state)[1].startswith(f"{datetime.fromtimestamp(0):%Y-%m-%d %H:%M:%S}")
    assert document(state)["pauses"][0]["start"] == "1970-01-01T00:00:00.000Z"


def test_since_and_pod_choose(state: Path) -> None:
    old_s = 20 * 86_400  # NOW is the time at which pytest collected this file, perhaps hours ago
    note(state, paused(old_s, 1), resumed(old_s - 9, 1, 9), paused(80, 2, pod="batch/job-7", uid="u2"))

    assert [pause["uid"] for pause in document(state, "--since", "10d")["pauses"]] == ["u2"]
    assert [pause["uid"] for pause in document(state, "--since", "30d")["pauses"]] == ["u1", "u2"]
    assert [pause["uid"] for pause in document(state, "--pod", "web")["pauses"]] == ["u1"]
    assert document(state, "--since", "1h")["since"].endswith("Z")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--since", "\x1b[31m"], 2, r"cgpause: --since: invalid time '\x1b[31m': use 10m, 2h, "),
        (["--since", "\udcff"], 2, r"--since: invalid time '\udcff'"),
        (["--pod", "default/wbe"], 3, "no pause of 'default/wbe'; the nearest is default/web (cgpause history lists"),
        (["--pod", "\x1b[31m"], 3, r"no pause of '\x1b[31m'"),
    ],
)
def test_a_mistake_says_what_would_be_right(state: Path, args: list[str], code: int, said: str) -> None:
    note(state, paused(100, 1))

    result = invoke("--state-dir", str(state), "history", *args)

    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_where_there_is_nothing_it_says_why(tmp_path: Path, state: Path) -> None:
    (line,) = show(tmp_path / "absent")
    assert line.startswith(f"no history: there is no folder {tmp_path}/absent. The installer makes it")
    assert "restart the unit" in line
    (line,) = show(state)
    assert line.startswith(f"no history: there is no {state}/history.jsonl. No pod was paused here yet")
    (odd := tmp_path / "o\x1bdd").mkdir()
    (line,) = show(odd)
    assert line.startswith(rf"no history: there is no {tmp_path}/o\x1bdd/history.jsonl.")
    note(state, Event(1.0, "future", "a/b", "u", "x"))
    assert show(state) == [f"{state}/history.jsonl has no pause in it"]
    assert show(state, "--pod", "web") == [f"{state}/history.jsonl has no pause in it"]
    note(state, paused(7200, 1), resumed(7191, 1, 9))
    has = f"{state}/history.jsonl has pauses (1)"
    assert show(state, "--since", "1h") == [f"no pause fits --since 1h; without it {has}"]
    assert show(state, "-n", "batch") == [f"no pause fits --namespace batch; without it {has}"]
    assert show(state, "--since", "1h", "--pod", "web", "-n", "default") == [
        f"no pause fits --since 1h --pod web --namespace default; without them {has}"
    ]


def test_another_tree_has_no_history_but_the_one_that_is_named(tree: FakeTree, state: Path, monkeypatch: Patch) -> None:
    note(state, paused(100, 1))
    monkeypatch.setattr("cgpause.core.paths.DEFAULT_STATE_DIR", str(state))
    said = "no history: none is kept for another tree without --state-dir\n"

    result = run(tree, "history")
    assert (result.exit_code, result.stdout, result.stderr) == (0, said, "")
    result = run(tree, "history", "-ojson")
    assert (result.exit_code, result.stderr) == (0, said)
    assert (json.loads(result.stdout)["file"], json.loads(result.stdout)["pauses"]) == (None, [])
    assert invoke("history").stdout.startswith("START")
    assert len(document(state, tree=tree)["pauses"]) == 1


def test_for_machines_nothing_is_an_empty_document(state: Path) -> None:
    result = invoke("--state-dir", str(state), "history", "-ojson")

    file = f"{state}/history.jsonl"
    assert json.loads(result.stdout) == {"schema": 1, "file": file, "since": None, "pauses": [], "totals": []}
    assert result.stderr.startswith("no history: ")


@pytest.mark.parametrize(("command", "left"), [("pause web job", 2), ("resume web job", 0), ("resume --all", 0)])
def test_every_pod_is_dealt_with_and_told_before_anything_waits_for_the_disk(
    tree: FakeTree, state: Path, monkeypatch: Patch, command: str, left: int
) -> None:
    for name in ("web", "job"):
        pod = tree.add_pod(name)
        if command.startswith("resume"):
            pause_pod(tree.root, pod, Owner.MANUAL)
    lines: list[str] = []
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(typer, "echo", lambda line, **_: lines.append(line))
    monkeypatch.setattr(history, "append", lambda *_: found.append((len(lines), len(records_left(tree.root)))))

    assert run(tree, "--state-dir", str(state), *command.split()).exit_code == 0

    assert found == [(2, left)] * 2


def test_without_permission_it_says_who_has_it(open_folder: Path) -> None:
    state = open_folder / "state"
    state.mkdir(0o700)
    note(state, paused(100, 1))
    state.chmod(0)

    with as_nobody():
        result = invoke("--state-dir", str(state), "history")

    assert result.exit_code == 5
    assert f"cannot read {state}/history.jsonl: Permission denied; root may: run as root (sudo)" in result.stderr


def test_names_are_fit_for_a_terminal(state: Path) -> None:
    note(state, Event(1.0, "paused", HOSTILE, "u", HOSTILE, mechanism=HOSTILE, owner=HOSTILE, since_ns=1, boot="b"))

    shown = "\n".join(show(state))

    assert "\x1b" not in shown
    assert r"a\x1b[31m\n\udcff" in shown
    assert len(shown.splitlines()) == 5


# --- by hand ---------------------------------------------------------------------------------------------------------


def by_hand(tree: FakeTree, state: Path, *args: str) -> None:
    result = run(tree, "--state-dir", str(state), *args)
    assert (result.exit_code, result.stderr) == (0, ""), result.output


def test_a_pause_by_hand_is_in_it_from_its_first_moment_to_its_last(tree: FakeTree, web: Path, state: Path) -> None:
    by_hand(tree, state, "pause", "default/web")
    by_hand(tree, state, "pause", "default/web")  # changes nothing

    (running,) = document(state, tree=tree)["pauses"]
    by_hand(tree, state, "resume", "default/web")
    by_hand(tree, state, "resume", "default/web")
    (ended,) = document(state, tree=tree)["pauses"]

    assert (running["state"], running["owner"], running["reason"]) == ("active", "manual", "cgpause pause by tester")
    assert running["paused_s"] >= 0
    assert (ended["state"], ended["result"], ended["end_reason"]) == ("ended", "operator", "cgpause resume by tester")
    assert (ended["start"], ended["cpu_max"]) == (running["start"], "50000 100000")
    assert len((state / HISTORY_FILE).read_text().splitlines()) == 2


def test_the_original_is_in_it_even_if_another_program_wrote_since(tree: FakeTree, web: Path, state: Path) -> None:
    by_hand(tree, state, "pause", "default/web")
    (web / "cpu.max").write_text("70000 100000\n")
    by_hand(tree, state, "resume", "default/web")
    (ended,) = document(state, tree=tree)["pauses"]
    assert (ended["state"], ended["cpu_max"]) == ("ended", "50000 100000")


def test_who_resumes_all_is_in_it_with_every_pod(tree: FakeTree, state: Path) -> None:
    for name, owner in (("web", Owner.MANUAL), ("job", Owner.DAEMON)):
        pause_pod(tree.root, tree.add_pod(name), owner)

    by_hand(tree, state, "resume", "--all")

    found = document(state)["pauses"]
    assert [(pause["pod"], pause["owner"], pause["result"]) for pause in found] == [
        ("default/web", "manual", "operator"),
        ("default/job", "daemon", "operator"),
    ]
    assert {pause["end_reason"] for pause in found} == {"cgpause resume --all by tester"}


def test_a_pause_that_somebody_undid_by_hand_has_an_unknown_end(tree: FakeTree, web: Path, state: Path) -> None:
    by_hand(tree, state, "pause", "web")
    os.removexattr(web, "user.cgpause")

    (found,) = document(state, tree=tree)["pauses"]

    assert (found["state"], found["paused_s"]) == ("unknown", None)
    assert show(state, tree=tree)[1].endswith("end unknown: not recorded")


def test_a_dry_run_and_a_tree_of_ones_own_leave_it_alone(tree: FakeTree, state: Path, tmp_path: Path) -> None:
    tree.add_pod("web")
    by_hand(tree, state, "pause", "web", "--dry-run")
    (tmp_path / "no-state").mkdir()
    run(tree, "pause", "web")
    by_hand(tree, state, "resume", "web", "--dry-run")
    by_hand(tree, state, "resume", "--all", "--dry-run")

    assert list(state.iterdir()) == list((tmp_path / "no-state").iterdir()) == []


def test_a_history_that_is_switched_off_stays_off_by_hand(tree: FakeTree, state: Path) -> None:
    tree.add_pod("web")
    options = with_config(tree, "[history]\nmax_mib = 0\n")

    by_hand(tree, state, *options, "pause", "web")
    by_hand(tree, state, *options, "resume", "web")

    assert list(state.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_does_not_keep_a_pod_paused(
    tree: FakeTree, web: Path, state: Path, monkeypatch: Patch, code: int
) -> None:
    monkeypatch.setattr(history, "append", refusing(code))
    for command in (["pause", "web"], ["resume", "web"], ["pause", "web"], ["resume", "--all"]):
        result = run(tree, "--state-dir", str(state), *command)
        assert result.exit_code == 0
        assert result.stderr == f"note: this is not in the history: {state}/history.jsonl: {os.strerror(code)}\n"

    assert (web / "cpu.max").read_text() == "50000 100000\n"
