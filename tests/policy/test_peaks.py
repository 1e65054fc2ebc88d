"""Learned growth: the peaks of workloads, and what is no peak."""

from __future__ import annotations

from dataclasses import replace

from helpers.growths import JOB, NEW_CONTAINER, POD, learned, look
from helpers.nodes import MIB, pod

from cgpause.core.model import CgroupId, Pod, PodUsage
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


def test_a_killed_pod_wanted_more_than_it_had() -> None:
    assert peaks((0, 10, JOB), (1000, 100, JOB), (2000, 10, NEW_CONTAINER)) == {"default/job": (int(100 * MIB * 1.1),)}


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
