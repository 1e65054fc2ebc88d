"""The container's first process, which does for the daemon the work of systemd."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.daemons import HIGH, NO_SACRIFICE, Running
from helpers.fixtures import Log, Patch
from helpers.refusals import refusing
from helpers.trees import FakeTree, pause_pod, records_left, wait_until

from cgpause import contained
from cgpause.kernel.cgroupfs import Cgroup

UNIT = (Path(__file__).parents[2] / "systemd/cgpause.service").read_text()
# Sends the daemon's messages, and then runs the code of a test.
CHILD = """
import os, signal, socket, sys, time
speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def say(text):
    speaker.sendto(text.encode(), "\\0" + os.environ["NOTIFY_SOCKET"][1:])
"""


Supervise = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    """Return a function that starts a process that supervises such a program."""
    with ExitStack() as stack:

        def start(
            child: str, *, ready_path: str | None = None, watchdog_s: float = 60, abort_s: float = 60
        ) -> subprocess.Popen[str]:
            command = [sys.executable, "-I", "-S", "-c", CHILD + textwrap.dedent(child)]
            program = f"""
import sys
from cgpause import contained
from cgpause.kernel import logfmt
logfmt.set_up(verbose=False)
supervisor = contained.Supervisor({command!r}, {ready_path!r}, watchdog_s={watchdog_s}, abort_s={abort_s})
sys.exit(supervisor.run())
"""
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(
    ("child", "code"), [("sys.exit(0)", 0), ("sys.exit(6)", 6), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_it_ends_as_the_daemon_ended(supervise: Supervise, child: str, code: int) -> None:
    process = supervise(child)

    process.communicate(timeout=60)

    assert process.returncode == code


@pytest.mark.parametrize(
    ("sent", "received"), [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGTERM"), ("SIGHUP", "SIGHUP")], ids=str
)
def test_a_stop_and_a_reload_are_handed_on_and_the_end_awaited(supervise: Supervise, sent: str, received: str) -> None:
    process = supervise(f"""
        def obey(*_):
            time.sleep(0.5)
            os.write(1, b"obeyed\\n")
            sys.exit(0)
        signal.signal(signal.{received}, obey)
        say("READY=1")
        print("ready", flush=True)
        while True:
            time.sleep(0.05)  # a signal just before a long sleep would be handled after it
    """)
    assert line(process) == "ready"

    process.send_signal(signal.Signals[sent])

    said, complaint = process.communicate(timeout=60)
    assert (said, complaint) == ("obeyed\n", "")
    assert process.returncode == 0


def test_the_ready_file_exists_from_the_daemons_first_message_to_its_end(supervise: Supervise, tmp_path: Path) -> None:
    ready, said_ready, ended = (tmp_path / name for name in ("ready", "said-ready", "ended"))
    ready.touch()  # from a container that was killed
    process = supervise(
        f"""
        import os.path
        def until(name):
            while not os.path.exists(name):
                time.sleep(0.02)
        print(os.path.exists({str(ready)!r}), flush=True)
        until({str(said_ready)!r})
        say("READY=1")
        until({str(ended)!r})
    """,
        ready_path=str(ready),
    )
    assert line(process) == "False"

    said_ready.touch()
    wait_until(ready.exists, "the ready file")
    ended.touch()

    assert process.wait(60) == 0
    assert not ready.exists()


def test_a_ready_file_that_cannot_be_written_stops_nothing(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = supervise('say("READY=1")', ready_path=str(tmp_path / "file/ready"))

    _, complaint = process.communicate(timeout=60)

    assert process.returncode == 0
    assert f"readiness not shown path={tmp_path}/file/ready" in complaint


@pytest.mark.parametrize(
    ("options", "path"),
    [
        pytest.param(["--run-dir", "/run/cgpause"], "/run/cgpause/ready", id="as-in-the-manifest"),
        pytest.param(["--cgroup-root", "/tree"], None, id="nothing-published"),
    ],
)
def test_the_ready_file_lies_beside_the_figures(options: list[str], path: str | None) -> None:
    assert contained.ready_path(options) == path


@pytest.mark.parametrize(("on_abort", "code"), [("SIG_DFL", 128 + signal.SIGABRT), ("SIG_IGN", 128 + signal.SIGKILL)])
def test_a_daemon_that_falls_silent_is_aborted_and_then_killed(supervise: Supervise, on_abort: str, code: int) -> None:
    process = supervise(
        f"""
        signal.signal(signal.SIGABRT, signal.{on_abort})
        say("READY=1")
        for _ in range(4):
            time.sleep(0.5)
            say("WATCHDOG=1")
        print("silent now", flush=True)
        time.sleep(600)
    """,
        watchdog_s=5,
        abort_s=1 if on_abort == "SIG_IGN" else 60,  # a busy machine may need seconds for a process to die
    )
    assert line(process) == "silent now"

    _, said = process.communicate(timeout=120)

    assert process.returncode == code
    assert "the daemon hangs" in said


def test_nobody_else_can_speak_for_the_daemon(supervise: Supervise) -> None:
    """A sidecar shares the network namespace, and thus the names of such sockets."""
    process = supervise(
        """
        say("READY=1")
        daemon = os.getpid()
        if os.fork() == 0:
            while os.getppid() == daemon:
                say("WATCHDOG=1")
                time.sleep(0.1)
            os._exit(0)
        time.sleep(600)
    """,
        watchdog_s=1,
    )

    assert process.wait(60) == 128 + signal.SIGABRT


def test_the_daemon_stops_when_its_supervisor_is_killed(supervise: Supervise) -> None:
    process = supervise("""
        signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"told to stop\\n"), sys.exit(0)))
        print("ready", flush=True)
        time.sleep(600)
    """)
    assert line(process) == "ready"

    process.kill()

    assert line(process) == "told to stop"
    process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("ours", "units"),
    [
        ("START_S", "TimeoutStartSec"),
        ("WATCHDOG_S", "WatchdogSec"),
        ("ABORT_S", "TimeoutAbortSec"),
        ("STOP_S", "TimeoutStopSec"),
    ],
)
def test_its_patience_is_the_units(ours: str, units: str) -> None:
    assert re.findall(rf"^{units}=(\d+)s$", UNIT, re.MULTILINE) == [f"{getattr(contained, ours):g}"]


def test_it_starts_the_daemon_as_the_unit_does() -> None:
    [words] = re.findall(r"^ExecStart=\S+ (.*) \$CGPAUSE_OPTIONS$", UNIT, re.MULTILINE)

    assert contained.daemon_command(["--dry-run"]) == [sys.executable, *words.split(), "--dry-run"]


@pytest.fixture
def tree(tmp_path: Path) -> FakeTree:
    tree = FakeTree(tmp_path)
    (tree.root / "memory.reclaim").touch()
    return tree


def daemon_pid(it: Running) -> int:
    """Return the process id of the supervisor's daemon."""
    [pid] = Path(f"/proc/{it.process.pid}/task/{it.process.pid}/children").read_text().split()
    return int(pid)


