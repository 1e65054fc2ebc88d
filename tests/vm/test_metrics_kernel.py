"""Debian's Prometheus scrapes the metrics of a running daemon, in the sandboxes of both units, on a real kernel."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.monitoring import alerts, expressions
from helpers.trees import wait_until
from vm.realnode import LONG_PAUSES, MIB, QUICK, REPO, Node, Start, cpu_max, pause_web, sandbox

from cgpause.core.clock import now_ns
from cgpause.core.paths import DEFAULT_LISTEN, METRICS_FILE
from cgpause.kernel.wholefile import replace
from cgpause.telemetry.metrics import FAMILIES, Figure, Values
from cgpause.telemetry.published import Stamp, encode

METRICS = QUICK + LONG_PAUSES + "[metrics]\npublish = true\n"
MONITORING = REPO / "docs/monitoring"
API = "http://127.0.0.1:9090/api/v1"
CONFIG = f"""
global: {{scrape_interval: 3s, evaluation_interval: 3s}}
rule_files: [{MONITORING}/alerts.yml]
scrape_configs:
  - job_name: cgpause
    honor_labels: true
    static_configs: [{{targets: ["{DEFAULT_LISTEN}"]}}]
"""


def promtool(*arguments: str | Path, text: bytes = b"") -> str:
    """Run promtool and assert success; return its output."""
    done = subprocess.run(
        ["promtool", *arguments], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    return said


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def answers(url: str) -> bool:
    try:
        return bool(fetch(url))
    except urllib.error.URLError:
        return False


def ask(path: str, **parameters: str) -> Any:  # noqa: ANN401 - whatever Prometheus answers
    return json.loads(fetch(f"{API}/{path}?{urllib.parse.urlencode(parameters)}"))["data"]


def query(expression: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and value of every series that an expression gives now."""
    return [(found["metric"], float(found["value"][1])) for found in ask("query", query=expression)["result"]]


def wait_for(expression: str) -> None:
    """Wait until a PromQL comparison holds; after a scrape that took too long there is no value at all."""
    wait_until(lambda: bool(query(expression)), expression)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Make the folder as systemd-tmpfiles does."""
    subprocess.run(["systemd-tmpfiles", "--create", str(REPO / "systemd/cgpause.tmpfiles")], check=True)
    yield Path("/run/cgpause")
    shutil.rmtree("/run/cgpause")


@pytest.fixture
def exporter(run_dir: Path) -> Iterator[str]:
    """Run `cgpause metrics` in the sandbox of its unit; return its URL."""
    unit = "cgpause-test-metrics.service"
    command = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *sandbox("cgpause-metrics.service")]
    command += [f"--setenv=PYTHONPATH={os.environ['PYTHONPATH']}", sys.executable, "-P", "-m", "cgpause"]
    subprocess.run([*command, "metrics"], check=True)
    url = f"http://{DEFAULT_LISTEN}/metrics"
    wait_until(lambda: answers(url), "the exporter")
    yield url
    subprocess.run(["systemctl", "stop", unit], check=True)


@pytest.fixture
def prometheus() -> Iterator[None]:
    """Run Debian's Prometheus with the alert rules; its data is on disk, because the tests are about memory."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "prometheus.yml").write_text(CONFIG)
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:9090"], stdout=log, stderr=log)

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return answers("http://127.0.0.1:9090/-/ready")

    try:
        wait_until(is_ready, "Prometheus")
        yield
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def test_a_real_prometheus_scrapes_what_happens_on_the_node(
    node: Node, start: Start, exporter: str, prometheus: None
) -> None:
    wait_for("cgpause_up == 0")  # no daemon publishes yet
    web, daemon = pause_web(node, start, METRICS, cpu_max="50000 100000", options=["--run-dir", "/run/cgpause"])

    wait_for("cgpause_up == 1")
    wait_for('cgpause_pods{state="paused"} == 1')
    wait_for('cgpause_pod_pauses_total{namespace="default", pod="web", mechanism="throttle"} == 1')
    wait_for('cgpause_pod_paused_seconds_total{namespace="default", pod="web"} > 2')
    wait_for('time() - cgpause_pod_pause_start_time_seconds{namespace="default", pod="web"} > 2')
    wait_for("cgpause_reaction_latency_seconds_count == 1")
    wait_for("rate(cgpause_tick_duration_seconds_count[30s]) > 0")
    wait_for("cgpause_headroom_bytes < 0.15 * cgpause_capacity_bytes")
    wait_for(f"cgpause_kubepods_memory_limit_bytes == {int((node.kubepods.root / 'memory.max').read_text())}")
    wait_for("sum(cgpause_degraded) == 0")
    promtool("check", "metrics", text=fetch(exporter))

    # An OOM kill at the pod's own limit is counted, but must not alert an operator.
    (web / "memory.max").write_text("1M")
    wait_for("cgpause_kubepods_oom_kills_total >= 1")
    wait_for('cgpause_resumes_total{cause="distress"} == 1')
    wait_for("cgpause_kubepods_limit_ooms_total == 0")
    # This one is at the limit of kubepods.
    (node.kubepods.root / "memory.max").write_text(str(100 * MIB))
    wait_for("cgpause_kubepods_limit_ooms_total >= 1")
    wait_until(lambda: "CgpauseOOMKills" in firing(), "the alert")

    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == alerts().count("- alert:")
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    for expression in expressions():
        filled = expression.replace("$__rate_interval", "30s").replace("$__range", "10m").replace("$instance", ".*")
        ask("query", query=filled)  # an error is HTTP 400
    assert daemon.end(signal.SIGKILL) != 0
    wait_for("cgpause_up == 0")
    wait_until(lambda: not query("cgpause_headroom_bytes"), "old values to be shown no more")
    assert cpu_max(web) != ""


def firing() -> set[str]:
    """Return the names of the firing alerts; assert that their texts have no template errors."""
    found = [alert for alert in ask("alerts")["alerts"] if alert["state"] == "firing"]
    for alert in found:
        assert not re.search(r"<error|<no value>|%!", json.dumps(alert["annotations"])), alert
    return {alert["labels"]["alertname"] for alert in found}


def test_promtool_is_content_with_every_metric_there_is(exporter: str, run_dir: Path) -> None:
    """This includes names with special characters."""
    values: Values = {}
    for family in FAMILIES:
        counts = (1,) * (len(family.buckets) + 1) if family.buckets else ()
        labels = [("x",) * len(family.labels), ('"\n\\} 1\n# TYPE cgpause_up counter\n\u2028é',) * len(family.labels)]
        values[family.name] = [Figure(each, 1, counts) for each in dict.fromkeys(labels)]
    replace(str(run_dir / METRICS_FILE), encode(Stamp(now_ns(), 1.0, 60.0), values))

    text = fetch(exporter)

    assert b"\ncgpause_up 1.0\n" in text
    assert text.count(b"\n# TYPE ") + text.startswith(b"# TYPE") == len(FAMILIES)
    assert promtool("check", "metrics", text=text) == ""


def test_the_alert_rules_do_what_their_tests_say() -> None:
    assert "SUCCESS" in promtool("check", "rules", MONITORING / "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", MONITORING / "alerts_test.yml")


def test_the_configurations_in_the_manual_are_prometheus_own(tmp_path: Path) -> None:
    found = re.findall(r"```yaml\n(.*?)```", (REPO / "docs/metrics.md").read_text(), re.DOTALL)
    assert found
    for number, text in enumerate(found):
        path = tmp_path / f"{number}.yml"
        path.write_text(text)
        assert "SUCCESS" in promtool("check", "config", path)
