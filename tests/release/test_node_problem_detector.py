"""The plugin for node-problem-detector in docs/deploy, by its protocol for custom plugins."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cgpause.core.clock import now_ns
from cgpause.core.paths import METRICS_FILE
from cgpause.telemetry.metrics import Figure, Values
from cgpause.telemetry.published import Stamp, encode

DEPLOY = Path(__file__).parents[2] / "docs/deploy"
CONFIG_MAP = yaml.safe_load((DEPLOY / "node-problem-detector.yaml").read_text())
MONITOR: dict[str, Any] = json.loads(CONFIG_MAP["data"]["cgpause.json"])
PATCH = yaml.safe_load((DEPLOY / "node-problem-detector-patch.yaml").read_text())["spec"]["template"]["spec"]
OK, PROBLEM, UNKNOWN = 0, 1, 2
ABOUT = ("paused", "unsafe")
NO_PAUSE = "no pod is paused"
RUNS = "the daemon runs"


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


def plugin(folder: Path, *arguments: str | Path) -> tuple[int, str]:
    """Run the shell plugin as node-problem-detector does: no shell, exit code, stdout."""
    path = folder / "cgpause-condition"
    path.write_text(CONFIG_MAP["data"]["cgpause-condition"])
    path.chmod(0o555)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.removesuffix("\n")


# --- the plugin ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "values", "age_s", "code", "text"),
    [
        ("unsafe", {"damaged": 2}, 0, PROBLEM, "pods that cannot be resumed: 2; the record is missing or damaged"),
        ("unsafe", {"degraded": "memory"}, 0, PROBLEM, "the daemon cannot read the node's memory, and pauses no pod"),
        ("unsafe", {"degraded": "inotify"}, 0, OK, RUNS),  # the daemon can do without
        ("unsafe", {"degraded": "psi"}, 0, OK, RUNS),
        ("unsafe", {}, 60, PROBLEM, "the daemon publishes nothing any more: does it hang?"),
        ("paused", {}, 0, OK, NO_PAUSE),
        ("paused", {"paused": 1}, 0, PROBLEM, "paused pods: 1, for the longest time default/job-0"),
        ("paused", {"paused": 23}, 0, PROBLEM, "paused pods: 23, for the longest time default/job-0"),
        ("paused", {"paused": 1}, 60, UNKNOWN, "unknown: the daemon publishes nothing any more"),
        ("other", {}, 0, UNKNOWN, "usage: cgpause-condition paused|unsafe [FILE]"),
    ],
)
def test_the_plugin_answers_from_what_is_published(
    tmp_path: Path, about: str, values: dict[str, Any], age_s: float, code: int, text: str
) -> None:
    assert plugin(tmp_path, about, publish(tmp_path, figures(**values), age_s)) == (code, text)


def test_without_the_file_the_plugin_knows_nothing_of_pods_and_calls_it_unsafe(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert plugin(tmp_path, "paused", missing) == (UNKNOWN, "unknown: the daemon publishes nothing")
    assert plugin(tmp_path, "unsafe", missing)[0] == PROBLEM


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\xff",
        "# cgpause 1 at_ns=",
        "# cgpause 1 at_ns=$(id) ",
        "{head}",
        "{head}cgpause_damaged_pods x\ncgpause_paused_pods x\n",
        "{head}cgpause_damaged_pods\ncgpause_paused_pods{{\n",
    ],
)
def test_the_plugin_never_calls_a_damaged_file_well(tmp_path: Path, text: str) -> None:
    head = f"# cgpause 1 at_ns={now_ns()} time=1.0 interval_s=5\n"
    (path := tmp_path / METRICS_FILE).write_text(text.replace("{head}", head).replace("{{", "{"))
    for about in ABOUT:
        assert plugin(tmp_path, about, path)[0] in (PROBLEM, UNKNOWN)
    path.write_bytes(encode(Stamp(now_ns(), time.time(), 5.0), {}))
    for about in ABOUT:
        assert plugin(tmp_path, about, path) == (UNKNOWN, "unknown: this version publishes other figures")


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
        assert rule["args"][0] in ABOUT
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
