"""`python -m cgpause.restore`: its messages, its history events and its exit codes."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fixtures import Capture, Patch
from helpers.ledgers import high_state
from helpers.restoring import brake
from helpers.trees import FakeTree, cpu_max, damage, lock_held, pause_pod, records_left

from cgpause import restore
from cgpause.core.clock import now_ns
from cgpause.core.errors import DaemonRunningError
from cgpause.core.model import Owner
from cgpause.core.paths import HISTORY_FILE
from cgpause.kernel.cgroupfs import DAEMON_FILE, Cgroup
from cgpause.kernel.find_daemon import DaemonState, FoundDaemon
from cgpause.ledger import high
from cgpause.ledger.ledger import LOCK_WAIT_S, Resumed, resume
from cgpause.restore import resume_all
from cgpause.telemetry import history


def test_main_resumes_all_and_says_what(tree: FakeTree, capsys: Capture) -> None:
    pod = pause_pod(tree.root, tree.add_pod("daemon", cpu_max="50000 100000"))
    pause_pod(tree.root, tree.add_pod("manual"), owner=Owner.MANUAL)

    assert restore.main(["--cgroup-root", str(tree.root)]) == 0

    assert records_left(tree.root) == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert f" resumed pod={tree.uids['daemon']} " in lines[0]
    assert f" cgroup={pod.relative_to(tree.root)} " in lines[0]
    assert 'cpu_max_to="50000 100000"' in lines[0]


@pytest.mark.parametrize(
    ("options", "owners"),
    [
        ([], dict.fromkeys(("daemon", "manual"), ("operator", "everything is resumed"))),
        (["--daemon-only"], {"daemon": ("crashed", "cgpause left it paused"), "late": ("expired", "pause expired")}),
    ],
    ids=["all", "daemon-only"],
)
def test_main_notes_what_it_resumed_with_its_name_and_the_reason(
    tree: FakeTree, options: list[str], owners: dict[str, tuple[str, str]]
) -> None:
    state = tree.folder / "state"
    state.mkdir()
    for name in owners:
        owner, at_ns = Owner.DAEMON if name == "daemon" else Owner.MANUAL, now_ns()
        expires_ns = at_ns - 10**9 if name == "late" else None
        pause_pod(tree.root, tree.add_pod(name), owner, since_ns=at_ns - 10**10, expires_ns=expires_ns)
    place = ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir), "--state-dir", str(state)]

    assert restore.main([*place, *options]) == 0

    found = list(history.read(str(state / HISTORY_FILE)))
    assert {event.pod.removeprefix("default/"): (event.result, event.reason) for event in found} == owners
    assert all(event.paused_s is not None and event.paused_s >= 10 for event in found)
    assert {event.pause_reason for event in found} == {"test"}


def test_a_history_that_cannot_be_written_changes_nothing_for_who_restores(tree: FakeTree, capsys: Capture) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"))
    place = ["--cgroup-root", str(tree.root), "--state-dir", str(tree.folder / "absent")]

    assert restore.main([*place, "--daemon-only"]) == 0

    assert cpu_max(pod) == "50000 100000"
    assert "warning: history not written" in capsys.readouterr().err


@contextlib.contextmanager
def daemon_at_work(tree: FakeTree) -> Iterator[subprocess.Popen[str]]:
    """Run another process that has the lock of this tree's daemon."""
    (tree.root / DAEMON_FILE).touch()
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-I", "-c", code, str(tree.root / DAEMON_FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
        if process.poll() is None:
            process.communicate("\n")


def test_daemon_only_leaves_what_another_daemon_holds(tree: FakeTree, monkeypatch: Patch, capsys: Capture) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web"))
    brake(tree.kubepods)
    monkeypatch.setattr(restore, "_cgroup_of", lambda pid: str(pid).encode())  # each process has its own cgroup
    command = ["--cgroup-root", str(tree.root), "--daemon-only"]

    with daemon_at_work(tree):
        assert restore.main(command) == 0

        assert records_left(tree.root) == [pod]
        assert high_state(tree.kubepods) == (str(1 << 30), True)
        assert "nothing is resumed" in capsys.readouterr().err

    assert restore.main(command) == 0
    assert records_left(tree.root) == []
    assert high_state(tree.kubepods) == ("max", False)


