"""The crash matrix in small: `scripts/bench faults` ends the daemon far more often."""

from __future__ import annotations

import json
import subprocess
import sys

CASES = 8


def test_no_fault_at_any_step_leaves_anything_behind() -> None:
    command = [sys.executable, "-m", "lab.faults", "--cases", str(CASES), "--seed", "7"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    result = json.loads(done.stdout)
    assert result["losses"] == []
    assert result["hit"] >= CASES / 2, "faults that come too late prove nothing"
    assert done.returncode == 0
