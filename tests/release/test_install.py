"""scripts/install and the Debian package's postinst on made folders: the check before an upgrade, and failing disks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import executable

from cgpause.core.paths import DEFAULT_CONFIG
from cgpause.daemon import upgrade

REPO = Path(__file__).parents[2]
# As systemctl of systemd 247 and later shows them: shell_maybe_quote() in src/basic/escape.c.
SHOWN = [
    pytest.param("Environment=CGPAUSE_OPTIONS=", "", id="empty"),
    pytest.param("", "", id="no-unit-or-no-systemd"),
    pytest.param("Environment=A=1 CGPAUSE_OPTIONS=--dry-run B=2", "--dry-run", id="one"),
    pytest.param('Environment="CGPAUSE_OPTIONS=--config /a.toml" "B=x y"', "--config /a.toml", id="blank"),
    pytest.param(
        r'Environment="CGPAUSE_OPTIONS=--config \"/a b.toml\" \$x \\"', '--config "/a b.toml" $x \\', id="odd"
    ),
    pytest.param('Environment="B= CGPAUSE_OPTIONS=--verbose"', "", id="another-variable"),
]


def this_python(path: Path) -> None:
    """Make a command that runs the checkout's code; -I would hide it."""
    executable(path, f'shift; PYTHONPATH={shlex.quote(str(REPO))} exec {shlex.quote(sys.executable)} "$@"')


