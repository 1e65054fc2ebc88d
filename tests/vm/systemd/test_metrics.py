"""The metrics unit under a real systemd."""

from __future__ import annotations

import re
import stat
import urllib.request
from pathlib import Path

import pytest
from helpers.trees import wait_until
from vm.installed import METRICS_UNIT, RUN, drop_in, install, systemd_is_up_to_date
from vm.slices import CONFIG, CONFIG_TEXT, REPO, WHEELS, Node, main_pid, metrics, run, serves


def test_metrics_are_added_when_asked_for_and_served_by_nobody(calm: Node) -> None:
    assert not METRICS_UNIT.exists()

    said = install("--wheels", WHEELS, "--metrics")

    assert "publish = true" in said
    assert systemd_is_up_to_date("cgpause-metrics")
    wait_until(lambda: serves("cgpause_up", "0.0"), "the metrics of a daemon that publishes nothing")
    CONFIG.write_text(f"{CONFIG_TEXT}[metrics]\npublish = true\n")
    run("systemctl", "reload", "cgpause")
    wait_until(lambda: serves("cgpause_up", "1.0"), "the daemon's figures")
    status = Path(f"/proc/{main_pid('cgpause-metrics')}/status").read_text()
    assert re.search(r"^Uid:\t0\t", status, re.MULTILINE) is None
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
    assert metrics()['cgpause_degraded{what="inotify"}'] == metrics()['cgpause_degraded{what="psi"}'] == "0.0"
    calm.tighten()
    paused = 'cgpause_pod_pauses_total{namespace="default",pod="small",mechanism="throttle"}'
    wait_until(lambda: serves(paused, "1.0"), "the pause to be counted")
    run("systemctl", "stop", "cgpause")
    # The file goes with the daemon, but the daemon waits only a second for the thread that removes it.
    wait_until(lambda: serves("cgpause_up", "0.0"), "the daemon's figures to go")
    run("systemctl", "start", "cgpause")


def test_an_upgrade_keeps_the_metrics(calm: Node) -> None:
    METRICS_UNIT.write_text("# of an older version\n")
    install("--wheels", WHEELS)

    assert "DynamicUser=yes" in METRICS_UNIT.read_text()
    assert systemd_is_up_to_date("cgpause-metrics")
    wait_until(lambda: serves("cgpause_up", "1.0"), "the metrics")


def test_nobody_else_reaches_the_metrics_even_where_they_listen_on_all_addresses() -> None:
    (text,) = re.findall(r"```ini\n(.*?)```", (REPO / "docs/metrics.md").read_text(), re.DOTALL)
    with drop_in(METRICS_UNIT, text):
        run("systemctl", "restart", "cgpause-metrics")
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
