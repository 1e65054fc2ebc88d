"""The experiment's report and plots show the results, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.experiments import EVERYTHING, make_results, well
from lab.measure.experiment import Wanted
from lab.measure.experiment_results import load
from lab.pages.experiment_plots import ticks
from lab.pages.experiment_report import PLOTS, REPORT, publish, render
from lab.vm.host import REPO


def test_publishing_writes_report_and_plots(tmp_path: Path) -> None:
    results = make_results([trial for batch in Wanted(("kubepods",)).batches() for trial in batch], well)

    said = publish(results, tmp_path)

    wanted = set(PLOTS)
    assert said == f"wrote {REPORT} and {len(wanted)} plots"
    assert {path.name for path in tmp_path.iterdir()} == wanted | {REPORT}
    for name in wanted:
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG\r\n")
        assert 10_000 < len(picture) < 150_000
        assert f"]({name})" in (tmp_path / REPORT).read_text()


def test_the_report_needs_no_matplotlib(tmp_path: Path) -> None:
    make_results(EVERYTHING[:9], well).save(tmp_path / "experiment.json")
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\n"
        "from lab.measure.experiment import load, publish\n"
        "folder = Path(sys.argv[1])\n"
        "print(publish(load(folder / 'experiment.json'), folder))\n"
    )
    env = {"PYTHONPATH": f"{REPO}:{REPO}/scripts", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=env, capture_output=True, text=True, check=True)

    assert "no plots: matplotlib is not installed" in done.stdout
    assert (tmp_path / REPORT).read_text() == render(load(tmp_path / "experiment.json"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        pytest.param(0.9, 1.21, [0.9, 1, 1.1, 1.2], id="room-for-all"),
        pytest.param(0.38, 4.5, [0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.6, 2, 3, 4], id="those-that-would-touch-are-left-out"),
    ],
)
def test_labels_of_ratios_do_not_touch(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected
