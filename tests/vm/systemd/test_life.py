"""Pauses under a real systemd, and every way for the daemon to end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal

from helpers.trees import wait_until
from vm.installed import (
    CLEANED_UP,
    COMMAND,
    PREFIX,
    RUN,
    entries,
    install,
    last_pause,
    last_pauses,
    pauses,
    python_upgraded,
    systemd_is_up_to_date,
    unit_options,
)
from vm.slices import (
    CONFIG,
    KUBEPODS,
    PAUSED,
    STATE,
    WHEELS,
    Journal,
    Node,
    kill_and_wait_for_the_next,
    main_pid,
    run,
    show,
    wait_for_another,
)

from cgpause.ledger import high
from cgpause.ledger.record import XATTR
from cgpause.telemetry.events import MESSAGE_IDS

PODS = ("default/small", "default/medium", "default/large")


def test_upgrade_while_pods_are_paused_keeps_originals_and_manual_pauses(calm: Node) -> None:
    run(COMMAND, "pause", "default/small")
    calm.tighten()
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


def test_pauses_come_in_ascending_order_and_history_and_journal_have_the_same_fields(calm: Node) -> None:
    journal = Journal()
    calm.tighten()
    assert calm.filler.is_as_before(), "a rule protects it"
    assert [pod.record and pod.record["original_cpu_max"] for pod in calm.pods] == [
        "max 100000",
        "50000 100000",
        "200000 50000",
    ]
    order = re.findall(r"^paused pod=default/(\w+) .*cpu_max_to=\"1001 100000\"", journal.text(), re.MULTILINE)
    assert order == ["small", "medium", "large"]
    wait_until(lambda: "4 pods, 3 paused" in show("StatusText"), "the status line to say so")
    running = last_pause("default/large", "active")
    calm.relax()
    calm.wait_as_before()

    ended = last_pause("default/large", "ended")
    assert pauses("--pod", calm.large.uid)[-1] == pauses("--pod", "large", "--since", "1h")[-1] == ended
    assert (running["state"], running["end"], running["start"]) == ("active", None, ended["start"])
    assert (ended["result"], ended["owner"]) == ("headroom", "daemon")
    assert ended["mechanism"] in ("throttle", "freeze"), "of batch by how long it was paused"
    assert ended["cpu_max"] == calm.large.original
    assert (STATE / "history.jsonl").stat().st_mode & 0o777 == 0o600
    paused = entries("CGPAUSE_POD=default/large", f"MESSAGE_ID={MESSAGE_IDS['paused']}")[-1]
    resumed = entries("CGPAUSE_POD=default/large", f"MESSAGE_ID={MESSAGE_IDS['resumed']}")[-1]
    assert paused["CGPAUSE_REASON"] == resumed["CGPAUSE_PAUSE_REASON"] == ended["reason"]
    assert (resumed["CGPAUSE_RESULT"], resumed["CGPAUSE_PAUSED_S"]) == ("headroom", str(ended["paused_s"]))
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


def test_a_full_disk_costs_the_history_and_nothing_else(calm: Node) -> None:
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
        last_pauses("ended", *PODS)
    finally:
        run("umount", "--lazy", STATE)
        run("systemctl", "restart", "cgpause")
    assert show("Result") == "success"


def stop_daemon_of_paused_pods(node: Node) -> tuple[int, Journal]:
    """Have all pods paused, then stop the daemon with SIGSTOP, so that it cannot resume them, and calm the node.

    Return the daemon's process id and a journal from that time on. Little may come between this and a kill: after 30 to
    60 s (`node_of_slices`) the watchdog ends the daemon.
    """
    node.tighten()
    pid, journal = main_pid(), Journal()
    os.kill(pid, signal.SIGSTOP)
    node.relax()
    assert node.all_paused()
    return pid, journal


def test_without_its_folder_the_unit_pauses_and_resumes_all_the_same(calm: Node) -> None:
    """A missing folder, as on a full or read-only /var, must not keep ExecStopPost= from running."""
    run("systemctl", "stop", "cgpause")
    kept = STATE.rename(STATE.with_name("kept"))
    try:
        run("systemctl", "start", "cgpause")
        pid, journal = stop_daemon_of_paused_pods(calm)

        kill_and_wait_for_the_next(pid)

        calm.wait_as_before()
        assert journal.text().count(CLEANED_UP) == 3, "ExecStopPost= did it"
        assert 'advice="create /var/lib/cgpause' in journal.text()
        assert "there is no folder /var/lib/cgpause" in run(COMMAND, "history")
        install("--wheels", WHEELS)
        assert (STATE.stat().st_mode & 0o7777, STATE.stat().st_uid) == (0o700, 0)
        pause_and_resume(calm)
        last_pause("default/large", "ended")
    finally:
        shutil.rmtree(STATE, ignore_errors=True)
        kept.rename(STATE)
        run("systemctl", "restart", "cgpause")


def pause_and_resume(node: Node) -> None:
    node.tighten()
    node.relax()
    node.wait_as_before()


def test_pause_is_asserted_again_after_daemon_reload(calm: Node) -> None:
    calm.tighten()
    journal = Journal()

    # After a daemon-reload, systemd writes its units' own quotas when any sibling is realized.
    run("systemctl", "daemon-reload")
    run("systemctl", "set-property", "--runtime", calm.filler.slice, "CPUWeight=50")

    journal.wait_for("asserted again pod=default/medium")
    calm.wait_paused()


def test_killed_daemon_leaves_nobody_paused_and_comes_back_with_each_of_its_options(calm: Node) -> None:
    with unit_options(f"--verbose --run-dir {RUN} --config {CONFIG}"):
        run("systemctl", "restart", "cgpause")
        run("systemctl", "reload", "cgpause")
        pid, journal = stop_daemon_of_paused_pods(calm)

        kill_and_wait_for_the_next(pid)

        calm.wait_as_before()
    said = journal.text()
    assert said.count(CLEANED_UP) == 3, "ExecStopPost= did it"
    assert said.index(CLEANED_UP) < said.index("started version=")
    last = last_pauses("ended", *PODS)
    assert {pause["result"] for pause in last} == {"crashed"}
    assert all(pause["paused_s"] is not None and pause["start"] is not None for pause in last)
    assert systemd_is_up_to_date()


def test_daemon_that_hangs_is_ended_by_the_watchdog_and_leaves_nobody_paused(calm: Node) -> None:
    pid, journal = stop_daemon_of_paused_pods(calm)

    wait_for_another(pid)

    calm.wait_as_before()
    said = journal.text()
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said, "the traceback shows where it hung"
    assert CLEANED_UP in said


def test_stop_resumes_the_daemons_pauses_and_a_manual_pause_outlives_it(calm: Node) -> None:
    assert "paused" in run(COMMAND, "pause", "default/small")
    calm.tighten()

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

    def is_put_right() -> bool:
        """Kill the daemon once more, because ExecStopPost= gives a busy systemd only three seconds for its answer."""
        run("systemctl", "start", "cgpause")
        pid = int(show("MainPID"))
        os.kill(pid, signal.SIGSTOP)  # it would put the record right itself
        (calm.medium.path / "cpu.max").write_text(PAUSED)
        os.setxattr(calm.medium.path, XATTR, b"damaged")
        os.kill(pid, signal.SIGKILL)
        run("systemctl", "stop", "cgpause")  # before the next daemon begins
        return XATTR not in os.listxattr(calm.medium.path)

    wait_until(is_put_right, "systemd's answer")

    assert calm.medium.cpu_max == "50000 100000"
    run("systemctl", "start", "cgpause")


def kill_while_pods_are_paused(node: Node) -> str:
    """Kill the daemon so that only ExecStopPost= can resume its pods; return the journal until all are resumed."""
    pid, journal = stop_daemon_of_paused_pods(node)
    os.kill(pid, signal.SIGKILL)
    node.wait_as_before()
    # The lines come when all pods are resumed.
    wait_until(lambda: journal.text().count(CLEANED_UP) >= len(node.pods), "ExecStopPost= to tell of each pod")
    return journal.text()


def test_pods_are_resumed_although_the_python_of_the_environment_went_with_an_upgrade(calm: Node) -> None:
    with python_upgraded("gone"):
        said = kill_while_pods_are_paused(calm)

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
        before = state()
        journal = Journal()

        run("systemctl", "start", "cgpause", status=1)
        # Each try says it twice: in the daemon, and in ExecStopPost=.
        wait_until(lambda: journal.text().count("stop it first (systemctl stop cgpause)") >= 4, "a second try")

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


def test_pods_are_resumed_although_nothing_can_be_written_to_tmp(calm: Node) -> None:
    """As on a root file system that is read-only after an error: systemd must need no folder in /tmp for the unit."""
    run("mount", "-t", "tmpfs", "-o", "ro", "none", "/tmp")
    try:
        said = kill_while_pods_are_paused(calm)
        wait_until(lambda: show("ActiveState") == "active", "systemd to start the daemon again")
    finally:
        run("umount", "--lazy", "/tmp")
    assert said.count(CLEANED_UP) == 3, said