def run(shell: str, script: str, commands: Path, status: int) -> str:
    """Run a script with the commands of a folder before all others; return its output."""
    environ = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"}
    done = subprocess.run([shell], input=script, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Return a folder for commands that come before all others; its systemctl knows no unit."""
    executable(tmp_path / "commands/systemctl", "exit 1")
    return tmp_path / "commands"


@pytest.fixture
def pool(tmp_path: Path, commands: Path) -> Path:
    """Return the configuration that a drop-in of the unit names."""
    path = tmp_path / "etc/pool a.toml"
    path.parent.mkdir()
    shown = rf"""echo 'Environment=A=1 "CGPAUSE_OPTIONS=--verbose --config \"{path}\""' """
    executable(commands / "systemctl", f'case "$*" in *Environment*) {shown};; *NeedDaemonReload*) echo no;; esac')
    return path


@pytest.mark.parametrize(("shown", "options"), SHOWN)
def test_the_options_are_those_that_systemd_has_loaded(
    shown: str, options: str, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(commands / "systemctl", f"cat <<'END'\n{shown}\nEND")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")

    assert upgrade.unit_options() == options


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("CGPAUSE_OPTIONS=--config /a b", "--config /a b"),
        ("CGPAUSE_OPTIONS='--config \"/a b\"'", '--config "/a b"'),
        ("CGPAUSE_OPTIONS='--config", "'--config"),
        ("CGPAUSE_OPTIONS=--config /a \\\n--verbose", "--config /a --verbose"),
        ("# CGPAUSE_OPTIONS=--gone", "--verbose"),
        (None, "--verbose"),
    ],
)
def test_a_file_of_the_unit_comes_after_its_own_lines(
    line: str | None, options: str, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "of cgpause"
    if line is not None:
        file.write_text(f"OTHER=1\n{line}\n")
    shown = f"Environment=CGPAUSE_OPTIONS=--verbose\nEnvironmentFiles={tmp_path}/of* (ignore_errors=yes)"
    executable(commands / "systemctl", f"cat <<'END'\n{shown}\nEND")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")

    assert upgrade.unit_options() == options


def test_without_systemctl_the_defaults_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    assert upgrade.unit_options() == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param("--gone", "unrecognized arguments: --gone", id="option-gone"),
        pytest.param("--config 'x", "No closing quotation", id="open-quote"),
    ],
)
def test_options_that_the_new_version_refuses_are_named(
    options: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upgrade, "unit_options", lambda: options)

    assert upgrade.main() == 2
    told = capsys.readouterr().err
    assert said in told
    assert f"CGPAUSE_OPTIONS={options} (systemctl cat cgpause)" in told


# --- scripts/install -------------------------------------------------------------------------------------------------


def installer(folder: Path, program: str) -> str:
    """Return a program with the functions of scripts/install, whose paths are all in a folder."""
    text = (REPO / "scripts/install").read_text()
    functions = text.partition("\nuninstall='' purge=")[0].replace('"$(dirname "${BASH_SOURCE[0]}")/lib.sh"', '"$LIB"')
    for path in ("/etc/", "/usr/local/", "/run/", "/var/lib/"):
        functions = functions.replace(f"={path}", f"={folder}{path}")
    return f"LIB={REPO}/scripts/lib.sh; {functions}\n{program}\n"


def do_install(folder: Path) -> str:
    """Return a program that runs do_install up to the first change of what is in use."""
    this_python(folder / "python")
    return installer(
        folder,
        f"""
        metrics= no_start= wheels= python=true prefix={folder}/prefix
        choose_python() {{ :; }}
        build() {{ mkdir "$1/bin"; cp {folder}/python "$1/bin/python"; }}
        link() {{ echo "$2 changes"; exit 99; }}
        do_install
        """,
    )


def test_install_goes_on_only_with_a_good_configuration_that_a_drop_in_names(
    tmp_path: Path, commands: Path, pool: Path
) -> None:
    pool.write_text('policy = "nonsense"\n')

    said = run("bash", do_install(tmp_path), commands, 2)

    assert f"{pool}: policy: " in said
    assert f'CGPAUSE_OPTIONS=--verbose --config "{pool}" (systemctl cat cgpause)' in said
    assert "nothing was changed" in said
    assert list((tmp_path / "prefix").iterdir()) == [], "nor is the new version left"

    pool.write_text("")

    assert f"{tmp_path}/prefix/current changes\n" in run("bash", do_install(tmp_path), commands, 99)


def test_the_first_install_has_no_unit_and_no_configuration(tmp_path: Path, commands: Path) -> None:
    said = run("bash", do_install(tmp_path), commands, 99)

    assert "every option at its default" in said
    assert (tmp_path / "etc/cgpause/config.toml").read_text() == (REPO / "systemd/config.toml").read_text()


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "cgpause/core/clock.py", "systemd/restore.sh", "docs/cli.md", "docs/man/cgpause.1"]
)
def test_a_change_of_any_installed_file_makes_another_version(changed: str, tmp_path: Path, commands: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("cgpause", "docs", "scripts/completions", "systemd"):
        shutil.copytree(REPO / name, checkout / name)
    shutil.copy(REPO / "pyproject.toml", checkout)
    fingerprint = f"REPO={checkout} wheels= prefix=/opt python={sys.executable}; fingerprint"

    before = run("bash", installer(tmp_path, fingerprint), commands, 0)
    (checkout / changed).write_text((checkout / changed).read_text() + "\n")
    after = run("bash", installer(tmp_path, fingerprint), commands, 0)

    assert re.fullmatch(r"[0-9a-f]{64}  -\n", before), "and no error of a command"
    assert after != before


@pytest.mark.parametrize("failing", ["mktemp", "sed", "chmod", "mv"])
def test_a_unit_is_written_as_a_whole_or_the_install_ends(failing: str, tmp_path: Path, commands: Path) -> None:
    """As on a full disk: sed has written a part of the file."""
    unit = tmp_path / "etc/systemd/system/cgpause.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("old\n")
    executable(commands / failing, "echo '[Unit]'; exit 1")
    write = f"prefix=/opt; if write_unit {unit}; then echo changed; fi; echo went on"

    said = run("bash", installer(tmp_path, write), commands, 1)

    assert f"{unit} cannot be written" in said
    assert "went on" not in said
    assert [path.read_text() for path in unit.parent.iterdir()] == ["old\n"]


def test_wheels_of_another_state_of_the_checkout_are_refused(tmp_path: Path, commands: Path) -> None:
    site = tmp_path / "release/lib/python3.11/site-packages/cgpause"
    shutil.copytree(REPO / "cgpause", site, ignore=shutil.ignore_patterns("__pycache__"))
    executable(commands / "python", "")
    build = f"""
        wheels=/wheels python=python; find_pip() {{ :; }}; run_pip() {{ :; }}; fingerprint() {{ :; }}
        mkdir -p {tmp_path}/release/bin; cp {commands}/python {tmp_path}/release/bin
        build {tmp_path}/release || exit 1
        """
    run("bash", installer(tmp_path, build), commands, 0)
    changed = site / "core/clock.py"
    changed.write_text(changed.read_text() + "\n")

    assert "/wheels is not of this checkout; make it again" in run("bash", installer(tmp_path, build), commands, 2)


@pytest.mark.parametrize(("publish", "hints"), [("true", 0), ("false", 1)])
def test_metrics_are_those_of_the_configuration_that_a_drop_in_names(
    publish: str, hints: int, tmp_path: Path, commands: Path, pool: Path
) -> None:
    pool.write_text(f"[metrics]\npublish = {publish}\n")
    this_python(tmp_path / "prefix/current/bin/python")

    said = run("bash", installer(tmp_path, f"prefix={tmp_path}/prefix; start_metrics"), commands, 0)

    assert said.count("it has nothing to show") == hints


def test_uninstall_stops_what_runs_although_its_unit_file_is_gone(tmp_path: Path, commands: Path) -> None:
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix/current").symlink_to("release.removed")
    executable(commands / "systemctl", 'case "$*" in *ActiveState*) echo active ;; *) echo "systemctl $*" ;; esac')
    uninstall = f"purge= prefix={tmp_path}/prefix; restore_all() {{ echo all resumed; }}; do_uninstall"

    said = run("bash", installer(tmp_path, uninstall), commands, 0).splitlines()

    assert said.index("systemctl stop cgpause") < said.index("all resumed")
    assert "systemctl stop cgpause-metrics" in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("NewConnectionError('Failed to connect: [Errno 101] Network is unreachable')", "no network: "),
        ("ProxyError('Cannot connect to proxy.', NewConnectionError('[Errno 111] Connection refused'))", "pip failed"),
    ],
)
def test_what_is_wrong_with_a_proxy_pip_says_itself(error: str, says: str, tmp_path: Path, commands: Path) -> None:
    executable(commands / "pip", f'echo "{error}"; exit 1')

    said = run("bash", installer(tmp_path, f"export TMPDIR={tmp_path}; run_pip hint pip"), commands, 1)

    assert says in said
    assert (error in said) == (says == "pip failed")


# --- the Debian package's postinst -----------------------------------------------------------------------------------


def postinst(folder: Path, commands: Path) -> str:
    """Return the script with paths in a folder; its commands only write their arguments."""
    this_python(folder / "usr/lib/cgpause/bin/python")
    for name in ("py3compile", "install", "systemd-tmpfiles", "deb-systemd-helper", "deb-systemd-invoke"):
        executable(commands / name, f'echo {name} "$@" >&2')
    script = (REPO / "scripts/debian/postinst").read_text().replace("/usr/lib/cgpause", f"{folder}/usr/lib/cgpause")
    return f"set -- configure 0.0.1\n{script}"


def test_the_package_goes_on_only_with_a_good_configuration_that_a_drop_in_names(
    tmp_path: Path, commands: Path, pool: Path
) -> None:
    pool.write_text('policy = "nonsense"\n')

    said = run("sh", postinst(tmp_path, commands), commands, 1)

    assert f"{pool}: policy: " in said
    assert "nothing was started or restarted" in said
    assert "deb-systemd" not in said

    pool.write_text("")

    assert "deb-systemd-helper unmask cgpause.service" in run("sh", postinst(tmp_path, commands), commands, 0)


def test_the_package_is_installed_where_no_systemd_runs(tmp_path: Path, commands: Path) -> None:
    assert not os.path.lexists(DEFAULT_CONFIG)

    assert "error" not in run("sh", postinst(tmp_path, commands), commands, 0)
