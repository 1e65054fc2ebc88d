"""The Debian package under dpkg and systemd, and then pipx as in docs/operations.md.

One story, as in tests/vm/systemd: install, pressure, upgrade, remove, purge.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.trees import wait_until
from vm.slices import (
    CONFIG,
    CONFIG_TEXT,
    REPO,
    STATE,
    WHEELS,
    Journal,
    Node,
    damaged_elsewhere,
    main_pid,
    metrics,
    node_of_slices,
    run,
    serves,
    show,
    warnings,
)

from cgpause import __version__

DEB = Path(f"/opt/cgpause/debs/cgpause_{__version__}_all.deb")
PREFIX = Path("/usr/lib/cgpause")
UNIT = Path("/usr/lib/systemd/system/cgpause.service")
WANTED = Path("/etc/systemd/system/multi-user.target.wants/cgpause.service")
METRICS = "cgpause-metrics"
METRICS_WANTED = WANTED.with_name(f"{METRICS}.service")
RUN = Path("/run/cgpause")
PUBLISHING = f"{CONFIG_TEXT}[metrics]\npublish = true\n"
OTHER_UNIT = Path("/etc/systemd/system/cgpause.service")
BASH_COMPLETION = Path("/usr/share/bash-completion/completions/cgpause")
SHARED = [
    BASH_COMPLETION,
    Path("/usr/lib/systemd/system/cgpause-metrics.service"),
    Path("/usr/lib/tmpfiles.d/cgpause.conf"),
    Path("/usr/share/doc/cgpause/copyright"),
    Path("/usr/share/doc/cgpause/metrics.md"),
    Path("/usr/share/doc/cgpause/operations.md"),
    Path("/usr/share/fish/vendor_completions.d/cgpause.fish"),
    Path("/usr/share/man/man1/cgpause.1.gz"),
    Path("/usr/share/man/man5/cgpause.toml.5.gz"),
    Path("/usr/share/zsh/vendor-completions/_cgpause"),
]
# Folders of the root file system that hold the test itself or that every installation writes to.
NOT_LISTED = ("/opt", "/root", "/tmp", "/var/cache", "/var/lib/dpkg", "/var/log", "/var/tmp")
# The image has no manual pages and documents; the package's own must be installed.
DPKG = ("dpkg", "--path-include=/usr/share/doc/cgpause/*", "--path-include=/usr/share/man/*")


def files() -> set[str]:
    """Return every path on the disk, except below NOT_LISTED."""
    pruned = " -o ".join(f"-path {path}" for path in NOT_LISTED)
    return set(run("find", "/", "-xdev", "(", *pruned.split(), ")", "-prune", "-o", "-print").splitlines())


def deb_of(version: str, folder: Path) -> Path:
    """Build the same package with a later version; return its path."""
    unpacked = folder / "unpacked"
    run("dpkg-deb", "-R", DEB, unpacked)
    control = unpacked / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}\n", f"Version: {version}\n"))
    package = folder / "later.deb"
    run("dpkg-deb", "-Znone", "-b", unpacked, package)
    return package


def status() -> str:
    """Return dpkg's status of the package; empty if dpkg does not know it."""
    return run("sh", "-c", "dpkg-query -W -f '${db:Status-Status} ${Version}' cgpause 2>/dev/null || true").strip()


def commands_of(page: str, heading: str) -> list[str]:
    """Return the shell commands in a section of a page of docs/."""
    section = (REPO / "docs" / page).read_text().partition(f"### {heading}")[2].partition("\n### ")[0]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block
    return block[1].splitlines()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_of_slices() as node:
        yield node


@pytest.fixture(scope="module")
def before(node: Node) -> set[str]:
    return files()


@pytest.fixture(scope="module")
def installed(before: set[str]) -> str:
    return run(*DPKG, "-i", DEB)


@pytest.fixture
def calm(node: Node, installed: str) -> Iterator[Node]:
    with node.kept_calm() as calm:
        yield calm


def test_the_package_does_not_go_over_another_installation(before: set[str]) -> None:
    OTHER_UNIT.write_text("[Service]\nExecStart=/usr/local/lib/cgpause/current/bin/python -I -m cgpause.daemon\n")
    try:
        said = run(*DPKG, "-i", DEB, status=1)
    finally:
        OTHER_UNIT.unlink()
        run("dpkg", "--purge", "cgpause")

    assert "scripts/install --uninstall" in said
    assert files() == before


def test_it_is_enabled_and_runs(installed: str) -> None:
    assert show("ActiveState") == "active"
    assert show("UnitFileState") == "enabled"
    assert WANTED.is_symlink()
    assert Path(show("FragmentPath")).resolve() == UNIT
    assert (STATE.stat().st_mode & 0o7777, STATE.stat().st_uid) == (0o700, 0)
    assert "\nall = true\n" in CONFIG.read_text()
    assert warnings() == []


