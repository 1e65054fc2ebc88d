"""The pure parts of the cost measurement, and its report."""

from __future__ import annotations

from typing import Any

import pytest
from lab.bed.kubepods import MIB
from lab.measure.bench_node import BusyNode
from lab.measure.cost import (
    AVAILABLE_PCT,
    HIGH_PCT,
    LOW_PCT,
    make_arms,
    parse_arguments,
    parse_kib,
    parse_wakeups,
    plan_load,
)
from lab.measure.slowdown import QUOTAS_M, cpu_max, summarize
from lab.pages import peers_report
from lab.pages.bench_report import merge, render
from lab.vm.host import LabError

from cgpause.config.settings import Config
from cgpause.core.model import CgroupId, Pod, QosClass

SCHED = """\
cgpause (4711, #threads: 1)
-------------------------------------------------------------------
se.exec_start                                :         28392.104461
{key}                                   :{value}
nr_switches                                  :                  120
"""
GIB = 1024 * MIB


@pytest.mark.parametrize("key", ["nr_wakeups", "se.statistics.nr_wakeups"])
def test_wakeups_are_the_kernels_count_under_its_old_name_and_its_new(key: str) -> None:
    assert parse_wakeups(SCHED.format(key=key, value="   42")) == 42


@pytest.mark.parametrize("key", ["nr_wakeups_sync", "se.nr_migrations"])
def test_a_kernel_that_does_not_count_wakeups_is_an_error_that_says_what_to_do(key: str) -> None:
    with pytest.raises(LabError, match="schedstats=enable"):
        parse_wakeups(SCHED.format(key=key, value="   42"))


def test_memory_fields_are_read_in_kib_and_other_lines_are_passed_over() -> None:
    text = "5581-7ffc [rollup]\nRss:   17644 kB\nPss:   16022 kB\nTHPeligible:    0\n"

    assert parse_kib(text) == {"Rss": 17644, "Pss": 16022}


@pytest.mark.parametrize("total_gib", [4, 8, 64])
def test_the_load_peaks_below_every_line_at_which_somebody_kills(total_gib: int) -> None:
    total, used = total_gib * GIB, 200 * MIB

    load = plan_load(total, used, 100 * MIB)

    peak = load.wave_high_bytes + load.ballast_pods_bytes
    trough = load.wave_low_bytes + load.ballast_pods_bytes
    assert peak <= load.limit_bytes * HIGH_PCT / 100
    assert trough >= load.limit_bytes * (LOW_PCT - 2) / 100  # without the holders' own memory
    assert total - used - load.limit_bytes * HIGH_PCT / 100 >= total * AVAILABLE_PCT / 100 - MIB
    assert 0 < load.wave_low_bytes < load.wave_high_bytes


def test_a_guest_too_small_for_the_load_is_an_error_that_says_what_it_needs() -> None:
    with pytest.raises(LabError, match="4 GiB"):
        plan_load(1536 * MIB, 200 * MIB, 100 * MIB)


def test_every_daemon_is_measured_unless_the_command_line_names_some() -> None:
    names = [arm.name for arm in make_arms()]

    assert names == ["cgpause", "cgpause, memory_high off", "earlyoom", "nohang", "oomd", "systemd-oomd"]
    assert parse_arguments([]).only is None
    assert parse_arguments(["--only", "nohang", "--only", "cgpause"]).only == ["nohang", "cgpause"]


def test_quotas_are_written_as_kubernetes_writes_cpu_limits() -> None:
    assert [cpu_max(quota) for quota in QUOTAS_M[:3]] == ["max 100000", "10000 100000", "5000 100000"]


def test_a_slowdown_is_counted_within_its_round() -> None:
    """A round on a machine at half speed gives the same result as any other."""
    found = summarize({None: [1.0, 2.0, 1.0], 10: [90.0, 180.0, 90.0]})

    assert [(entry["quota_m"], entry["seconds"], entry["times"]) for entry in found] == [(None, 1.0, 1.0), (10, 90, 90)]


def _node(pods: int) -> BusyNode:
    facts = [
        Pod(CgroupId(f"pod{number}", number), str(number), QosClass.BURSTABLE, "a", str(number), None, None)
        for number in range(pods)
    ]
    return BusyNode(facts, Config())


def test_the_busy_node_is_the_same_each_time_and_has_pods_to_hold() -> None:
    nodes = _node(50), _node(50)
    held: list[list[tuple[str, ...]]] = [[], []]

    for node, seen in zip(nodes, held, strict=True):
        for _ in range(300):
            assert node.tick() > 0
            seen.append(node.paused)

    assert held[0] == held[1]
    assert any(held[0])
    assert all(len(paused) < 50 for paused in held[0])