def test_daemon_only_resumes_what_the_daemon_of_its_own_unit_holds(tree: FakeTree, capsys: Capture) -> None:
    """This helps a preStop hook if the daemon hangs, and ExecStopPost= if a hanging disk keeps the daemon alive."""
    pause_pod(tree.root, tree.add_pod("web"))

    with daemon_at_work(tree):
        assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 0

    assert records_left(tree.root) == []
    assert 'reason="cgpause stops"' in capsys.readouterr().err, "it did not crash"


def test_daemon_only_resumes_the_pods_of_a_daemon_that_ends_meanwhile(tree: FakeTree, monkeypatch: Patch) -> None:
    pause_pod(tree.root, tree.add_pod("web"))

    with daemon_at_work(tree) as daemon:

        def find_after_its_end(_root: str) -> FoundDaemon:
            daemon.communicate("\n")
            return FoundDaemon(DaemonState.STOPPED)

        monkeypatch.setattr(restore, "find_daemon", find_after_its_end)
        assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 0

    assert records_left(tree.root) == []


def test_no_daemon_begins_to_pause_what_is_being_resumed(tree: FakeTree, monkeypatch: Patch) -> None:
    (tree.root / DAEMON_FILE).touch()
    refused: list[bool] = []

    def resume_nothing(root: str, **_: object) -> list[object]:
        with Cgroup(root, "") as top, contextlib.suppress(DaemonRunningError):
            top.lock_for_daemon()
            return []
        refused.append(True)
        return []

    monkeypatch.setattr(restore, "resume_all", resume_nothing)

    assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only"]) == 0
    assert refused == [True]
    with Cgroup(str(tree.root), "") as top:
        assert top.lock_for_daemon()
        top.unlock_for_daemon()


def test_a_dry_run_is_refused_where_it_would_not_be_one(tree: FakeTree, capsys: Capture) -> None:
    """With --daemon-only, the option is the daemon's: pauses of an earlier daemon are still resumed."""
    pod = pause_pod(tree.root, tree.add_pod("web"))

    with pytest.raises(SystemExit, match="2"):
        restore.main(["--cgroup-root", str(tree.root), "--dry-run"])
    assert "cgpause resume --all --dry-run" in capsys.readouterr().err
    assert records_left(tree.root) == [pod]

    assert restore.main(["--cgroup-root", str(tree.root), "--daemon-only", "--dry-run"]) == 0
    assert records_left(tree.root) == []


@pytest.mark.parametrize(
    "mistake",
    [
        ["--confg", "/x"],
        ["--state-dir", ""],
        ["--state-dir="],
        ["word"],
        ["--version"],
        ["--log-dir"],
        ["--config", "-x"],
    ],
    ids=str,
)
def test_a_wrong_option_of_the_unit_leaves_no_pod_paused(tree: FakeTree, capsys: Capture, mistake: list[str]) -> None:
    """An operator changes CGPAUSE_OPTIONS while the daemon runs; then the daemon is killed."""
    pause_pod(tree.root, tree.add_pod("web"))

    assert restore.main(["--daemon-only", "--cgroup-root", str(tree.root), *mistake]) == 0

    assert records_left(tree.root) == []
    assert f"words passed over that are no options words={mistake[0]}" in capsys.readouterr().err.replace('"', "")
    with pytest.raises(SystemExit):
        restore.main(["--cgroup-root", str(tree.root), *mistake])


