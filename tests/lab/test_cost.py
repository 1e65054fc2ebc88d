"""The pure parts of the cost measurement, and its report."""

from __future__ import annotations

import pytest
from lab.bed.kubepods import MIB
from lab.measure.bench_node import BusyNode
from lab.measure.cost import (
    AVAILABLE_PCT,
    BALLAST_PODS,
    HIGH_PCT,
    LOW_PCT,
    parse_wakeups,
    plan_load,
)
from lab.measure.slowdown import summarize
from lab.pages.bench_report import merge
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


@pytest.mark.parametrize("total_gib", [4, 8, 64])
def test_the_load_peaks_below_every_line_at_which_somebody_kills(total_gib: int) -> None:
    total, used = total_gib * GIB, 200 * MIB

    load = plan_load(total, used)

    peak = load.wave_high_bytes + BALLAST_PODS * load.ballast_bytes
    trough = load.wave_low_bytes + BALLAST_PODS * load.ballast_bytes
    assert peak <= load.limit_bytes * HIGH_PCT / 100
    assert trough >= load.limit_bytes * (LOW_PCT - 2) / 100  # without the holders' own memory
    assert total - used - load.limit_bytes * HIGH_PCT / 100 >= total * AVAILABLE_PCT / 100 - MIB
    assert 0 < load.wave_low_bytes < load.wave_high_bytes


def test_a_guest_too_small_for_the_load_is_an_error_that_says_what_it_needs() -> None:
    with pytest.raises(LabError, match="4 GiB"):
        plan_load(1536 * MIB, 200 * MIB)


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


def test_a_kind_measured_by_itself_replaces_the_published_one_with_its_own_commit() -> None:
    bench, top = {"kind": "bench", "tree": "real"}, {"kind": "top", "tree": "real", "kernel": "6.1.0"}
    before = merge({}, "abc1234", [bench, top])

    after = merge(before, "def5678", [{**top, "kernel": "6.12.0"}])

    assert after["runs"] == [{**bench, "commit": "abc1234"}]
    assert after["tops"] == [{**top, "kernel": "6.12.0", "commit": "def5678"}]


def test_a_result_of_unknown_kind_is_an_error() -> None:
    with pytest.raises(LabError, match="guess"):
        merge({}, "abc1234", [{"kind": "guess"}])
