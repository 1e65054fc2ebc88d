"""The page about the effects of a pause, against the results."""

from __future__ import annotations

from lab.pages.effects_report import REPORT


def test_the_page_for_teams_says_what_was_measured() -> None:
    """The outcomes in docs/what-a-pause-does.md, which are typed by hand, are those of the results."""
    (run,) = REPORT.load()["runs"]
    rows = {row["arm"]: row for row in run["effects"]}
    failures = {
        arm: tuple(row[name]["failed"] for name in ("requests", "writes", "pings")) for arm, row in rows.items()
    }

    assert [arm for arm, row in rows.items() if row["lease_lost"]] == ["batch: frozen for 60 s"]
    assert all(row["tcp_kept"] for row in rows.values())
    assert failures["service: frozen for 9 s, three times"] == (3, 3, 0)
    assert all(failures["batch: frozen for 60 s"])
    for arm in ("runs", "service: throttled for 9 s, three times", "batch: throttled for 60 s"):
        assert failures[arm] == (0, 0, 0)
