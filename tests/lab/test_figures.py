"""The figures on the pages: how they are counted and published, and what the documentation says of them by hand."""

from __future__ import annotations

import re

import pytest
from lab.bed.arms import CONFIG
from lab.measure import liveness, tripwire
from lab.measure.cost import parse_wakeups
from lab.measure.runtimes import RUNTIMES, STARTS
from lab.measure.slowdown import summarize
from lab.measure.stock import NONE, STOCK
from lab.pages import effects_report, policy_report, runtimes_report, stock_report
from lab.pages.bench_report import merge
from lab.pages.report import group_by, total
from lab.vm.host import REPO

from cgpause.pods.tracked import SPARED_S


def test_wakeups_are_the_kernels_count() -> None:
    sched = "cgpause (4711, #threads: 1)\n---\nse.nr_migrations : 7\nnr_wakeups_sync : 8\nnr_wakeups :   42\n"

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


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ["answered 2000", "missed 1000100", "answered 4000", "answered 9000"],
            {"sent": 4, "answered": 3, "median_ms": 4.0, "longest_ms": 9.0},
            id="only-answers-have-a-time",
        ),
        pytest.param(
            ["missed 1000100"], {"sent": 1, "answered": 0, "median_ms": None, "longest_ms": None}, id="none-answered"
        ),
    ],
)
def test_probes_are_added_up(lines: list[str], expected: dict[str, float | None]) -> None:
    assert liveness.add_up(list(map(liveness.read_answer, lines))) == expected


def test_waits_are_added_up() -> None:
    waits_ns = [1_000_000] * 197 + [2_000_000, 101_000_000, 150_000_000]
    expected = {"count": 200, "median_ms": 1.0, "p99_ms": 2.0, "longest_ms": 150.0, "over_100ms": 2}
    assert tripwire.add_up(waits_ns) == expected


def test_the_shipped_configuration_has_the_option_that_an_arm_changes_once() -> None:
    assert CONFIG.read_text().count(tripwire.OPTION) == 1


def test_a_new_container_is_left_alone_until_its_runtime_has_mostly_made_it() -> None:
    (run,) = runtimes_report.REPORT.load()["runs"]

    assert [found["runtime"].split()[0] for found in run["runtimes"]] == list(RUNTIMES)
    for found in run["runtimes"]:
        assert len(found["times_ms"]) == STARTS
        assert 0 < max(found["times_ms"]) < SPARED_S * 1000


def test_the_page_for_teams_says_what_was_measured() -> None:
    """The outcomes in docs/what-a-pause-does.md, which are typed by hand, are those of the results."""
    (run,) = effects_report.REPORT.load()["runs"]
    rows = {row["arm"]: row for row in run["effects"]}
    kinds = ("requests", "writes", "pings")
    failures = {arm: tuple(row[kind]["failed"] for kind in kinds) for arm, row in rows.items()}

    assert [arm for arm, row in rows.items() if row["lease_lost"]] == ["batch: frozen for 60 s"]
    assert all(row["tcp_kept"] for row in rows.values())
    assert failures["service: frozen for 9 s, three times"] == (3, 3, 0)
    assert all(failures["batch: frozen for 60 s"])
    for arm in ("runs", "service: throttled for 9 s, three times", "batch: throttled for 60 s"):
        assert failures[arm] == (0, 0, 0)


README_LOADS = (
    "programs",
    "paper2",
    "cached",
    "idle",
    "waiting-paced",
    "waiting-backoff",
    "waiting",
    "nolimit-beside",
    "nolimit",
    "nolimit-half",
    "nolimit-long",
)
"""The loads of stock.json in the order of README's table; its last row adds them up."""


def test_the_readme_says_what_stock_measured() -> None:
    machines = [group_by(run["trials"], "load") for run in stock_report.REPORT.load()["runs"]]
    assert all(sorted(loads) == sorted(README_LOADS) for loads in machines)
    expected = []
    for names in (*([name] for name in README_LOADS), README_LOADS):
        cells = []
        for loads in machines:
            arms = group_by([run for name in names for run in loads[name]], "arm")
            none, stock = arms[NONE], arms[STOCK]
            share = total(stock, "total_s") / total(none, "total_s") - 1
            cells += [f"{total(none, 'restarts'):.0f} / {total(stock, 'restarts'):.0f}", f"{100 * share:+.0f} %"]
        expected.append(" | ".join(cells))
    shown = re.findall(r"\| ((?:\d+ / \d+ \| [+\u2212]\d+ %(?: \| )?){2}) \|", (REPO / "README.md").read_text())
    assert [row.replace("\u2212", "-") for row in shown] == expected


def test_the_readme_says_what_the_daemon_costs_while_it_pauses() -> None:
    shares = [
        [
            100 * total(runs, "daemon_cpu_s") / total(runs, "total_s")
            for runs in group_by([one for one in measured["trials"] if one["arm"] == STOCK], "load").values()
        ]
        for measured in stock_report.REPORT.load()["runs"]
    ]
    on_two_cpus, counted = shares
    readme = " ".join((REPO / "README.md").read_text().split())
    assert f"the daemon takes up to {max(on_two_cpus):.0f} % of one" in readme
    assert f"and {min(counted):.0f} % to {max(counted):.0f} % while it pauses pods" in readme


def test_the_page_about_policies_says_what_was_simulated() -> None:
    (run,) = policy_report.REPORT.load()["runs"]
    times = [cell.time for cell in policy_report.cells_of(run["waiting"], lambda one: str(one["load"]))]
    text = f"take {-100 * max(times):.0f} % to {-100 * min(times):.0f} % less time"
    assert text in " ".join((REPO / "docs/policies.md").read_text().split())