def test_it_uses_its_own_code_and_debians_libraries_and_no_others(installed: str) -> None:
    modules = ("cgpause", "inotify_simple", "typer", "click", "psutil", "rich")
    code = f"import {', '.join(modules)}; print({'.__file__, '.join(modules)}.__file__)"
    ours, debians = f"{PREFIX}/lib/python3", "/usr/lib/python3/dist-packages/"
    paths = run(PREFIX / "bin/python", "-I", "-c", code).split()

    assert [path.startswith(ours) for path in paths] == [True] * 3 + [False] * 3
    assert all(path.startswith((ours, debians)) for path in paths)
    assert "/usr/local" not in run(PREFIX / "bin/python", "-I", "-c", "import sys; print(sys.path)")
    assert os.readlink(f"/proc/{main_pid()}/exe").startswith("/usr/bin/python3.")
    compiled = list(PREFIX.glob("lib/python3/site-packages/cgpause/daemon/__pycache__/loop.*.pyc"))
    assert len(compiled) == 1, "the daemon could not write it"


def test_commands_work_and_pages_and_completions_are_where_they_are_looked_for(calm: Node) -> None:
    assert run("cgpause", "--version") == f"cgpause {__version__}\n"
    checks = {check["name"]: check["level"] for check in json.loads(run("cgpause", "check", "-ojson"))["checks"]}
    assert checks["unit"] == "ok"
    assert "fail" not in checks.values()
    assert "default/large" in run("cgpause", "status")
    assert [path for path in SHARED if not path.is_file()] == []
    script = f"source {BASH_COMPLETION}; COMP_WORDS=(cgpause pause default/la); COMP_CWORD=2"
    said = run("bash", "-c", f'{script}; _cgpause cgpause default/la pause; echo "${{COMPREPLY[*]}}"')
    assert said == "default/large\n"


def test_metrics_are_there_to_be_switched_on_and_off_until_then(installed: str) -> None:
    assert show("LoadState", METRICS) == "loaded"
    assert (show("UnitFileState", METRICS), show("ActiveState", METRICS)) == ("disabled", "inactive")
    assert not METRICS_WANTED.is_symlink()
    assert (stat.filemode(RUN.stat().st_mode), RUN.stat().st_uid) == ("drwxr-xr-x", 0)
    assert list(RUN.iterdir()) == []


def test_the_installer_keeps_away_from_it(installed: str) -> None:
    for options in ([], ["--uninstall"]):
        assert "the Debian package cgpause is installed" in run(REPO / "scripts/install", *options, status=1)
    assert show("ActiveState") == "active"


def test_metrics_are_switched_on_as_the_manual_says(calm: Node) -> None:
    CONFIG.write_text(PUBLISHING)

    run("sh", "-ec", "\n".join([*commands_of("metrics.md", "With the Debian package"), "systemctl reload cgpause"]))

    wait_until(lambda: serves("cgpause_up", "1.0"), "the daemon's figures")
    assert METRICS_WANTED.is_symlink()
    assert metrics()['cgpause_pods{state="running"}'] == "3.0"
    status = Path(f"/proc/{main_pid(METRICS)}/status").read_text()
    assert re.search(r"^Uid:\t0\t", status, re.MULTILINE) is None


def test_an_upgrade_with_pods_paused_keeps_configuration_and_manual_pauses(calm: Node, tmp_path: Path) -> None:
    run("cgpause", "pause", "default/small")
    by_hand = calm.small.record
    calm.tighten()
    pid, metrics_pid = main_pid(), main_pid(METRICS)
    later = deb_of("9.9", tmp_path)
    journal = Journal()

    run(*DPKG, "-i", later)

    assert status() == "installed 9.9"
    assert main_pid() not in (0, pid)
    assert show("ActiveState") == "active"
    assert CONFIG.read_text() == PUBLISHING
    assert calm.small.record == by_hand
    assert main_pid(METRICS) not in (0, metrics_pid)
    wait_until(lambda: serves("cgpause_up", "1.0"), "the metrics")
    calm.wait_paused()
    assert 'reason="cgpause stops"' in journal.text(), "the old daemon resumed what it had paused"
    calm.relax()
    wait_until(lambda: calm.medium.is_as_before() and calm.large.is_as_before(), "the new daemon to resume")
    run("cgpause", "resume", "default/small")


def test_a_bug_report_has_unit_and_journal_and_no_name(calm: Node, tmp_path: Path) -> None:
    """The report is made after a pause, so that the log contains names."""
    run("cgpause", "bug-report", tmp_path / "report.tar.gz")

    run("tar", "-xzf", tmp_path / "report.tar.gz", "-C", tmp_path)
    found = {file.name: file.read_text() for file in (tmp_path / "cgpause-bug-report").iterdir()}
    assert [(name, text) for name, text in found.items() if text.startswith("not collected")] == []
    assert found["unit.txt"].count("ActiveState=active") == 2
    assert "paused pod=default/h" in found["journal.txt"]
    assert '"what":"paused"' in found["history.jsonl"]
    hostname = os.uname().nodename
    for pod in (*calm.pods, calm.filler):
        secrets = (pod.uid, pod.uid.replace("-", "_"), pod.name, hostname)
        assert [name for name, text in found.items() for secret in secrets if re.search(rf"\b{secret}\b", text)] == []


