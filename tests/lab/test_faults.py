"""The crash matrix: the faults that it injects, and that its report shows each failure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from lab.measure.faults import STEPS, make_cases
from lab.pages.faults_report import REPORT, main


def test_every_fault_comes_in_every_phase_at_a_step_that_it_may_reach() -> None:
    cases = make_cases(200, seed=3)
    assert set(Counter((case.phase, case.how) for case in cases).values()) == {10}
    assert all(0 <= case.step < STEPS[case.phase] for case in cases)
    assert len({case.step for case in cases}) > 50
    assert cases == make_cases(200, seed=3)
    assert cases != make_cases(200, seed=4)


def test_a_loss_is_on_the_page() -> None:
    results = REPORT.load()
    assert ", 0 losses.**" in REPORT.render(results)
    results["runs"][0]["losses"] = ["case 3: gone"]
    said = REPORT.render(results)
    assert ", 1 losses.**" in said
    assert f"- seed {results['runs'][0]['seed']}, case 3: gone" in said


def test_arguments_are_refused_before_a_vm_boots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--bogus"], ["--minutes", "x"], ["--minutes"], ["7"]):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path), *wrong])
        assert ended.value.code == 2
        assert "scripts/bench faults: error: " in capsys.readouterr().err


def test_added_runs_begin_after_the_pages_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--minutes", "5"]) == 0
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("1\n", [])
    assert main([str(tmp_path), "--minutes", "5", "--add"]) == 0
    kept = sorted(json.loads(file.read_text())["seed"] for file in tmp_path.iterdir())
    assert capsys.readouterr().out == f"{kept[-1] + 1}\n"
