"""Drives every parser by coverage with atheris: `python -m lab.measure.fuzz [--seconds S] [TARGET...]`, prints JSON.

The targets are in tests/helpers/fuzz_targets.py; each runs in a process of its own for S seconds. Exit status: 0 if no
parser broke, 3 if one did (with its input in the output), 2 if a target could not run.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.vm.host import REPO, LabError, say

# In the child, because atheris instruments what is imported after it, and never returns.
_CHILD = """
import sys
import atheris
with atheris.instrument_imports(include=["cgpause"]):
    from helpers.fuzz_targets import TARGETS
run = TARGETS[sys.argv.pop(1)].run
def once(data):
    run(data)
atheris.Setup(sys.argv, once)
atheris.Fuzz()
"""
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_COVERED = re.compile(r"\bcov: (\d+)")
_START_SECONDS = 120


def fuzz(name: str, seeds: Sequence[bytes], seconds: float) -> dict[str, Any]:
    """Drive one target; how often it ran, what that covered, and what broke it.

    Raises:
        LabError: it could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(seeds):
            (corpus / str(number)).write_bytes(seed)
        options = [f"-max_total_time={int(seconds)}", "-max_len=600", "-print_final_stats=1", "-seed=1"]
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, name, *options, f"-artifact_prefix={folder}/", str(corpus)],
            cwd=REPO / "tests",
            env={"PYTHONPATH": f"{REPO}:{REPO / 'tests'}", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds * 3 + _START_SECONDS,
            check=False,
        )
        executed, covered = _EXECUTED.search(done.stderr), _COVERED.findall(done.stderr)
        if executed is None:
            raise LabError(f"{name} did not run:\n{done.stderr[-2000:]}")
        broken = [one for one in Path(folder).iterdir() if one.is_file()]  # crash-*, timeout-*, oom-*
        return {
            "target": name,
            "executed": int(executed[1]),
            "covered": int(covered[-1]) if covered else 0,
            "broken": [f"{one.name.partition('-')[0]}: {one.read_bytes()!r}" for one in broken],
            "said": done.stderr[-1500:] if broken else "",
        }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    sys.path.insert(0, str(REPO / "tests"))
    from helpers.fuzz_targets import TARGETS  # noqa: PLC0415 - not on the path of every script

    parser = argparse.ArgumentParser(description="Drive every parser by coverage.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (%(default)s)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)} (all)")
    args = parser.parse_args(argv)
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}")
    found = []
    try:
        for name in args.targets or TARGETS:
            found.append(fuzz(name, TARGETS[name].seeds, args.seconds))
            say(f"{name}: {found[-1]['executed']} times, {len(found[-1]['broken'])} broken")
    except LabError as e:
        print(f"fuzz: {e}", file=sys.stderr)
        return 2
    print(json.dumps({"seconds": args.seconds, "python": platform.python_version(), "targets": found}))
    return 3 if any(one["broken"] for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
