"""Unit files and shell scripts, checked without starting them (tests/vm/systemd starts them)."""

from __future__ import annotations

import ipaddress
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fixtures import Capture

from cgpause import restore
from cgpause.config.arguments import daemon_parser, parse_options
from cgpause.core.paths import DEFAULT_CONFIG, DEFAULT_LISTEN, DEFAULT_LOG_DIR, DEFAULT_RUN_DIR, DEFAULT_STATE_DIR
from cgpause.daemon import reload

REPO = Path(__file__).parents[2]
UNIT = REPO / "systemd/cgpause.service"
METRICS_UNIT = REPO / "systemd/cgpause-metrics.service"
UNITS = (UNIT, METRICS_UNIT)
TMPFILES = REPO / "systemd/cgpause.tmpfiles"
PREFIX = "/usr/local/lib/cgpause/current"
DIRECTIVE = re.compile(r"(?P<key>[A-Z]\w+)=(?P<value>.*)")


def directives(unit: Path = UNIT) -> list[tuple[str, str]]:
    return [(each["key"], each["value"]) for each in map(DIRECTIVE.fullmatch, unit.read_text().splitlines()) if each]


def values(key: str, unit: Path = UNIT) -> list[str]:
    return [value for found, value in directives(unit) if found == key]


OPTIONS = "$CGPAUSE_OPTIONS"


