"""The experiment's report and plots show the results, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.experiments import make_results, well
from lab.measure.experiment import Wanted
from lab.pages.experiment_plots import ticks
from lab.pages.experiment_report import PLOTS, REPORT, publish


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


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        pytest.param(0.9, 1.21, [0.9, 1, 1.1, 1.2], id="room-for-all"),
        pytest.param(0.38, 4.5, [0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.6, 2, 3, 4], id="those-that-would-touch-are-left-out"),
    ],
)
def test_labels_of_ratios_do_not_touch(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected
