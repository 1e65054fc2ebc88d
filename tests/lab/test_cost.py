"""The figures of the pages on costs: counted, compared, and published with the commit of their measurement."""

from __future__ import annotations

import pytest
from lab.measure.cost import parse_wakeups
from lab.measure.slowdown import summarize
from lab.pages.bench_report import merge


@pytest.mark.parametrize("key", ["nr_wakeups", "se.statistics.nr_wakeups"])
def test_wakeups_are_the_kernels_count_under_its_old_name_and_its_new(key: str) -> None:
    sched = f"cgpause (4711, #threads: 1)\n---\nse.nr_migrations : 7\nnr_wakeups_sync : 8\n{key} :   42\n"

    assert parse_wakeups(sched) == 42


def test_a_slowdown_is_counted_within_its_round() -> None:
    """A round on a machine at half speed gives the same result as any other."""
    found = summarize({None: [1.0, 2.0, 1.0], 10: [90.0, 180.0, 90.0]})

    assert [(entry["quota_m"], entry["seconds"], entry["times"]) for entry in found] == [(None, 1.0, 1.0), (10, 90, 90)]


def test_a_kind_measured_by_itself_replaces_the_published_one_with_its_own_commit() -> None:
    bench, top = {"kind": "bench", "tree": "real"}, {"kind": "top", "tree": "real", "kernel": "6.1.0"}
    before = merge({}, "abc1234", [bench, top])

    after = merge(before, "def5678", [{**top, "kernel": "6.12.0"}])

    assert after["runs"] == [{**bench, "commit": "abc1234"}]
    assert after["tops"] == [{**top, "kernel": "6.12.0", "commit": "def5678"}]
