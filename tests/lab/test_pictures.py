"""The pictures of docs/policies.md show the recorded data and the policy's decisions; docs/top.svg the dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from helpers.dashboards import busy_snapshot
from lab.demo.live import drawn
from lab.pages import timeline_plot
from lab.pages.timeline_plot import spans


def test_the_recording_is_of_the_same_jobs_at_a_known_commit(tmp_path: Path) -> None:
    results = json.loads(timeline_plot.RESULTS.read_text())
    (run,) = results["runs"]
    without, with_cgpause = run["arms"]

    assert "dirty" not in results["commit"]
    assert without["timeline"].keys() == with_cgpause["timeline"].keys()
    for arm in run["arms"]:
        lives = list(map(spans, arm["timeline"].values()))
        assert sum(len(life.killed) for life in lives) == arm["restarts"]
        assert all(life.runs and len(life.runs) == len(life.killed) + 1 for life in lives)
    assert sum(len(spans(job).paused) for job in with_cgpause["timeline"].values()) > 0
    timeline_plot.draw(results, tmp_path / "again.png")
    assert (tmp_path / "again.png").stat().st_size > 10_000


def test_the_picture_of_the_dashboard_needs_nothing_from_elsewhere() -> None:
    picture = drawn(busy_snapshot())

    assert 'xml:space="preserve"' in picture, "rsvg-convert would draw 'P pauses' as 'Ppauses'"
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "batch/report-1" in picture
    assert "url(http" not in picture, "who looks at it asks nobody's server for a font"
