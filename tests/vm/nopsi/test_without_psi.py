"""A kernel booted with psi=0: the daemon works from headroom alone and says so. This needs a boot of its own."""

from __future__ import annotations

import json
import os
import subprocess

from vm.realnode import PAUSED, Node, Start, pause_web


def test_headroom_alone_pauses_and_resumes(node: Node, start: Start) -> None:
    assert not os.path.exists("/proc/pressure/memory"), "this boot has PSI, so the test would prove nothing"
    pod, daemon = pause_web(node, start, cpu_max="50000 100000")

    node.wait_until_cpu_max(pod, PAUSED)

    assert daemon.log.count("no PSI trigger") == 2
    node.resize("filler", 10)
    node.wait_until_cpu_max(pod, "50000 100000")
    assert daemon.stop() == 0


def test_check_warns_and_status_has_no_pressure(node: Node) -> None:
    check = subprocess.run(node.cgpause("check", "-ojson"), capture_output=True, text=True, check=False)
    status = subprocess.run(node.cgpause("status", "-ojson"), capture_output=True, text=True, check=True)

    psi = [finding for finding in json.loads(check.stdout)["checks"] if finding["name"] == "psi"]
    assert [(finding["level"], "psi=1" in finding["advice"]) for finding in psi] == [("warn", True)]
    shown = json.loads(status.stdout)
    assert [shown["node"]["pressure"], shown["kubepods"]["pressure"]] == [None, None]