BENCH: dict[str, Any] = {
    "kind": "bench",
    "tree": "real",
    "machine": "m",
    "cpus": 2,
    "kernel": "6.1.0",
    "python": "3.11.2",
    "date": "2026-11-21",
    "tick": [{"pods": 10, "python_us": 20.0, "near_us": 45.5, "details_us": 90.0, "c_us": 10.0, "ratio": 2.0}],
    "reaction": {"pods": 10, "median_us": 3000, "p99_us": 4000, "samples": 300},
    "idle": {"pods": 110, "cpu_pct": 0.05, "wakeups_per_s": 0.5, "rss_mib": 18.0, "seconds": 60},
}
COST: dict[str, Any] = {
    **{key: BENCH[key] for key in ("machine", "cpus", "kernel", "python", "date")},
    "kind": "cost",
    "memory_mib": 3927,
    "pods": 110,
    "phases": [
        {
            "phase": "pressure",
            "seconds": 30.0,
            "daemons": [
                {
                    "name": "nohang",
                    "version": "0.2.0-1.1",
                    "cpu_pct": 1.25,
                    "wakeups_per_s": 9.9,
                    "rss_mib": 17.2,
                    "pss_mib": 15.6,
                    "cgroup_mib": 12.0,
                    "used_pct": [84.1, 92.7],
                    "available_pct": [13.2, 20.5],
                    "paused_pct": 0,
                    "kills": 0,
                }
            ],
        }
    ],
}
SLOWDOWN: dict[str, Any] = {
    **{key: BENCH[key] for key in ("machine", "cpus", "kernel", "python", "date")},
    "kind": "slowdown",
    "work_s": 0.4,
    "quotas": summarize({None: [0.5], 10: [45.0]}),
}


TOP: dict[str, Any] = {
    **{key: BENCH[key] for key in ("tree", "machine", "cpus", "kernel", "python", "date")},
    "kind": "top",
    "pods": 110,
    "sizes": [
        {"columns": 80, "lines": 24, "cpu_pct": 0.8, "sent_bytes_per_s": 1700, "rss_mib": 39.3, "seconds": 60},
    ],
}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("| VM, real cgroups | 110 | 80x24 | 0.8 | 1700 | 39.3 | 60 |", id="dashboard"),
        pytest.param("| VM, real cgroups | 6.1.0 | m, 2 CPUs | 3.11.2 | 2026-11-21 | abc1234 |", id="where"),
        pytest.param("| VM, under a quota | 6.1.0 | m, 2 CPUs | 3.11.2 | 2026-11-21 | abc1234 |", id="slowdown"),
        pytest.param("| VM, real cgroups | 10 | 20.0 | 45.5 | 4.55 | 90.0 |", id="near-the-limit"),
        pytest.param("| none | `max 100000` | 0.5 | 1.0 | 1 |", id="no-quota"),
        pytest.param("| 10m | `1000 100000` | 45.0 | 90.0 | 1 |", id="quota"),
    ],
)
def test_the_report_says_where_and_what_was_measured(row: str) -> None:
    assert row in render(merge({}, "abc1234", [SLOWDOWN, BENCH, TOP])).splitlines()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            "| nohang | 0.2.0-1.1 | 1.25 | 9.9 | 17.2 | 15.6 | 12.0 | 84.1 to 92.7 | 13.2 to 20.5 | 0 | 0 |", id="peer"
        ),
        pytest.param("## Under pressure: 110 pods, 4 GiB, 30 s each", id="phase"),
        pytest.param("Commit abc1234, 2026-11-22, in a VM: Linux 6.1.0, Python 3.11.2.", id="where"),
    ],
)
def test_the_peers_report_says_where_and_what_was_measured(row: str) -> None:
    assert row in peers_report.render({"commit": "abc1234", "date": "2026-11-22", "runs": [COST]}).splitlines()


def test_where_nohang_costs_less_the_report_says_so() -> None:
    (phase,) = COST["phases"]
    (nohang,) = phase["daemons"]
    ours = {**nohang, "name": "cgpause", "cpu_pct": 3.5, "rss_mib": 16.0}
    run = {**COST, "phases": [{**phase, "daemons": [ours, nohang]}]}
    said = peers_report.render({"commit": "abc1234", "date": "2026-11-22", "runs": [run]})
    assert "less: resident MiB (16.0 against 17.2)" in said
    assert "more: CPU % of one core (3.5 against 1.25)" in said


def test_what_was_not_measured_has_no_section() -> None:
    report = render(merge({}, "abc1234", [BENCH]))

    assert "## A container under a quota" not in report
    assert "## The dashboard" not in report


def test_a_kind_measured_by_itself_replaces_the_published_one_with_its_own_commit() -> None:
    before = merge({}, "abc1234", [BENCH, TOP])

    report = render(merge(before, "def5678", [{**TOP, "kernel": "6.12.0"}])).splitlines()

    assert "| VM, real cgroups | 6.1.0 | m, 2 CPUs | 3.11.2 | 2026-11-21 | abc1234 |" in report
    assert "| VM, real cgroups, the dashboard | 6.12.0 | m, 2 CPUs | 3.11.2 | 2026-11-21 | def5678 |" in report
    assert sum("| 80x24 |" in line for line in report) == 1


def test_a_result_of_unknown_kind_is_an_error() -> None:
    with pytest.raises(LabError, match="guess"):
        merge({}, "abc1234", [{"kind": "guess"}])