def test_those_that_take_long_come_last_and_their_time_is_bounded(
    tree: FakeTree, no_systemd: None, monkeypatch: Patch
) -> None:
    """systemd ends ExecStopPost= after 30 s; a dozen locked pods must not take that time from all others."""
    pods = [pause_pod(tree.root, tree.add_pod(f"pod-{n}")) for n in range(6)]
    damage(pods[0])
    brake(tree.kubepods)
    waits: list[float] = []

    def waiting(cgroup: Cgroup, *, wait_s: float = LOCK_WAIT_S, **options: Any) -> Resumed | None:  # noqa: ANN401
        waits.append(wait_s)
        return resume(cgroup, wait_s=0, **options)

    clock = SimpleNamespace(monotonic=lambda: 10 * waits.count(LOCK_WAIT_S))
    monkeypatch.setattr(restore, "resume", waiting)
    monkeypatch.setattr(restore, "time", clock)
    with contextlib.ExitStack() as stack:
        for pod in pods[1:4]:
            stack.enter_context(lock_held(pod))
        outcomes = resume_all(str(tree.root))
    done = [outcome.path for outcome in outcomes if outcome.error is None]
    failed = [outcome.path for outcome in outcomes if outcome.error is not None]
    assert done == [str(path.relative_to(tree.root)) for path in (*pods[4:], tree.kubepods)]
    assert failed == [str(path.relative_to(tree.root)) for path in pods[:4]]
    assert [outcome.path for outcome in outcomes] == done + failed
    # The damaged pod and the first locked pod wait 10 s each; then the time for waiting is used up.
    assert waits == [0] * 6 + [LOCK_WAIT_S] * 2 + [0] * 2


def test_what_failed_is_said_before_anything_waits_for_the_disk(
    tree: FakeTree, no_systemd: None, capsys: Capture, monkeypatch: Patch
) -> None:
    for name in ("web", "job"):
        pause_pod(tree.root, tree.add_pod(name))
    bad = pause_pod(tree.root, tree.add_pod("bad"))
    damage(bad)
    said: list[str] = []
    monkeypatch.setattr(history, "append", lambda *_: said.append(capsys.readouterr().err))

    assert restore.main(["--cgroup-root", str(tree.root), "--state-dir", str(tree.folder)]) == 6

    assert said[0].count(" resumed pod=") == 2
    assert f"could not resume cgroup={bad.relative_to(tree.root)} error=" in said[0]
    assert said[1:] == [""]


def test_main_exits_1_without_cgroup_v2(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("cgpause.kernel.cgroupfs.open", lambda *_: io.BytesIO(b""), raising=False)

    assert restore.main([]) == 1
    assert "no cgroup v2 is mounted here" in capsys.readouterr().err


def test_main_exits_1_without_its_cgroup_root_and_forges_no_log_line(tmp_path: Path, capsys: Capture) -> None:
    """The function's docstring and `cgpause resume --all` promise this."""
    assert restore.main(["--cgroup-root", str(tmp_path / "absent\nresumed cgroup=all")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "absent") in line


# --- memory.high -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--daemon-only"]], ids=["all", "daemon-only"])
def test_memory_high_of_every_tree_named_like_kubepods_comes_back(
    options: list[str], tree: FakeTree, capsys: Capture
) -> None:
    nested = tree.root / "kubelet.slice/kubelet-kubepods.slice"
    stale = tree.root / "kubepods"
    untouched = tree.root / "other.slice" / "kubepods.slice"
    for path in (nested, stale, untouched):
        path.mkdir(parents=True)
        (path / "memory.high").write_text("2147483648\n")
    for path in (tree.kubepods, nested, stale):
        brake(path, "2147483648" if path == nested else "max")
    (stale / "memory.high").write_text("4096\n")

    assert restore.main(["--cgroup-root", str(tree.root), *options]) == 0

    found = [high_state(path) for path in (tree.kubepods, nested, stale, untouched)]
    assert found == [("max", False), ("2147483648", False), ("4096", False), ("2147483648", False)]
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "info: released memory.high cgroup=kubelet.slice/kubelet-kubepods.slice memory_high_to=2147483648",
        "info: released memory.high cgroup=kubepods memory_high_to=4096 foreign=yes",
        "info: released memory.high cgroup=kubepods.slice memory_high_to=max",
    ]


def test_memory_high_that_cannot_be_restored_is_a_failure_and_stops_nobody(tree: FakeTree, capsys: Capture) -> None:
    pod = pause_pod(tree.root, tree.add_pod("web", cpu_max="50000 100000"))
    brake(tree.kubepods)
    damage(tree.kubepods, high.XATTR)
    stale = tree.root / "kubepods"
    stale.mkdir()
    brake(stale)

    assert restore.main(["--cgroup-root", str(tree.root)]) == 6

    assert cpu_max(pod) == "50000 100000"
    assert high_state(stale) == ("max", False)
    assert "could not resume cgroup=kubepods.slice error=" in capsys.readouterr().err
