"""Learned growth: the peaks of workloads, and what is no peak."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.growths import JOB, NEW_CONTAINER, POD, learned, look
from helpers.nodes import MIB, MS, START_NS, pod

from cgpause.core.model import CgroupId, Ended, Pod, PodUsage
from cgpause.policy.growth import (
    Growths,
    learn,
)


def peaks(*looks: tuple[float, float, Pod]) -> dict[str, tuple[int, ...]]:
    return dict(learned(*looks).peaks)


def test_the_top_before_a_large_drop_is_a_peak_of_the_workload() -> None:
    assert peaks((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB)) == {"default/job": (100 * MIB,)}
    assert peaks((0, 10, JOB), (1000, 100, JOB), (2000, 99.5, JOB)) == {}
    assert peaks((0, 10, POD), (1000, 100, POD), (2000, 10, POD)) == {}, "a pod without a workload"


def test_an_exit_over_several_samples_is_one_peak() -> None:
    exit_ = [(2000, 400, JOB), (2050, 280, JOB), (2100, 160, JOB), (2150, 10, JOB)]
    one = (0, 10, JOB), (1000, 510, JOB)
    assert peaks(*one, *exit_) == {"default/job": (510 * MIB,)}
    assert peaks(*one, *exit_, (3000, 10.5, JOB), (4000, 2, JOB)) == {"default/job": (510 * MIB,)}
    again = peaks(*one, *exit_, (3000, 300, JOB), (4000, 10, JOB))
    assert again == {"default/job": (510 * MIB, 300 * MIB)}
    assert peaks((0, 510, JOB), *exit_) == {"default/job": (510 * MIB,)}, "the pod was there before the daemon"


def ended(growths: Growths, *, peak_mib: float, before_mib: float = 0, killed: bool = False) -> Growths:
    """Return the growths after a sample with the end of a container of JOB, which holds 10 MiB then."""
    end = Ended(JOB.cgroup, "default/job", int(peak_mib * MIB), killed, int(before_mib * MIB))
    at_ms = (growths.at_ns - START_NS) // MS + 100
    return learn(growths, replace(look(at_ms, PodUsage(10 * MIB, JOB)), ended=(end,)))


def mib(growths: Growths) -> list[int]:
    return [peak // MIB for peak in growths.peaks.get("default/job", ())]


@pytest.mark.parametrize(
    "looks",
    [(), ((0, 10, JOB),), ((0, 10, JOB), (1000, 40, JOB)), ((0, 10, JOB), (1000, 100, JOB))],
    ids=["unseen", "begun", "halfway", "all"],
)
def test_a_container_that_ends_leaves_its_peak(looks: tuple[tuple[float, float, Pod], ...]) -> None:
    """The daemon may have slept meanwhile, and have seen nothing or only a part of its use."""
    growths = ended(learned(*looks), peak_mib=103)
    assert mib(growths) == [103]
    assert mib(learn(growths, look(9000))) == [103], "the pod is gone"


@pytest.mark.parametrize(("seen_mib", "peaks"), [(103, [103]), (97, [103]), (90, [90, 103]), (110, [110, 103])])
def test_a_drop_and_the_end_of_its_container_are_one_peak(seen_mib: int, peaks: list[int]) -> None:
    growths = learned((0, 10, JOB), (1000, seen_mib, JOB), (2000, 10, JOB))
    assert mib(growths) == [seen_mib]
    growths = ended(growths, peak_mib=103)
    assert mib(growths) == peaks
    assert mib(learn(growths, look(9000))) == peaks


def test_growth_after_a_drop_is_another_peak() -> None:
    growths = learned((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB), (3000, 101, JOB))
    assert mib(ended(growths, peak_mib=101)) == [100, 101]


@pytest.mark.parametrize(
    ("known_mib", "peaks"),
    [
        pytest.param((), [130], id="more-than-it-had"),
        pytest.param((90,), [90, 130], id="more-than-all-others"),
        pytest.param((90, 101), [90, 101], id="a-higher-one-is-known"),
    ],
)
@pytest.mark.parametrize("seen", [True, False])
def test_a_killed_container_needed_more_than_it_had(
    known_mib: tuple[int, ...],
    peaks: list[int],
    seen: bool,  # noqa: FBT001 - a table
) -> None:
    looks = [(0, 10, JOB), (1000, 99, JOB), (2000, 10, JOB)] if seen else []
    growths = Growths(peaks={"default/job": tuple(one * MIB for one in known_mib)})
    for ms, used_mib, one in looks:
        growths = learn(growths, look(ms, PodUsage(int(used_mib * MIB), one)))
    assert mib(ended(growths, peak_mib=100, killed=True)) == peaks


def test_of_one_pod_only_the_highest_peak_stays() -> None:
    killed = ended(learned((0, 10, JOB)), peak_mib=100, killed=True)
    assert mib(killed) == [130]
    assert mib(ended(killed, peak_mib=120, before_mib=100)) == [120]
    grown = ended(ended(learned((0, 10, JOB)), peak_mib=20), peak_mib=120, before_mib=20)
    assert mib(grown) == [120], "an init container, and the pod's own"


def test_the_top_of_a_pod_that_is_gone_is_a_peak() -> None:
    other = pod("other")
    growths = learned((0, 10, JOB), (1000, 100, JOB), (2000, 99.5, JOB))
    assert growths.controllers == {POD.cgroup: "default/job"}
    growths = learn(growths, look(3000, PodUsage(MIB, other)))
    assert growths.peaks == {"default/job": (100 * MIB,)}
    assert set(growths.pods) == {other.cgroup}
    assert growths.controllers == {}
    growths = learn(growths, look(4000))
    assert growths.peaks == {"default/job": (100 * MIB,)}, "a pod without a workload leaves none"
    assert growths.pods == {}


def test_the_memory_left_after_an_exit_is_no_peak_when_the_pod_is_gone() -> None:
    growths = learned((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB), (3000, 10, NEW_CONTAINER))
    assert learn(growths, look(4000)).peaks == {"default/job": (100 * MIB,)}


def test_a_pod_whose_name_came_late_leaves_its_peak() -> None:
    growths = learned((0, 10, POD), (1000, 100, JOB))
    assert learn(growths, look(2000)).peaks == {"default/job": (100 * MIB,)}


def test_the_controllers_of_pods_that_stay_are_kept() -> None:
    other = replace(pod("other"), controller="default/other")
    growths = learn(Growths(), look(0, PodUsage(MIB, JOB), PodUsage(MIB, other)))
    assert growths.controllers == {POD.cgroup: "default/job", other.cgroup: "default/other"}
    assert learn(growths, look(1000, PodUsage(MIB, other))).controllers == {other.cgroup: "default/other"}
    third = replace(pod("third"), controller="default/third")
    assert set(learn(growths, look(1000, *[PodUsage(MIB, one) for one in (JOB, other, third)])).controllers) == {
        POD.cgroup,
        other.cgroup,
        third.cgroup,
    }


def test_the_peaks_of_a_pod_are_those_of_its_workload() -> None:
    growths = Growths(peaks={"default/job": (1, 2), "default/other": (3,)})
    assert growths.peaks_of(JOB) == (1, 2)
    assert growths.peaks_of(replace(JOB, controller="default/new")) == ()
    assert growths.peaks_of(POD) == ()


def test_the_last_16_peaks_of_a_workload_are_kept() -> None:
    growths = learned((0, 10, JOB))
    for number in range(20):
        growths = learn(growths, look(1000 + 2000 * number, PodUsage((100 + number) * MIB, JOB)))
        growths = learn(growths, look(2000 + 2000 * number, PodUsage(10 * MIB, JOB)))
    assert growths.peaks == {"default/job": tuple((100 + number) * MIB for number in range(4, 20))}


def test_the_last_1000_workloads_are_kept() -> None:
    def job(number: int) -> Pod:
        return replace(POD, cgroup=CgroupId(f"kubepods/pod{number}", number), controller=f"default/job-{number}")

    growths = Growths()
    for number in range(1000):
        growths = learn(growths, look(1000 * number, PodUsage(MIB, job(number))))
    growths = learn(growths, look(1_000_000))
    assert len(growths.peaks) == 1000
    # Seen again, so that this is no longer the workload seen longest ago.
    growths = learn(learn(growths, look(1_001_000, PodUsage(MIB, job(0)))), look(1_002_000))
    growths = learn(learn(growths, look(1_003_000, PodUsage(MIB, job(1000)))), look(1_004_000))
    assert len(growths.peaks) == 1000
    assert "default/job-1" not in growths.peaks
    assert growths.peaks["default/job-0"] == (MIB, MIB)
