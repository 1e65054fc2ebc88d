"""The statements about container runtimes match the measurements."""

from __future__ import annotations

from lab.measure.runtimes import RUNTIMES, STARTS
from lab.pages.runtimes_report import REPORT

from cgpause.pods.tracked import SPARED_S


def test_a_new_container_is_left_alone_until_its_runtime_has_mostly_made_it() -> None:
    (run,) = REPORT.load()["runs"]

    assert [found["runtime"].split()[0] for found in run["runtimes"]] == list(RUNTIMES)
    for found in run["runtimes"]:
        assert len(found["times_ms"]) == STARTS
        assert 0 < max(found["times_ms"]) < SPARED_S * 1000
