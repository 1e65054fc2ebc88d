"""Unit and installer under a real systemd, on pods made as kubelet makes them: slices with scopes in them.

The tests are one story and build on each other: install, pressure, every way for a daemon to end, uninstall. They
assert order and outcome, never speed; the guest may be ten times slower than a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import make_uid, wait_until
from vm.slices import (
    CGROUP,
    CONFIG,
    CONFIG_TEXT,
    KUBEPODS,
    PAUSED,
    REPO,
    STATE,
    UNIT_CGROUP,
    WHEELS,
    Journal,
    Node,
    kill_and_wait_for_the_next,
    main_pid,
    metrics,
    node_of_slices,
    run,
    serves,
    show,
    wait_for_another,
)

from cgpause.ledger import high
from cgpause.ledger.record import XATTR
from cgpause.telemetry.events import MESSAGE_IDS

PREFIX = Path("/usr/local/lib/cgpause")
COMMAND = Path("/usr/local/bin/cgpause")
UNIT = Path("/etc/systemd/system/cgpause.service")
METRICS_UNIT = Path("/etc/systemd/system/cgpause-metrics.service")
RUN = Path("/run/cgpause")
SHARED = [
    Path("/etc/fish/completions/cgpause.fish"),
    Path("/usr/local/share/bash-completion/completions/cgpause"),
    Path("/usr/local/share/man/man1/cgpause.1"),
    Path("/usr/local/share/man/man5/cgpause.toml.5"),
    Path("/usr/local/share/zsh/site-functions/_cgpause"),
]
CLEANED_UP = 'reason="cgpause left it paused"'


def install(*options: str, status: int = 0) -> str:
    return run(REPO / "scripts/install", *options, status=status)


def pauses(*options: str) -> list[dict[str, object]]:
    """Return the pauses that `cgpause history` prints."""
    found: list[dict[str, object]] = json.loads(run(COMMAND, "history", "-ojson", *options))["pauses"]
    return found


def last_pause(name: str, state: str) -> dict[str, object]:
    """Return a pod's last pause once the history has it in this state; that is after the write tests wait for."""
    found: dict[str, object] = {}

    def is_noted() -> bool:
        nonlocal found
        found = next((pause for pause in reversed(pauses()) if pause["pod"] == name), {})
        return found.get("state") == state

    wait_until(is_noted, f"the history to have {name} {state}")
    return found


def systemd_is_up_to_date(*units: str) -> bool:
    """Return True if systemctl needs no daemon-reload; otherwise it would ask for one at each call."""
    return {show("NeedDaemonReload", unit) for unit in ("cgpause", *units)} == {"no"}


@contextlib.contextmanager
def unit_options(options: str) -> Iterator[None]:
    """Set these options by the drop-in of docs/operations.md; afterwards restart the unit without them."""
    path = Path(f"{UNIT}.d/override.conf")
    path.parent.mkdir()
    path.write_text(f'[Service]\nEnvironment="CGPAUSE_OPTIONS={options}"\n')
    try:
        run("systemctl", "daemon-reload")
        yield
    finally:
        shutil.rmtree(path.parent)
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", "cgpause")


@contextlib.contextmanager
def python_upgraded(how: str) -> Iterator[None]:
    """Break the virtual environment as a distribution upgrade does: its Python is gone, or is a later version."""
    current = (PREFIX / "current").resolve()
    [lib] = current.glob("lib/python3.*")
    target = os.readlink(current / "bin/python")
    if how == "gone":
        (current / "bin/python").unlink()
        (current / "bin/python").symlink_to("/usr/bin/python3.1")
    else:
        lib.rename(lib.with_name("python3.1"))
    try:
        yield
    finally:
        if how == "gone":
            (current / "bin/python").unlink()
            (current / "bin/python").symlink_to(target)
        else:
            lib.with_name("python3.1").rename(lib)