@pytest.fixture
def paused(tree: FakeTree) -> Iterator[Running]:
    """Start both and wait until the daemon has paused default/web."""
    pod = tree.add_pod("web", 100 << 20)
    it = Running(tree, NO_SACRIFICE, module="cgpause.contained")
    it.wait_for_log("started ")
    tree.set_used(HIGH)
    it.wait_for_log(" paused pod=default/web")
    assert records_left(tree.root) == [pod]
    yield it
    it.process.kill()
    it.process.wait()


def test_what_a_killed_daemon_had_paused_is_resumed_at_once(tree: FakeTree, paused: Running) -> None:
    os.kill(daemon_pid(paused), signal.SIGKILL)

    assert paused.process.wait(60) == 137
    assert records_left(tree.root) == []
    assert "cgpause left it paused" in paused.log


@pytest.mark.parametrize("option", ["--dry-run", None], ids=["that-looks-on", "turned-away"])
def test_one_beside_another_leaves_its_pods_as_they_are(tree: FakeTree, paused: Running, option: str | None) -> None:
    records = records_left(tree.root)
    # Check the log too: a first daemon that resumes and pauses again would leave the same records.
    paused_log = paused.log
    second = subprocess.Popen(
        [
            *[sys.executable, "-m", "cgpause.contained", "--config", str(tree.folder / "config.toml")],
            *["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir), *([option] if option else [])],
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert second.stderr is not None
    if option:
        assert any("started " in said for said in second.stderr)
        second.send_signal(signal.SIGTERM)
    _, said = second.communicate(timeout=60)

    assert second.returncode == (0 if option else 1)
    assert option or "nothing is resumed" in said
    assert records_left(tree.root) == records
    assert "resumed" not in paused.log.removeprefix(paused_log)


def kill_all(paused: Running) -> None:
    """Kill the supervisor and its daemon, so that nothing resumes a pod."""
    pid = daemon_pid(paused)
    os.kill(pid, signal.SIGSTOP)  # or it would resume them after its supervisor's end
    paused.process.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), "the daemon to be gone")  # nobody may reap it
    assert len(records_left(paused.tree.root)) == 1


def test_a_dry_run_leaves_nobody_paused(tree: FakeTree, paused: Running) -> None:
    """Its daemon writes nothing, and an operator may start it because the one before was killed."""
    kill_all(paused)
    looks_on = Running(tree, "", "--dry-run", module="cgpause.contained")
    looks_on.wait_for_log("started ")
    assert records_left(tree.root) == []
    assert looks_on.stop() == 0


def test_a_configuration_that_is_refused_leaves_nobody_paused(tree: FakeTree, paused: Running) -> None:
    """The next container has a broken ConfigMap, and every process of the one before was killed."""
    kill_all(paused)

    assert Running(tree, 'policy = "nonsense"\n', module="cgpause.contained").process.wait(60) == 2

    assert records_left(tree.root) == []


def test_a_daemon_that_cannot_be_started_leaves_no_pod_paused(tree: FakeTree) -> None:
    pause_pod(tree.root, tree.add_pod("web"))
    options = ["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)]
    program = f"""
from cgpause import contained
contained.daemon_command = lambda _: ["/nonexistent"]
contained.main({options!r})
"""

    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    assert "No such file or directory: '/nonexistent'" in ended.stderr
    assert records_left(tree.root) == []


def test_a_bug_in_the_clean_up_is_logged_and_ends_nothing(tree: FakeTree, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr("cgpause.restore.main", refusing(errno.EIO))

    contained.clean_up(["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)])

    assert "not everything could be resumed" in caplog.text


def test_the_lock_is_given_back(tree: FakeTree) -> None:
    contained.clean_up(["--cgroup-root", str(tree.root), "--log-dir", str(tree.log_dir)])

    with Cgroup(str(tree.root), "") as root:
        assert root.lock_for_daemon()
        root.unlock_for_daemon()
