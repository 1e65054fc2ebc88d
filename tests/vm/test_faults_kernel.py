"""Small runs of the crash matrix and the soak; `scripts/bench` ends the daemon far more often and runs far longer."""

from __future__ import annotations

import json
import subprocess
import sys

CASES, SEED = 4, 252
"""One case in each phase, each with another fault."""


def test_no_fault_at_any_step_leaves_anything_behind() -> None:
    command = [sys.executable, "-m", "lab.measure.faults", "--cases", str(CASES), "--seed", str(SEED)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    result = json.loads(done.stdout)
    assert result["losses"] == []
    assert result["hit"] >= CASES / 2, "faults that come too late prove nothing"
    assert done.returncode == 0


def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    for seconds in ("30", "300"):  # on a slow machine the daemon may pause no pod in the first 30 s
        command = [sys.executable, "-m", "lab.measure.soak", "--seconds", seconds]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        result = json.loads(done.stdout)
        if done.returncode or result["pauses"]:
            break
    assert result["wrong"] == []
    assert result["grown"] == []
    assert result["made_again"] > 0
    assert result["pauses"] > 0
    assert done.returncode == 0
