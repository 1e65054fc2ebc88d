"""Mutants of a module: how the bench makes, names and reports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.measure.mutants import TESTS, without_behaviour
from lab.measure.mutants_reasons import REASONS
from lab.pages.mutants_report import pct, render
from lab.vm.host import REPO

CODE = """\
from dataclasses import dataclass

@dataclass(frozen=True)
class Box:
    size: int | None = 1

def half(box: Box, *, up: bool) -> int | None:
    return box.size
"""


def test_every_module_and_its_tests_are_there() -> None:
    for name, tests in TESTS.items():
        assert (REPO / "cgpause" / f"{name}.py").is_file()
        assert all((REPO / test).exists() for test in tests), name
    assert set(REASONS) <= set(TESTS)


def test_what_cannot_change_behaviour_is_left_alone() -> None:
    lines = CODE.splitlines()
    found = {lines[start[0] - 1][start[1] : end[1]] for start, end in without_behaviour(CODE)}
    assert found == {"dataclass(frozen=True)", "int | None", "Box", "bool"}


def test_a_survivor_is_listed_with_its_reason_or_as_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REASONS, "daemon/brake", {"a -> b": "nobody can tell"})
    survivors = [{"line": 3, "before": "a", "after": "b"}, {"line": 4, "before": "c", "after": ""}]
    run = {"module": "daemon/brake", "mutants": 90, "tried": 4, "killed": 2, "survivors": survivors}
    page = render({"runs": [run | {"commit": "abc", "date": "today"}]})
    assert "| daemon/brake | 90 | 4 | 2 | 50 % | abc, today |" in page
    assert "- Line 3: `a` became `b`: nobody can tell\n" in page
    assert "- Line 4: `c` became ` `: **no reason yet**\n" in page


@pytest.mark.parametrize(("killed", "tried", "expected"), [(0, 0, 100), (17, 20, 85), (0, 1, 0)])
def test_the_share_that_is_killed(killed: int, tried: int, expected: float) -> None:
    assert pct(killed, tried) == expected


USE_A_BED = """
import sys
from pathlib import Path
from lab.measure.mutants import Bed
from lab.vm.host import LabError
bed, tests = Bed(Path(sys.argv[1])), ["tests/core/test_durations.py"]
copy = bed.folder / "cgpause/core" / "durations.py"
print(bed.passes(tests, 60))
copy.write_text("raise SystemExit")
print(bed.passes(tests, 60))
copy.write_text("while True: pass")
print(bed.passes(tests, 1))
(bed.folder / "tests" / "test_none.py").touch()
try:
    bed.passes(["tests/test_none.py"], 60)
except LabError as e:
    print(e)
"""


def test_tests_run_on_a_copy_for_a_bounded_time(tmp_path: Path) -> None:
    """Use a process that has not imported cgpause, like the bench."""
    module = REPO / "cgpause/core" / "durations.py"
    original = module.read_text()
    done = subprocess.run(
        [sys.executable, "-c", USE_A_BED, str(tmp_path)],
        env={"PYTHONPATH": f"{REPO}:{REPO / 'scripts'}", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["True", "False", "False", "no tests in tests/test_none.py"]
    assert module.read_text() == original


def test_mutants_are_the_same_each_time_and_behave_differently() -> None:
    from lab.measure.mutants import Mutants  # noqa: PLC0415 - cosmic_ray takes a second to import

    code = "def f(a: int | None, *, b: int) -> int:\n    log(a)\n    return a + 1 if b else 2\n"
    made = list(Mutants(code))
    assert [mutant.after for mutant in made] == [mutant.after for mutant in Mutants(code)]
    assert len(made) == len(Mutants(code)) - 1  # b stays a keyword
    assert {(mutant.line, mutant.after) for mutant in made} >= {(2, "pass"), (3, "pass")}
    assert all(mutant.code != code for mutant in made)