def entries(*matches: str) -> list[dict[str, str]]:
    """Return the unit's matching journal entries, with their fields."""
    run("journalctl", "--sync")
    return [json.loads(line) for line in run("journalctl", "-q", "-o", "json", "--unit=cgpause", *matches).splitlines()]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_of_slices() as node:
        yield node


@pytest.fixture(scope="module")
def installed(node: Node) -> str:  # pods first, because the daemon does not pause a new pod for a while
    """Install on a node that never had cgpause; return the installer's output."""
    said = install("--wheels", WHEELS)
    assert CONFIG.read_bytes() == (REPO / "systemd/config.toml").read_bytes()
    return said


@pytest.fixture
def calm(node: Node, installed: str) -> Iterator[Node]:
    with node.kept_calm() as calm:
        yield calm


def test_installer_says_what_a_node_lacks(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho is Python 3.9.2\nexit 1\n")
    old.chmod(0o755)
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    no_systemd = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run/systemd && exec "$0"')

    assert "as root" in run(*nobody, REPO / "scripts/install", status=1)
    assert "systemd is not running" in run(*no_systemd, REPO / "scripts/install", status=1)
    assert "is Python 3.9.2" in install("--python", str(old), status=1)
    assert "no such folder" in install("--wheels", "/nowhere", status=2)
    assert "no wheel of cgpause" in install("--wheels", str(tmp_path), status=2)
    assert "cannot see" in install("--prefix", "/root/cgpause", status=2)
    assert not UNIT.exists()
    assert not PREFIX.exists()


def test_installer_says_that_there_is_no_network_and_leaves_no_release() -> None:
    said = install(status=1)

    assert re.search(r"no network: use --wheels DIR; .*pip wheel -w DIR \. \(pip's output: (/tmp/\S+\.log)\)", said)
    assert not UNIT.exists()
    assert list(PREFIX.iterdir()) == []


def test_uninstall_where_nothing_is_installed_is_no_error() -> None:
    assert "nothing of cgpause is left" in install("--uninstall")


def test_install_starts_the_daemon_and_says_what_to_look_at(installed: str) -> None:
    assert show("ActiveState") == "active"
    assert show("UnitFileState") == "enabled"
    assert systemd_is_up_to_date()
    for command in ("systemctl status cgpause", "cgpause check", "journalctl -u cgpause"):
        assert command in installed


def test_manual_pages_and_completions_are_where_they_are_looked_for(installed: str) -> None:
    for path in SHARED:
        assert "cgpause" in path.read_text()
        assert path.is_symlink(), "one step of an upgrade moves them all"
    script = "source /usr/local/share/bash-completion/completions/cgpause; COMP_WORDS=(cgpause resu); COMP_CWORD=1"

    assert run("bash", "-c", f'{script}; _cgpause cgpause resu cgpause; echo "${{COMPREPLY[*]}}"') == "resume\n"


def test_daemon_has_what_its_unit_promises(installed: str) -> None:
    process = Path(f"/proc/{main_pid()}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)

    assert (process / "oom_score_adj").read_text().strip() == "-999"
    assert (UNIT_CGROUP / "memory.min").read_text().strip() == str(32 << 20)
    assert (UNIT_CGROUP / "cpu.weight").read_text().strip() == "1000"
    assert int(status["CapEff"], 16) == 1 << 24 | 1 << 19 | 1 << 2, "SYS_RESOURCE, SYS_PTRACE, DAC_READ_SEARCH"
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(status["VmLck"].split()[0]) > 0, "mlockall works without CAP_IPC_LOCK"
    assert int(status["VmRSS"].split()[0]) < 40 << 10, "a bound on leaks; scripts/bench has the real figure"
    assert os.readlink(process / "ns/net") != os.readlink("/proc/self/ns/net")
    mounts = {line.split()[4]: line.split()[5] for line in (process / "mountinfo").read_text().splitlines()}
    writable = {path for path, options in mounts.items() if options.split(",")[0] == "rw"}
    # systemd leaves /sys/fs/selinux to SELinux's own rules.
    assert {path for path in writable if path.startswith("/sys")} - {"/sys/fs/selinux"} == {"/sys/fs/cgroup"}
    assert {path for path in writable if not path.startswith(("/sys", "/dev", "/proc"))} == {str(STATE), str(RUN)}
    assert (STATE.stat().st_mode & 0o7777, STATE.stat().st_uid) == (0o700, 0)
    assert mounts["/proc/sys"].startswith("ro")


def test_hardening_takes_nothing_away_that_the_daemon_misses(installed: str) -> None:
    this_run = f"_SYSTEMD_INVOCATION_ID={show('InvocationID')}"
    said = run("journalctl", "-q", "-o", "cat", "--priority=warning", this_run)

    assert said == "", "no PSI trigger refused, memory locked, inotify there"


def test_second_install_keeps_the_configuration_and_changes_nothing(calm: Node) -> None:
    CONFIG.write_text(CONFIG_TEXT)
    before = main_pid()

    assert "in place already" in install("--wheels", WHEELS)

    assert CONFIG.read_text() == CONFIG_TEXT
    assert main_pid() == before
    assert systemd_is_up_to_date()


def test_install_over_a_bad_configuration_changes_nothing(calm: Node) -> None:
    before = (main_pid(), os.readlink(PREFIX / "current"))
    CONFIG.write_text(f"{CONFIG_TEXT}[watermark]\n")
    try:
        said = install("--wheels", WHEELS, status=2)
    finally:
        CONFIG.write_text(CONFIG_TEXT)

    assert f"{CONFIG}:" in said
    assert "nothing was changed" in said
    assert (main_pid(), os.readlink(PREFIX / "current")) == before


def test_install_checks_the_configuration_that_a_drop_in_names(calm: Node) -> None:
    before = (main_pid(), os.readlink(PREFIX / "current"))
    pool = CONFIG.with_name("pool-a.toml")
    pool.write_text(f"{CONFIG_TEXT}[watermark]\n")
    try:
        with unit_options(f"--verbose --config {pool}"):
            said = install("--wheels", WHEELS, status=2)
            after = (main_pid(), os.readlink(PREFIX / "current"))
    finally:
        pool.unlink()

    assert f"{pool}:" in said
    assert f"CGPAUSE_OPTIONS=--verbose --config {pool} " in said
    assert after == before


def test_reload_takes_a_good_configuration_and_keeps_the_old_one_over_a_bad_one(calm: Node) -> None:
    before = main_pid()
    journal = Journal()
    run("systemctl", "reload", "cgpause")
    journal.wait_for("configuration reloaded")

    CONFIG.write_text('policy = "nonsense"\n')
    try:
        journal = Journal()
        run("systemctl", "reload", "cgpause", status=1)
        journal.wait_for(f"{CONFIG}: policy: found")
        # The same holds for a signal without systemctl's check before it.
        run("systemctl", "kill", "--kill-who=main", "--signal=HUP", "cgpause")
        journal.wait_for(f"the old one stays: {CONFIG}: policy: found")
    finally:
        CONFIG.write_text(CONFIG_TEXT)

    assert show("ActiveState") == "active"
    assert main_pid() == before


def test_status_shows_how_the_node_is(calm: Node) -> None:
    assert re.search(
        r'Status: "4 pods, 0 paused; memory [0-9.]+ % used, \d+Mi left;', run("systemctl", "status", "cgpause")
    )


def test_pressure_pauses_in_ascending_order_and_recovery_restores_what_differs(calm: Node) -> None:
    journal = Journal()
    calm.tighten()
    calm.wait_paused()

    assert calm.filler.is_as_before(), "a rule protects it"
    assert [pod.record and pod.record["original_cpu_max"] for pod in calm.pods] == [
        "max 100000",
        "50000 100000",
        "200000 50000",
    ]
    paused = re.findall(r"^paused pod=default/(\w+) .*cpu_max_to=\"1001 100000\"", journal.text(), re.MULTILINE)
    assert paused == ["small", "medium", "large"]
    wait_until(lambda: "4 pods, 3 paused" in show("StatusText"), "the status line to say so")

    calm.relax()
    calm.wait_as_before()


def test_upgrade_while_pods_are_held_keeps_originals_and_manual_pauses(calm: Node) -> None:
    run(COMMAND, "pause", "default/small")
    calm.tighten()
    calm.wait_paused()
    old, before = (PREFIX / "current").resolve(), main_pid()
    # Another fingerprint makes the installer take this for another version.
    (old / "fingerprint").write_text("of the version before\n")

    install("--wheels", WHEELS)

    assert main_pid() not in (0, before)
    assert (PREFIX / "current").resolve() != old
    assert not old.exists()
    calm.wait_paused()
    assert calm.small.record is not None
    assert calm.small.record["owner"] == "manual"
    calm.relax()
    wait_until(lambda: calm.medium.is_as_before() and calm.large.is_as_before(), "the new daemon to resume them")
    assert calm.small.is_paused()
    run(COMMAND, "resume", "default/small")


def test_each_pause_is_in_the_history_and_in_the_journal_with_the_same_fields(calm: Node) -> None:
    calm.tighten()
    calm.wait_paused()
    running = last_pause("default/large", "active")
    calm.relax()
    calm.wait_as_before()

    ended = last_pause("default/large", "ended")
    assert pauses("--pod", calm.large.uid)[-1] == pauses("--pod", "large", "--since", "today")[-1] == ended
    assert (running["state"], running["end"], running["start"]) == ("active", None, ended["start"])
    assert (ended["result"], ended["owner"]) == ("room", "daemon")
    assert ended["mechanism"] in ("throttle", "freeze"), "of batch by how long it was paused"
    assert ended["cpu_max"] == calm.large.original
    assert (STATE / "history.jsonl").stat().st_mode & 0o777 == 0o600
    paused = entries("CGPAUSE_POD=default/large", f"MESSAGE_ID={MESSAGE_IDS['paused']}")[-1]
    resumed = entries("CGPAUSE_POD=default/large", f"MESSAGE_ID={MESSAGE_IDS['resumed']}")[-1]
    assert paused["CGPAUSE_REASON"] == resumed["CGPAUSE_PAUSE_REASON"] == ended["reason"]
    assert (resumed["CGPAUSE_RESULT"], resumed["CGPAUSE_PAUSED_S"]) == ("room", str(ended["paused_s"]))
    assert (paused["SYSLOG_IDENTIFIER"], paused["PRIORITY"], paused["_TRANSPORT"]) == ("cgpause", "6", "journal")
    assert paused["_SYSTEMD_UNIT"] == "cgpause.service"
    assert paused["MESSAGE"].startswith("paused pod=default/large uid=")


def test_what_an_operator_pauses_is_in_both_as_well(calm: Node) -> None:
    by_hand = ("CGPAUSE_POD=default/small", "CGPAUSE_OWNER=manual", "CGPAUSE_WHAT=resumed")
    before = len(entries(*by_hand))  # from earlier tests on this machine
    run(COMMAND, "pause", "default/small")
    run(COMMAND, "resume", "default/small")

    found = last_pause("default/small", "ended")
    assert (found["owner"], found["result"]) == ("manual", "operator")
    [resumed] = entries(*by_hand)[before:]
    assert resumed["CGPAUSE_REASON"] == found["end_reason"]


def test_a_full_or_read_only_disk_costs_the_history_and_nothing_else(calm: Node) -> None:
    run("systemctl", "stop", "cgpause")
    run("mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", STATE)
    try:
        run("systemctl", "start", "cgpause")
        filler = STATE / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        journal = Journal()
        pause_and_resume(calm)
        journal.wait_for('history not written file=/var/lib/cgpause/history.jsonl error="No space left on device"')
        assert journal.text().count("history not written") == 1

        filler.unlink()
        journal = Journal()
        pause_and_resume(calm)
        journal.wait_for("history written again file=/var/lib/cgpause/history.jsonl lost=")
        for name in ("small", "medium", "large"):
            last_pause(f"default/{name}", "ended")

        journal = Journal()
        run("mount", "-o", "remount,ro", STATE)
        pause_and_resume(calm)
        journal.wait_for('error="Read-only file system"')
    finally:
        run("umount", "--lazy", STATE)
        run("systemctl", "restart", "cgpause")
    assert show("Result") == "success"


@pytest.mark.parametrize("in_its_place", ["nothing", "a file"])
def test_without_its_folder_the_unit_pauses_and_resumes_all_the_same(calm: Node, in_its_place: str) -> None:
    """A missing folder, as on a full or read-only /var, must not keep ExecStopPost= from running."""
    run("systemctl", "stop", "cgpause")
    kept = STATE.rename(STATE.with_name("kept"))
    if in_its_place == "a file":
        STATE.write_text("")
    try:
        run("systemctl", "start", "cgpause")
        calm.tighten()
        calm.wait_paused()
        pid, journal = main_pid(), Journal()
        os.kill(pid, signal.SIGSTOP)
        calm.relax()
        assert calm.all_paused()

        kill_and_wait_for_the_next(pid)

        calm.wait_as_before()
        assert journal.text().count(CLEANED_UP) == 3, "ExecStopPost= did it"
        assert 'advice="make /var/lib/cgpause' in journal.text()
        if in_its_place == "a file":
            assert "no history will be kept: /var/lib/cgpause" in install("--wheels", WHEELS)
        else:
            assert "there is no folder /var/lib/cgpause" in run(COMMAND, "history")
            install("--wheels", WHEELS)
            assert (STATE.stat().st_mode & 0o7777, STATE.stat().st_uid) == (0o700, 0)
            pause_and_resume(calm)
            last_pause("default/large", "ended")
    finally:
        shutil.rmtree(STATE) if STATE.is_dir() else STATE.unlink(missing_ok=True)
        kept.rename(STATE)
        run("systemctl", "restart", "cgpause")


def pause_and_resume(node: Node) -> None:
    node.tighten()
    node.wait_paused()
    node.relax()
    node.wait_as_before()


def test_pause_is_asserted_again_after_daemon_reload(calm: Node) -> None:
    calm.tighten()
    calm.wait_paused()
    journal = Journal()

    # After a daemon-reload, systemd writes its units' own quotas when any sibling is realized.
    run("systemctl", "daemon-reload")
    run("systemctl", "set-property", "--runtime", calm.filler.slice, "CPUWeight=50")

    journal.wait_for("asserted again pod=default/medium")
    calm.wait_paused()
    calm.relax()
    calm.wait_as_before()


def test_killed_daemon_leaves_nobody_paused_and_comes_back(calm: Node) -> None:
    calm.tighten()
    calm.wait_paused()
    pid, journal = main_pid(), Journal()
    # Stop the daemon with SIGSTOP first, so that it cannot resume the pods itself. Little may come between this and the
    # kill: after 8 to 15 s the watchdog ends the daemon.
    os.kill(pid, signal.SIGSTOP)
    calm.relax()
    assert calm.all_paused()

    kill_and_wait_for_the_next(pid)

    calm.wait_as_before()
    said = journal.text()
    assert said.count(CLEANED_UP) == 3, "ExecStopPost= did it"
    assert said.index(CLEANED_UP) < said.index("started version=")
    last = [last_pause(f"default/{name}", "ended") for name in ("small", "medium", "large")]
    assert {pause["result"] for pause in last} == {"crashed"}
    assert all(pause["paused_s"] is not None and pause["start"] is not None for pause in last)


def test_daemon_killed_under_pressure_pauses_anew_and_keeps_the_originals(calm: Node) -> None:
    calm.tighten()
    calm.wait_paused()

    kill_and_wait_for_the_next(main_pid())

    calm.wait_paused()
    calm.relax()
    calm.wait_as_before()


def test_daemon_that_hangs_is_ended_by_the_watchdog_and_leaves_nobody_paused(calm: Node) -> None:
    calm.tighten()
    calm.wait_paused()
    pid, journal = main_pid(), Journal()
    os.kill(pid, signal.SIGSTOP)
    calm.relax()

    wait_for_another(pid)

    calm.wait_as_before()
    said = journal.text()
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said, "the traceback shows where it hung"
    assert CLEANED_UP in said


def test_stop_resumes_the_daemons_pauses_and_a_manual_pause_outlives_it(calm: Node) -> None:
    assert "paused" in run(COMMAND, "pause", "default/small")
    calm.tighten()
    calm.wait_paused()

    run("systemctl", "restart", "cgpause")
    assert calm.small.is_paused()
    calm.wait_paused()
    run("systemctl", "stop", "cgpause")

    assert calm.medium.is_as_before()
    assert calm.large.is_as_before()
    assert calm.small.is_paused()
    assert calm.small.record is not None
    assert calm.small.record["owner"] == "manual"
    assert show("Result") == "success"

    calm.relax()
    run("systemctl", "start", "cgpause")
    assert calm.small.is_paused(), "the daemon never resumes what an operator paused"
    run(COMMAND, "resume", "default/small")


def test_damaged_record_is_put_right_from_what_systemd_knows(calm: Node) -> None:
    """ExecStopPost= asks systemctl from within the unit's sandbox."""
    # In this order: the daemon may put the record right at once, and then nobody would undo a later write.
    (calm.medium.path / "cpu.max").write_text(PAUSED)
    os.setxattr(calm.medium.path, XATTR, b"damaged")

    run("systemctl", "stop", "cgpause")

    assert calm.medium.cpu_max == "50000 100000"
    assert XATTR not in os.listxattr(calm.medium.path)
    run("systemctl", "start", "cgpause")


def kill_while_pods_are_held(node: Node) -> str:
    """Kill the daemon so that only ExecStopPost= can resume its pods; return the journal until all are resumed."""
    node.tighten()
    node.wait_paused()
    pid, journal = main_pid(), Journal()
    # Stop the daemon with SIGSTOP first, so that it cannot resume the pods itself.
    os.kill(pid, signal.SIGSTOP)
    node.relax()
    assert node.all_paused()
    os.kill(pid, signal.SIGKILL)
    node.wait_as_before()
    # The lines come when all pods are resumed.
    wait_until(lambda: journal.text().count(CLEANED_UP) >= len(node.pods), "ExecStopPost= to tell of each pod")
    return journal.text()


def test_every_option_of_the_daemon_goes_with_reload_and_clean_up(calm: Node) -> None:
    with unit_options(f"--verbose --run-dir {RUN} --config {CONFIG}"):
        run("systemctl", "restart", "cgpause")
        run("systemctl", "reload", "cgpause")

        said = kill_while_pods_are_held(calm)

    assert said.count(CLEANED_UP) == 3, said
    assert systemd_is_up_to_date()


@pytest.mark.parametrize("how", ["gone", "another"])
def test_pods_are_resumed_although_the_python_of_the_environment_went_with_an_upgrade(calm: Node, how: str) -> None:
    with python_upgraded(how):
        said = kill_while_pods_are_held(calm)

    assert said.count(CLEANED_UP) == 3, said
    wait_until(lambda: show("ActiveState") == "active", "systemd to start the daemon again")


def test_without_a_configuration_the_defaults_apply_but_one_that_is_named_has_to_be_there(calm: Node) -> None:
    kept = CONFIG.rename(CONFIG.with_name("kept"))
    try:
        journal = Journal()
        run("systemctl", "restart", "cgpause")
        journal.wait_for(f'config="{CONFIG} does not exist: the defaults"')
        run("systemctl", "reload", "cgpause")
        assert show("ActiveState") == "active"
    finally:
        kept.rename(CONFIG)

    with unit_options("--config /nowhere/config.toml"):
        journal = Journal()
        run("systemctl", "restart", "cgpause", status=1)
        journal.wait_for("/nowhere/config.toml: cannot be read")
    assert show("ActiveState") == "active"


def test_a_unit_that_is_turned_away_leaves_alone_what_the_first_daemon_holds(calm: Node) -> None:
    def state() -> tuple[list[dict[str, object] | None], bytes]:
        return [pod.record for pod in calm.pods], os.getxattr(KUBEPODS, high.XATTR)

    run("systemctl", "stop", "cgpause")
    first = ("systemd-run", "--quiet", "--collect", "--unit=cgpause-first", "--slice=-.slice")
    run(*first, COMMAND, "--config", CONFIG, "run")
    try:
        calm.tighten()
        calm.wait_paused()
        before = state()
        journal = Journal()

        run("systemctl", "start", "cgpause", status=1)
        # Each try says it twice: in the daemon, and in ExecStopPost=.
        wait_until(lambda: journal.text().count("stop it first (systemctl stop cgpause)") >= 6, "a third try")

        assert state() == before
        assert CLEANED_UP not in journal.text()
    finally:
        # Stop the unit first: if the first daemon died during a try, ExecStopPost= of that try would clean up.
        run("systemctl", "stop", "cgpause")
        run("systemctl", "kill", "--signal=KILL", "cgpause-first")
        wait_until(lambda: show("ActiveState", "cgpause-first") == "inactive", "the first daemon to be gone")
        run("systemctl", "start", "cgpause")
    # Nothing cleaned up after the first daemon: the unit takes over.
    assert calm.all_paused()
    said = journal.text()
    assert CLEANED_UP not in said
    assert said.count("adopted pod=default/") == 3
    calm.relax()
    calm.wait_as_before()


@contextlib.contextmanager
def drop_in() -> Iterator[None]:
    """Install the manual's drop-in for the metrics unit during the block."""
    (text,) = re.findall(r"```ini\n(.*?)```", (REPO / "docs/metrics.md").read_text(), re.DOTALL)
    path = Path("/etc/systemd/system/cgpause-metrics.service.d/override.conf")
    path.parent.mkdir()
    path.write_text(text)
    try:
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", "cgpause-metrics")
        yield
    finally:
        shutil.rmtree(path.parent)
        run("systemctl", "daemon-reload")
        run("systemctl", "restart", "cgpause-metrics")


def test_metrics_are_added_when_asked_for_and_served_by_nobody(calm: Node) -> None:
    assert not METRICS_UNIT.exists()

    said = install("--wheels", WHEELS, "--metrics")

    assert "publish = true" in said
    assert systemd_is_up_to_date("cgpause-metrics")
    wait_until(lambda: serves("cgpause_up", "0.0"), "the metrics of a daemon that publishes nothing")
    CONFIG.write_text(f"{CONFIG_TEXT}[metrics]\npublish = true\n")
    run("systemctl", "reload", "cgpause")
    wait_until(lambda: serves("cgpause_up", "1.0"), "the daemon's figures")
    assert stat.filemode((RUN / "metrics.prom").stat().st_mode) == "-rw-r--r--"
    pid = run("systemctl", "show", "--value", "--property=MainPID", "cgpause-metrics").strip()
    status = Path(f"/proc/{pid}/status").read_text()
    assert re.search(r"^Uid:\t0\t", status, re.MULTILINE) is None
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
    assert metrics()['cgpause_degraded{what="inotify"}'] == metrics()['cgpause_degraded{what="psi"}'] == "0.0"
    calm.tighten()
    calm.wait_paused()
    paused = 'cgpause_pod_pauses_total{namespace="default",pod="small",mechanism="throttle"}'
    wait_until(lambda: serves(paused, "1.0"), "the pause to be counted")
    run("systemctl", "stop", "cgpause")
    assert metrics()["cgpause_up"] == "0.0", "at once: the file is gone with the daemon"
    run("systemctl", "start", "cgpause")


def test_an_upgrade_keeps_the_metrics(calm: Node) -> None:
    pid = run("systemctl", "show", "--property=MainPID", "cgpause-metrics")
    assert "this version is in place already" in install("--wheels", WHEELS)
    assert run("systemctl", "show", "--property=MainPID", "cgpause-metrics") == pid, "nothing changed, nothing restarts"

    METRICS_UNIT.write_text("# of an older version\n")
    install("--wheels", WHEELS)

    assert "DynamicUser=yes" in METRICS_UNIT.read_text()
    assert systemd_is_up_to_date("cgpause-metrics")
    wait_until(lambda: serves("cgpause_up", "1.0"), "the metrics")


def test_nobody_else_reaches_the_metrics_even_where_they_listen_on_all_addresses() -> None:
    with drop_in():
        wait_until(lambda: serves("cgpause_up", "1.0"), "the metrics on the loopback")
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen("http://10.0.2.15:10912/metrics", timeout=5)


def test_everyone_may_read_the_file_for_node_exporter_and_it_goes_with_the_option() -> None:
    file = RUN / "metrics.prom"
    assert "\ncgpause_up 1.0\n" in file.read_text()
    assert stat.filemode(file.stat().st_mode) == "-rw-r--r--"
    CONFIG.write_text(CONFIG_TEXT)
    run("systemctl", "reload", "cgpause")
    wait_until(lambda: not file.exists(), "nothing to be published any more")


@pytest.mark.parametrize("python", [None, "gone", "another"])
def test_uninstall_refuses_while_a_pod_cannot_be_resumed(calm: Node, python: str | None) -> None:
    run(COMMAND, "pause", "default/large")
    # Outside the tree in use, and unknown to systemd, so that the damaged record has no second source.
    damaged = CGROUP / f"kubepods/burstable/pod{make_uid(9)}"
    damaged.mkdir(parents=True)
    os.setxattr(damaged, XATTR, b"damaged")
    try:
        with contextlib.nullcontext() if python is None else python_upgraded(python):
            said = install("--uninstall", status=6)
    finally:
        damaged.rmdir()
        damaged.parent.rmdir()
        damaged.parents[1].rmdir()

    assert str(damaged) in said
    assert "nothing was removed" in said
    assert UNIT.exists()
    run("systemctl", "start", "cgpause")
    assert calm.all_as_before()


def test_uninstall_resumes_manual_pauses_and_removes_all_but_configuration_and_history(calm: Node) -> None:
    run(COMMAND, "pause", "default/large")

    said = install("--uninstall")

    assert "daemon-reload" not in said, "systemctl would ask for one"
    assert calm.all_as_before()
    assert not any(os.path.lexists(path) for path in (UNIT, COMMAND, PREFIX, UNIT_CGROUP, *SHARED))
    assert show("LoadState") == "not-found"
    assert list(Path("/etc/systemd/system").rglob("*cgpause*")) == []
    assert not any(path.exists() for path in (RUN, Path("/etc/tmpfiles.d/cgpause.conf")))
    assert CONFIG.read_text() == CONFIG_TEXT
    assert (STATE / "history.jsonl").exists()


def test_uninstall_again_is_no_error_and_purge_takes_those_too() -> None:
    install("--uninstall")
    assert CONFIG.exists()
    assert STATE.exists()
    install("--uninstall", "--purge")
    assert not CONFIG.parent.exists()
    assert not STATE.exists()
