"""The crash matrix: the faults that it injects, and that its report shows each failure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from lab.measure.faults import STEPS, How, Phase, make_cases
from lab.pages.faults_report import main, render, write_runs


def test_every_fault_comes_in_every_phase_at_a_step_that_it_may_reach() -> None:
    cases = make_cases(200, seed=3)
    assert set(Counter((case.phase, case.how) for case in cases).values()) == {10}
    assert all(0 <= case.step < STEPS[case.phase] for case in cases)
    assert len({case.step for case in cases}) > 50
    assert cases == make_cases(200, seed=3)
    assert cases != make_cases(200, seed=4)


def test_the_runs_of_several_vms_are_added() -> None:
    hits = {phase: dict.fromkeys(How, 2) for phase in Phase}
    run = {"cases": 41, "hit": 40, "hits": hits, "losses": [], "kernel": "6.1", "cpus": 1}
    runs = [{**run, "seed": 1}, {**run, "seed": 2, "losses": ["case 3: gone"]}]
    said = render({"commit": "abc", "date": "2026-11-22", "runs": runs})
    assert "**80 faults in 82 cases (seeds: 1, 2), 1 losses.**" in said
    assert "- seed 2, case 3: gone" in said
    assert ", 0 losses.**" in render({"commit": "abc", "date": "2026-11-22", "runs": runs[:1]})
    assert "| SIGKILL | 4 | 4 | 4 | 4 |" in said


def test_runs_that_are_added_keep_the_others_with_their_commits(tmp_path: Path) -> None:
    hits = {phase: dict.fromkeys(How, 2) for phase in Phase}
    run = {"cases": 40, "hit": 40, "hits": hits, "losses": [], "kernel": "6.1", "cpus": 1}
    first = {"commit": "abc", "date": "2026-11-22", "runs": [{**run, "seed": 9}, {**run, "seed": 10}]}
    assert write_runs(first, tmp_path) == 11
    earlier = [json.loads((tmp_path / f"faults-{seed}.json").read_text()) for seed in (10, 9)]
    said = render({"commit": "def", "date": "2026-11-23", "runs": [{**run, "seed": 11}, *earlier]})
    assert "**120 faults in 120 cases (seeds: 9, 10, 11), 0 losses.**" in said
    assert "Commit abc, 2026-11-22: seeds 9, 10.\n" in said
    assert "Commit def, 2026-11-23: seeds 11.\n" in said


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
