"""The performance report states the measurements, and nothing else."""

from __future__ import annotations

import json

from lab.pages.bench_report import REPORT, RESULTS, render, with_part


def test_the_report_is_what_the_results_say() -> None:
    assert render(json.loads(RESULTS.read_text())) == REPORT.read_text()


def test_of_a_recording_it_is_said_how_busy_the_host_was_where_that_was_recorded() -> None:
    known = json.loads(RESULTS.read_text())
    load = {name: value for name, value in known["trace"]["loads"][0].items() if name != "load_average"}
    trace = {**known["trace"], "loads": [{**load, "load_average": 3.25}, {**load, "load": "before it was recorded"}]}
    page = render({**known, "trace": trace})

    assert f"| {load['load']} | 3.25 | " in page
    assert "| before it was recorded | not recorded | " in page


def test_a_recording_measured_anew_goes_into_what_is_there() -> None:
    known = json.loads(RESULTS.read_text())
    part = {**known["trace"], "pods": 77, "loads": [{**known["trace"]["loads"][0], "load": "calm"}]}
    page = render(with_part(known, "1234567", part))

    assert "with 77 pods" in page
    assert page.count("| calm |") == 1
    assert page.count("1234567") == 1
    assert page.partition("## A recording")[0].count("\n") == REPORT.read_text().partition("## A recording")[0].count(
        "\n"
    )
    assert "A recording" not in render({name: value for name, value in known.items() if name != "trace"})


def test_the_start_of_commands_measured_anew_goes_into_what_is_there() -> None:
    known = json.loads(RESULTS.read_text())
    command = {"command": "cgpause --help", "median_ms": 81, "shortest_ms": 79, "cpu_ms": 70}
    facts = {name: known["trace"][name] for name in ("machine", "cpus", "kernel", "python", "date")}
    part = {"kind": "start", "tree": "plain", "pods": 110, "rounds": 25, "load_average": 0.1, "commands": [command]}

    page = render(with_part(known, "1234567", {**facts, **part}))

    assert "## The start of a command" in page
    assert "| `cgpause --help` | 81 | 79 | 70 |" in page
    assert page.count("1234567") == 1
