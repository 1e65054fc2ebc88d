"""`cgpause condition` and the shell plugin of docs/deploy, by node-problem-detector's protocol for custom plugins."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from helpers.commandline import run
from helpers.trees import FakeTree, damage, pause_pod

from cgpause.cli import condition
from cgpause.core.clock import now_ns
from cgpause.core.model import About, Owner
from cgpause.core.paths import METRICS_FILE
from cgpause.kernel.find_daemon import DaemonState, RunningDaemon
from cgpause.telemetry.metrics import Figure, Values
from cgpause.telemetry.published import Stamp, encode

DEPLOY = Path(__file__).parents[2] / "docs/deploy"
CONFIG_MAP = yaml.safe_load((DEPLOY / "node-problem-detector.yaml").read_text())
MONITOR: dict[str, Any] = json.loads(CONFIG_MAP["data"]["cgpause.json"])
PATCH = yaml.safe_load((DEPLOY / "node-problem-detector-patch.yaml").read_text())["spec"]["template"]["spec"]
OK, PROBLEM, UNKNOWN = 0, 1, 2
NO_PAUSE = "no pod is paused"
RUNS = "the daemon runs"


class Said(NamedTuple):
    code: int
    text: str


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition, "find_daemon", lambda _root: RunningDaemon(DaemonState.RUNNING, 1))


def figures(*, paused: int = 0, damaged: int = 0, degraded: str = "") -> Values:
    starts = [Figure(("default", f"job-{n}", "daemon", "freeze"), time.time() - 60 + n) for n in range(paused)]
    return {
        "cgpause_pods": [Figure(("running",), 12), Figure(("paused",), paused), Figure(("protected",), 3)],
        "cgpause_paused_pods": [
            Figure(("daemon", "throttle"), 0),
            Figure(("daemon", "freeze"), paused),
            Figure(("manual", "throttle"), 0),
            Figure(("manual", "freeze"), 0),
        ],
        "cgpause_damaged_pods": [Figure((), damaged)],
        "cgpause_pod_pause_start_time_seconds": starts,
        "cgpause_degraded": [Figure((what,), int(what == degraded)) for what in ("inotify", "psi", "memory")],
    }


def publish(folder: Path, values: Values, age_s: float = 0) -> Path:
    path = folder / METRICS_FILE
    path.write_bytes(encode(Stamp(now_ns() - int(age_s * 1e9), time.time(), 5.0), values))
    return path


def ask(tree: FakeTree, about: str, file: Path | None = None) -> Said:
    found = condition.read_condition(
        About(about), str(tree.root), str(tree.log_dir), None if file is None else str(file)
    )
    return Said(found.status, found.message)


def plugin(folder: Path, *arguments: str | Path) -> Said:
    """Run the shell plugin as node-problem-detector does: no shell, exit code, stdout."""
    path = folder / "cgpause-condition"
    path.write_text(CONFIG_MAP["data"]["cgpause-condition"])
    path.chmod(0o555)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return Said(done.returncode, done.stdout.removesuffix("\n"))


# --- paused ----------------------------------------------------------------------------------------------------------


def test_without_a_pause_the_node_has_no_problem(tree: FakeTree) -> None:
    tree.add_pod("web")
    assert ask(tree, "paused") == (OK, NO_PAUSE)


def test_paused_pods_are_named_with_their_time_whoever_paused_them(tree: FakeTree) -> None:
    pause_pod(tree.root, tree.add_pod("web"), Owner.DAEMON)
    assert ask(tree, "paused") == (PROBLEM, "1 pod paused: default/web (0s)")
    pause_pod(tree.root, tree.add_pod("db", namespace="shop"), Owner.MANUAL)
    assert ask(tree, "paused") == (PROBLEM, "2 pods paused: default/web (0s), shop/db (0s)")


def test_a_pod_with_a_damaged_record_counts_as_paused(tree: FakeTree) -> None:
    pod = tree.add_pod("web")
    pause_pod(tree.root, pod, Owner.DAEMON)
    damage(pod)
    assert ask(tree, "paused") == (PROBLEM, "1 pod paused: default/web (damaged record)")


def test_a_message_fits_into_what_node_problem_detector_keeps(tree: FakeTree) -> None:
    for number in range(20):
        pause_pod(tree.root, tree.add_pod(f"a-pod-with-a-long-name-{number}"), Owner.DAEMON)
    code, text = ask(tree, "paused")
    assert code == PROBLEM
    assert text.startswith("20 pods paused: default/a-pod-with-a-long-name-0 (0s), ")
    assert len(text.encode()) == MONITOR["pluginConfig"]["max_output_length"]
    assert text.endswith("...")


def test_a_tree_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    for about in About:
        found = condition.read_condition(about, str(tmp_path / "missing"), str(tmp_path), None)
        assert found.status == UNKNOWN
        assert found.message.startswith("no such directory: /")


# --- unsafe ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("running")
def test_a_running_daemon_is_safe_with_figures_and_without(tree: FakeTree, tmp_path: Path) -> None:
    pause_pod(tree.root, tree.add_pod("web"), Owner.DAEMON)
    assert ask(tree, "unsafe") == (OK, RUNS)
    assert ask(tree, "unsafe", tmp_path / "missing") == (OK, RUNS)
    assert ask(tree, "unsafe", publish(tmp_path, figures(paused=1))) == (OK, RUNS)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (DaemonState.STOPPED, (PROBLEM, "the daemon does not run; 1 pod left paused (cgpause resume --all)")),
        (DaemonState.LOOKING_ON, (OK, RUNS)),
        (DaemonState.UNKNOWN, (UNKNOWN, "cannot find out whether the daemon runs (root, host's PID namespace?)")),
    ],
)
def test_without_a_daemon_the_pods_that_it_left_paused_are_counted(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch, state: DaemonState, said: tuple[int, str]
) -> None:
    monkeypatch.setattr(condition, "find_daemon", lambda _root: RunningDaemon(state))
    pause_pod(tree.root, tree.add_pod("web"), Owner.DAEMON)
    pause_pod(tree.root, tree.add_pod("db"), Owner.MANUAL)
    assert ask(tree, "unsafe") == said


def test_fresh_figures_show_a_daemon_that_cannot_be_seen_otherwise(
    tree: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 5.19 there is no file to lock, and a container may not see the lock's owner."""
    monkeypatch.setattr(condition, "find_daemon", lambda _root: RunningDaemon(DaemonState.UNKNOWN))
    assert ask(tree, "unsafe", publish(tmp_path, figures())) == (OK, RUNS)
    assert ask(tree, "unsafe", publish(tmp_path, figures(), age_s=60))[0] == PROBLEM


