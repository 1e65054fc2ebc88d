"""The performance report says what was measured, and nothing else."""

from __future__ import annotations

import json

from lab.bench_report import REPORT, RESULTS, render


def test_the_report_is_what_the_results_say() -> None:
    assert render(json.loads(RESULTS.read_text())) == REPORT.read_text()
