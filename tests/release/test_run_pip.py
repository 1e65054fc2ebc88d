"""The scripts' call of pip: what an operator sees when it fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "scripts/lib.sh"
# Port 9 (discard) of this host: pip's own error for a host that does not answer, without a network.
UNREACHABLE = f"{sys.executable} -m pip --isolated install --retries 1 --index-url http://127.0.0.1:9/simple nothing"


def run_pip(command: str, tmp_path: Path) -> tuple[int, str]:
    script = f'set -euo pipefail; . "{LIB}"; run_pip "use --wheels DIR" {command}'
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_without_a_network_it_says_so_and_where_pips_output_is(tmp_path: Path) -> None:
    status, said = run_pip(UNREACHABLE, tmp_path)

    assert status != 0
    [log] = tmp_path.iterdir()
    assert said == f"bash: no network: use --wheels DIR (pip's output: {log})\n"
    assert "No matching distribution found" in log.read_text()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"{sys.executable} -m pip --isolated install --no-index nothing", id="no-such-wheel"),
        pytest.param("sh -c 'echo ERROR: SSLError, certificate verify failed; exit 1'", id="certificate"),
    ],
)
def test_another_failure_is_shown_with_its_log(command: str, tmp_path: Path) -> None:
    status, said = run_pip(command, tmp_path)

    assert status == 1
    [log] = tmp_path.iterdir()
    assert re.search(rf"pip failed \(status 1\)\..* {log}:\n", said)
    assert "ERROR" in said
    assert "no network" not in said


def test_a_success_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    assert run_pip("true", tmp_path) == (0, "")
    assert list(tmp_path.iterdir()) == []