def test_an_upgrade_that_refuses_the_configuration_leaves_the_daemon_at_work(calm: Node) -> None:
    run("systemctl", "stop", METRICS)
    pid = main_pid()
    CONFIG.write_text('policy = "nonsense"\n')
    try:
        said = run(*DPKG, "-i", DEB, status=1)
        assert f"{CONFIG}: policy: found" in said
        assert "dpkg --configure cgpause" in said
        assert (main_pid(), show("ActiveState")) == (pid, "active")
    finally:
        CONFIG.write_text(PUBLISHING)

    run("dpkg", "--configure", "cgpause")

    assert status() == f"installed {__version__}"
    assert main_pid() not in (0, pid)
    assert show("ActiveState", METRICS) == "inactive", "who does not run is not started"
    run("systemctl", "start", METRICS)


def test_it_is_not_removed_while_a_pod_cannot_be_resumed(calm: Node) -> None:
    with damaged_elsewhere() as damaged:
        said = run("dpkg", "--remove", "cgpause", status=1)

    assert str(damaged) in said
    assert "cgpause stays" in said
    assert status() == f"installed {__version__}"
    assert show("ActiveState") == show("ActiveState", METRICS) == "active"


def test_removal_resumes_everybody_and_keeps_configuration_and_history(calm: Node, before: set[str]) -> None:
    run("cgpause", "pause", "default/large")
    calm.tighten()

    run("dpkg", "--remove", "cgpause")

    assert calm.all_as_before()
    assert show("LoadState") == "not-found"
    assert (show("LoadState", METRICS), show("ActiveState", METRICS)) == ("not-found", "inactive")
    assert not RUN.exists()
    assert CONFIG.read_text() == PUBLISHING
    assert (STATE / "history.jsonl").exists()
    kept = {str(CONFIG), str(CONFIG.parent), str(STATE), str(WANTED), str(METRICS_WANTED)}
    assert {path for path in files() - before if not path.startswith((f"{STATE}/", "/var/lib/systemd/"))} == kept
    assert "removed, but not purged" in run(REPO / "scripts/install", status=1), "a later purge would take both"


def test_removal_before_an_upgrade_is_configured_resumes_the_daemons_pauses(calm: Node) -> None:
    """dpkg runs no prerm of a package that is only unpacked."""
    run(*DPKG, "-i", DEB)
    run("systemctl", "start", METRICS)
    calm.tighten()
    run(*DPKG, "--unpack", DEB)
    assert status() == f"unpacked {__version__}"

    said = run("dpkg", "--remove", "cgpause")

    assert "Undo by hand" in said
    assert calm.all_as_before()
    assert {(show("LoadState", unit), show("ActiveState", unit)) for unit in ("cgpause", METRICS)} == {
        ("not-found", "inactive")
    }


def test_purge_leaves_nothing(before: set[str], node: Node) -> None:
    run("dpkg", "--purge", "cgpause")

    assert files() == before
    assert not RUN.exists()
    assert status() == ""
    assert node.all_as_before()


@pytest.mark.long
def test_what_the_manual_says_about_pipx_works(node: Node, before: set[str]) -> None:
    """Install as pipx does: a virtual environment, pip, and a link to the command; the image has no pipx.

    Dependencies that only the command needs are left out: pip takes minutes for them here.
    """
    environment = "/opt/pipx/venvs/cgpause"
    pipx = [
        f"python3 -m venv --without-pip {environment}",
        f"set -- install -q --no-deps --no-index --no-compile --find-links {WHEELS} cgpause inotify_simple",
        f'{environment}/bin/python -I "$(echo /usr/share/python-wheels/pip-*.whl)/pip" "$@"',
        f"ln -s {environment}/bin/cgpause /usr/local/bin/cgpause",
    ]
    commands = commands_of("operations.md", "With pipx")
    [at] = [index for index, line in enumerate(commands) if line.startswith("pipx install")]
    try:
        run("sh", "-ec", "\n".join([*commands[:at], *pipx, *commands[at + 1 :]]))

        assert show("ActiveState") == "active"
        assert show("UnitFileState") == "enabled"
        assert os.readlink(f"/proc/{main_pid()}/exe").startswith("/usr/bin/python3.")
        wait_until(lambda: "4 pods, 0 paused" in show("StatusText"), "the status line to say so")
        pages = re.findall(r"^Documentation=file:(.*)$", OTHER_UNIT.read_text(), re.MULTILINE)
        assert [Path(page).is_file() for page in pages] == [True]
        run("systemctl", "disable", "--now", "cgpause")
        assert show("Result") == "success", "ExecStopPost= works as well"
    finally:
        for path in (OTHER_UNIT, Path("/usr/local/bin/cgpause")):
            path.unlink(missing_ok=True)
        for folder in ("/usr/local/lib/cgpause", "/opt/pipx", CONFIG.parent, STATE):
            shutil.rmtree(folder, ignore_errors=True)
        run("systemctl", "daemon-reload")
    assert files() == before
