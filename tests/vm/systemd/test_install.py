"""The installer, the unit that it starts, and its configuration, under a real systemd."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vm.installed import PREFIX, RUN, SHARED, UNIT, install, systemd_is_up_to_date
from vm.slices import (
    CONFIG,
    CONFIG_TEXT,
    REPO,
    STATE,
    UNIT_CGROUP,
    WHEELS,
    Journal,
    Node,
    main_pid,
    run,
    show,
    warnings,
)


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
    assert "has other files" in install("--prefix", "/usr/local", status=2)
    assert not UNIT.exists()
    assert not PREFIX.exists()


def test_installer_says_that_there_is_no_network_and_leaves_no_release() -> None:
    said = install(status=1)

    assert re.search(r"no network: use --wheels DIR .*pip wheel -w DIR \. \(pip's output: (/tmp/\S+\.log)\)", said)
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
    assert not writable & {"/dev/shm", "/dev/mqueue", "/dev/hugepages"}
    assert mounts["/proc/sys"].startswith("ro")
    assert mounts["/dev"].startswith("ro")


def test_hardening_takes_nothing_away_that_the_daemon_misses(installed: str) -> None:
    assert warnings() == [], "no PSI trigger refused, memory locked, inotify there"


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