def module_arguments(command: str, module: str, options: str = "") -> list[str]:
    """Return the arguments that a `python ... -m MODULE` line gives to the module, with these CGPAUSE_OPTIONS."""
    words = shlex.split(command.replace(OPTIONS, options))
    assert words[0] == f"{PREFIX}/bin/python"
    at = words.index("-m")
    assert words[at + 1] == module
    assert "-I" in words[:at], "a working directory or environment could put other modules in front"
    return words[at + 2 :]


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def unit_here(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a unit with its commands replaced by commands that exist on this machine."""
    unit: Path = request.param
    text = unit.read_text()
    for command in ("python", "cgpause"):
        text = text.replace(f"{PREFIX}/bin/{command}", sys.executable)
    path = tmp_path / unit.name
    path.write_text(text)
    return path


def analyze(*argv: str | Path) -> str:
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: install systemd (scripts/test does)"
    done = subprocess.run(["systemd-analyze", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_nothing_to_complain_about(unit_here: Path) -> None:
    # The manual pages are installed together with the unit.
    assert analyze("verify", "--man=no", unit_here) == ""


def test_the_daemon_starts_again_whatever_kubelet_does() -> None:
    """Ordered behind k3s.service, its start would wait while that unit starts, without end if its datastore is down."""
    assert [key for key, _ in directives() if key in {"After", "Requires", "Requisite", "BindsTo", "PartOf"}] == []


def test_exposure_is_as_low_as_the_job_allows(unit_here: Path) -> None:
    # The job needs the remaining exposure (root, cgroup files, /proc); the unit explains it. Of a unit
    # file systemd 252 says 2.3, of the loaded unit 2.1.
    assert "OK" in analyze("security", "--offline=yes", "--no-pager", "--threshold=25", unit_here)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_directive_has_its_reason(unit: Path) -> None:
    """A comment comes right before the directive, or before its run of lines with the same key."""
    unexplained = []
    previous, explained = "", False
    for line in unit.read_text().splitlines():
        found = DIRECTIVE.fullmatch(line)
        if line.startswith("#"):
            explained = True
        elif found:
            explained = explained if previous.startswith("#") else found["key"] == previous.partition("=")[0]
            if not explained:
                unexplained.append(line)
        previous = line
    obvious = ("Description=", "Documentation=", "WantedBy=")

    assert [line for line in unexplained if not line.startswith(obvious)] == []


LEFT_OUT = (
    "ProtectControlGroups ProtectProc ProcSubset PrivateUsers PrivateDevices PrivateTmp User DynamicUser "
    "StateDirectory RuntimeDirectory"
)


@pytest.mark.parametrize("directive", LEFT_OUT.split())
def test_hardening_left_out_is_left_out_with_a_reason(directive: str) -> None:
    comments = "\n".join(line for line in UNIT.read_text().splitlines() if line.startswith("#"))

    assert values(directive) == []
    assert re.search(rf"(Left out:|Not) [^.]*\b{directive}=", comments)


def test_the_only_capabilities_are_those_for_psi_and_for_pods_own_words() -> None:
    assert values("CapabilityBoundingSet") == ["CAP_SYS_RESOURCE CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"]
    assert values("AmbientCapabilities") == []


def test_exec_start_is_a_command_line_the_daemon_understands() -> None:
    [command] = values("ExecStart")
    options = parse_options(module_arguments(command, "cgpause.daemon"))

    assert options.config_file == DEFAULT_CONFIG
    assert options.config_path is None, "docs/configuration.md: the file need not exist"
    assert options.cgroup_root is None
    assert options.log_dir == DEFAULT_LOG_DIR
    assert options.history_path == f"{DEFAULT_STATE_DIR}/history.jsonl"
    assert options.learned_path == f"{DEFAULT_STATE_DIR}/learned.json"
    assert options.metrics_path == f"{DEFAULT_RUN_DIR}/metrics.prom"
    assert not options.dry_run


def test_the_folders_the_daemon_may_write_to_are_those_of_history_and_metrics() -> None:
    writable = [f"-{DEFAULT_STATE_DIR} -{DEFAULT_RUN_DIR}"]
    assert values("ReadWritePaths") == writable, "without them everything but history and metrics works"
    installer = (REPO / "scripts/install").read_text()
    assert f"STATE={DEFAULT_STATE_DIR} " in installer
    assert 'chmod 700 "$STATE"' in installer


def test_no_folder_must_be_there_or_made_for_exec_stop_post_to_run() -> None:
    made = re.compile(r"(State|Cache|Logs|Runtime|Configuration|Working)Directory")

    assert [line for line in directives() if made.fullmatch(line[0])] == []
    paths = [path for key, value in directives() if key.endswith("Paths") for path in value.split()]
    assert [path for path in paths if not path.startswith("-") and path not in ("/run", "/dev")] == []


def test_a_tree_of_ones_own_is_neither_in_the_nodes_history_nor_in_its_metrics() -> None:
    own = ["--cgroup-root", "/some/tree"]
    options = parse_options(own)
    assert (options.history_path, options.learned_path, options.metrics_path) == (None, None, None)

    options = parse_options([*own, "--state-dir", "/state", "--run-dir", "/here"])
    assert options.history_path == "/state/history.jsonl"
    assert options.learned_path == "/state/learned.json"
    assert options.metrics_path == "/here/metrics.prom"


def test_everybody_may_look_into_the_folder_of_the_metrics_and_root_alone_may_write() -> None:
    lines = [line for line in TMPFILES.read_text().splitlines() if not line.startswith("#")]

    assert lines == [f"d {DEFAULT_RUN_DIR} 0755 root root -"]
    assert f"RUN={DEFAULT_RUN_DIR} " in (REPO / "scripts/install").read_text()


def test_the_metrics_come_from_nobody_and_go_no_further_than_the_loopback() -> None:
    assert values("DynamicUser", METRICS_UNIT) == ["yes"]
    assert values("CapabilityBoundingSet", METRICS_UNIT) == [""]
    assert (values("IPAddressDeny", METRICS_UNIT), values("IPAddressAllow", METRICS_UNIT)) == (["any"], ["localhost"])
    [command] = values("ExecStart", METRICS_UNIT)
    assert module_arguments(command, "cgpause") == ["metrics"]
    assert ipaddress.ip_address(DEFAULT_LISTEN.rpartition(":")[0]).is_loopback


def launcher_arguments(options: str = "") -> list[str]:
    """Return the arguments that ExecStopPost= gives to `cgpause.restore`, with these CGPAUSE_OPTIONS."""
    [command] = values("ExecStopPost")
    words = shlex.split(command.replace(OPTIONS, options))
    assert words[:2] == ["/bin/sh", f"{PREFIX}/share/cgpause/restore.sh"]
    return words[2:]


def test_exec_stop_post_asks_for_what_the_daemon_left() -> None:
    assert launcher_arguments() == ["--daemon-only"]


def daemons_options(folder: Path) -> list[str]:
    """Return every option of the daemon; an option that takes a path gets one in `folder`."""
    options = []
    for action in daemon_parser("test", "test")._actions:
        name = action.option_strings[-1]
        if action.nargs != 0:
            options.append(f"{name} {folder / name.lstrip('-')}")
        elif name not in ("--help", "--version"):  # they end a process at once, the daemon too
            options.append(name)
    return options


def test_every_option_of_the_daemon_reaches_the_check_and_the_clean_up_too(tmp_path: Path, capsys: Capture) -> None:
    """Otherwise a daemon with such an option would leave pods paused, and systemd could not reload it."""
    assert values("Environment") == ["CGPAUSE_OPTIONS="], "unset, systemd complains at each start"
    (tree := tmp_path / "cgroup-root").mkdir()
    (tmp_path / "config").touch()
    options = daemons_options(tmp_path)
    assert {"--verbose", "--dry-run", f"--cgroup-root {tree}", f"--run-dir {tmp_path}/run-dir"} <= set(options)
    each = [f"{option} --cgroup-root {tree}" for option in options if "--cgroup-root" not in option]

    for given in (*each, " ".join(options)):
        assert parse_options(module_arguments(values("ExecStart")[0], "cgpause.daemon", given)).cgroup_root == str(tree)
        assert reload.main(module_arguments(values("ExecReload")[0], "cgpause.daemon.reload", given)) == 0
        assert restore.main(launcher_arguments(given)) == 0
    capsys.readouterr()


def test_no_option_of_the_daemon_has_abbreviations(capsys: Capture) -> None:
    """--d would mean --dry-run for the daemon, but could mean --daemon-only for the clean-up."""
    for main in (parse_options, reload.main, restore.main):
        with pytest.raises(SystemExit, match="2"):
            main(["--d"])
    capsys.readouterr()


def test_reload_checks_the_file_the_daemon_runs_with_and_then_signals(tmp_path: Path, capsys: Capture) -> None:
    check, signal = values("ExecReload")
    config = tmp_path / "config.toml"
    arguments = module_arguments(check, "cgpause.daemon.reload", f"--config {config}")

    assert reload.main(arguments) == 2
    assert f"{config}: cannot be read" in capsys.readouterr().err
    config.write_text('policy = "nonsense"\nperiod = 1\n')
    assert reload.main(arguments) == 2
    problems = capsys.readouterr().err.splitlines()
    assert [str(config) in problem for problem in problems] == [True, True]
    config.write_text("")
    assert reload.main(arguments) == 0
    assert signal == """/bin/sh -c 'kill -HUP "$MAINPID"'"""


def test_daemon_imports_nothing_heavy() -> None:
    """The daemon and the programs that run beside it or after its end must stay small."""
    heavy = {"typer", "rich", "click", "pydantic", "psutil", "prometheus_client", "subprocess", "tempfile", "ast"}
    heavy |= {"cgpause.telemetry.exporter", "cgpause.cli.top", "cgpause.cli.main"}
    for module in ("cgpause.daemon", "cgpause.daemon.reload", "cgpause.restore"):
        # -S: site-packages may contain a .pth file that imports modules itself.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; import {module}; print(*sorted({heavy!r} & sys.modules.keys()))"
        )
        done = subprocess.run([sys.executable, "-S", "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "", module


def test_installer_and_unit_agree_on_paths() -> None:
    script = (REPO / "scripts/install").read_text()

    assert f"DEFAULT_PREFIX={PREFIX.removesuffix('/current')} " in script
    assert f"CONFIG={DEFAULT_CONFIG}\n" in script
    for name, unit in (("UNIT", UNIT), ("METRICS_UNIT", METRICS_UNIT)):
        lines = [line for line in script.splitlines() if line.startswith(f"{name}=")]
        assert lines == [f"{name}=/etc/systemd/system/{unit.name}"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        pytest.param(["--help"], 0, "--uninstall", id="help"),
        pytest.param(["--nonsense"], 2, "unknown argument: --nonsense", id="unknown"),
        pytest.param(["--wheels"], 2, "--wheels wants a value", id="no-value"),
        pytest.param(["--metrics", "--uninstall"], 2, "--metrics does not go with --uninstall", id="metrics-uninstall"),
        pytest.param(["--purge"], 2, "--purge goes with --uninstall", id="purge-alone"),
        pytest.param(["--prefix", "/opt/with blank"], 2, "an absolute path of letters", id="prefix-with-blank"),
        pytest.param(["--prefix=/root/cgpause"], 2, "cannot see /root/cgpause", id="prefix-in-a-home"),
        pytest.param(["--wheels", "/nowhere"], 2, "no such folder", id="no-such-folder"),
    ],
)
def test_installer_refuses_before_it_touches_anything(arguments: list[str], status: int, said: str) -> None:
    done = subprocess.run(
        [REPO / "scripts/install", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )

    assert done.returncode == status
    assert said in done.stdout + done.stderr