@pytest.mark.usefixtures("running")
def test_a_figure_that_is_no_number_is_unknown(tree: FakeTree, tmp_path: Path) -> None:
    file = publish(tmp_path, figures())
    file.write_bytes(file.read_bytes().replace(b"cgpause_damaged_pods 0.0", b"cgpause_damaged_pods x"))
    code, text = ask(tree, "unsafe", file)
    assert (code, text.startswith("the published figures are damaged: ")) == (UNKNOWN, True)


@pytest.mark.usefixtures("running")
def test_a_damaged_record_is_unsafe(tree: FakeTree) -> None:
    pod = tree.add_pod("web")
    pause_pod(tree.root, pod, Owner.DAEMON)
    damage(pod)
    assert ask(tree, "unsafe") == (PROBLEM, "1 pod with a damaged record: default/web")


BAD = [
    pytest.param({"damaged": 2}, 0, "2 pods cannot be resumed", "pods that cannot be resumed: 2", id="damaged"),
    pytest.param({"degraded": "memory"}, 0, "the daemon cannot read the node's memory", None, id="blind"),
    pytest.param({}, 60, "the daemon publishes nothing any more", None, id="stale"),
]


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(("values", "age_s", "said", "plugin_says"), BAD)
def test_command_and_plugin_find_the_same_in_the_figures(
    tree: FakeTree, tmp_path: Path, values: dict[str, Any], age_s: float, said: str, plugin_says: str | None
) -> None:
    path = publish(tmp_path, figures(**values), age_s)
    code, text = ask(tree, "unsafe", path)
    assert (code, text[: len(said)]) == (PROBLEM, said)
    code, text = plugin(tmp_path, "unsafe", path)
    expected = plugin_says or said
    assert (code, text[: len(expected)]) == (PROBLEM, expected)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("what", ["inotify", "psi"])
def test_what_the_daemon_can_do_without_is_not_unsafe(tree: FakeTree, tmp_path: Path, what: str) -> None:
    path = publish(tmp_path, figures(degraded=what))
    assert ask(tree, "unsafe", path) == plugin(tmp_path, "unsafe", path) == (OK, RUNS)


@pytest.mark.usefixtures("running")
def test_damaged_figures_are_unknown(tree: FakeTree, tmp_path: Path) -> None:
    (path := tmp_path / METRICS_FILE).write_text('{"schema": 9}')
    assert ask(tree, "unsafe", path)[0] == UNKNOWN


# --- the shell plugin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paused", "said"),
    [
        (0, (OK, NO_PAUSE)),
        (1, (PROBLEM, "paused pods: 1, for the longest time default/job-0")),
        (23, (PROBLEM, "paused pods: 23, for the longest time default/job-0")),
    ],
)
def test_the_plugin_counts_the_paused_pods(tmp_path: Path, paused: int, said: tuple[int, str]) -> None:
    assert plugin(tmp_path, "paused", publish(tmp_path, figures(paused=paused))) == said


