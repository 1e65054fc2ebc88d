"""The performance report states the measurements, and nothing else."""

from __future__ import annotations

import json

from lab.pages.bench_report import REPORT, RESULTS, render


def test_the_report_is_what_the_results_say() -> None:
    assert render(json.loads(RESULTS.read_text())) == REPORT.read_text()


def test_of_a_recording_it_is_said_how_busy_the_host_was_where_that_was_recorded() -> None:
    known = json.loads(RESULTS.read_text())
    load = {name: value for name, value in known["trace"]["loads"][0].items() if name != "load_average"}
    trace = {**known["trace"], "loads": [{**load, "load_average": 3.25}, {**load, "load": "before it was recorded"}]}
    page = render({**known, "trace": trace})

    assert f"| {load['load']} | 3.25 | " in page
    assert "| before it was recorded | not recorded | " in page