def test_without_the_file_the_plugin_knows_nothing_of_pods_and_calls_it_unsafe(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert plugin(tmp_path, "paused", missing) == (UNKNOWN, "unknown: the daemon publishes nothing")
    assert plugin(tmp_path, "unsafe", missing)[0] == PROBLEM
    assert plugin(tmp_path, "paused", publish(tmp_path, figures(paused=1), age_s=60))[0] == UNKNOWN


@pytest.mark.parametrize("text", ["", "{}", '{"at_ns":', "\0\xff", '{"at_ns":1,"values":{}}', '{"at_ns":$(id)}'])
def test_the_plugin_never_calls_a_damaged_file_well(tmp_path: Path, text: str) -> None:
    (path := tmp_path / METRICS_FILE).write_text(text)
    for about in About:
        assert plugin(tmp_path, about, path)[0] in (PROBLEM, UNKNOWN)
    path.write_bytes(encode(Stamp(now_ns(), time.time(), 5.0), {}))
    for about in About:
        assert plugin(tmp_path, about, path) == (UNKNOWN, "unknown: this version publishes other figures")


def test_a_wrong_question_is_unknown(tmp_path: Path) -> None:
    path = publish(tmp_path, figures())
    assert plugin(tmp_path, "other", path) == (UNKNOWN, "usage: cgpause-condition paused|unsafe [FILE]")


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    values = figures(paused=1)
    values["cgpause_pod_pause_start_time_seconds"] = [Figure(("n" * 63, "p" * 253, "daemon", "freeze"), 1.0)]
    code, text = plugin(tmp_path, "paused", publish(tmp_path, values))
    assert (code, len(text)) == (PROBLEM, 80)


# --- node-problem-detector's configuration ---------------------------------------------------------------------------


def test_the_monitor_is_one_that_node_problem_detector_takes() -> None:
    """The checks of Validate() and the fields of its types (pkg/custompluginmonitor/types)."""
    assert MONITOR["plugin"] == "custom"
    assert MONITOR.keys() == {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    assert MONITOR["pluginConfig"].keys() == {
        "invoke_interval",
        "timeout",
        "max_output_length",
        "concurrency",
        "enable_message_change_based_condition_update",
    }
    types = {entry["type"]: entry for entry in MONITOR["conditions"]}
    assert {rule["condition"] for rule in MONITOR["rules"]} == types.keys() == {"PodsPaused", "CgpauseUnsafe"}
    for rule in MONITOR["rules"]:
        assert rule.keys() == {"type", "condition", "reason", "path", "args"}
        assert rule["type"] == "permanent"
        assert [About(about) for about in rule["args"]]
        assert rule["reason"] != types[rule["condition"]]["reason"]
    assert [types[name]["message"] for name in ("PodsPaused", "CgpauseUnsafe")] == [NO_PAUSE, RUNS]


def test_the_patch_puts_everything_where_the_monitor_looks_for_it() -> None:
    [container] = PATCH["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in PATCH["volumes"]}

    assert container["args"] == ["--config.custom-plugin-monitor=/cgpause/cgpause.json"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert mounts.keys() == volumes.keys()
    config = volumes["cgpause-conditions"]["configMap"]
    assert (config["name"], config["defaultMode"]) == (CONFIG_MAP["metadata"]["name"], 0o555)
    for rule in MONITOR["rules"]:
        assert rule["path"] == f"{mounts['cgpause-conditions']}/cgpause-condition"
    assert mounts["cgpause-run"] == volumes["cgpause-run"]["hostPath"]["path"] == "/run/cgpause"


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_follows_the_protocol_too(tree: FakeTree) -> None:
    tree.add_pod("web")
    result = run(tree, "condition", "paused")
    assert (result.exit_code, result.stdout) == (OK, f"{NO_PAUSE}\n")
    pause_pod(tree.root, tree.add_pod("db"), Owner.DAEMON)
    result = run(tree, "condition", "paused")
    assert (result.exit_code, result.stdout) == (PROBLEM, "1 pod paused: default/db (0s)\n")
    result = run(tree, "condition", "everything")
    assert result.exit_code == UNKNOWN


def test_as_a_program_it_loads_neither_typer_nor_rich(tree: FakeTree) -> None:
    options = ["paused", f"--cgroup-root={tree.root}", f"--log-dir={tree.log_dir}"]
    code = f"import sys; from cgpause.cli.condition import main; main({options}); sys.exit('{{typer, rich}}' if "
    code += "{'typer', 'rich'} & sys.modules.keys() else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (OK, f"{NO_PAUSE}\n", "")
    program = [sys.executable, "-m", "cgpause.cli.condition", *options]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (OK, f"{NO_PAUSE}\n", "")
