"""Learned growth: the peaks of workloads, and what is no peak."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.growths import JOB, NEW_CONTAINER, POD, learned, look
from helpers.nodes import MIB, MS, START_NS, pod

from cgpause.core.model import CgroupId, Ended, Pod, PodUsage
from cgpause.policy.growth import Growths
from cgpause.policy.learn import learn
from cgpause.policy.peaks import Peaks


def ended(
    growths: Growths, *, peak_mib: float, killed: bool = False, after_kill: bool = False, cgroup: CgroupId = JOB.cgroup
) -> Growths:
    """Return the growths after a sample with an end of JOB, which holds 10 MiB then."""
    end = Ended(cgroup, "default/job", int(peak_mib * MIB), killed, after_kill)
    at_ms = (growths.at_ns - START_NS) // MS + 100
    return learn(growths, replace(look(at_ms, PodUsage(10 * MIB, JOB)), ended=(end,)))


def mib(growths: Growths) -> list[int]:
    """Return the peaks of JOB, a guess for a killed container among them."""
    return [peak // MIB for peak in growths.peaks.of(JOB)]


def test_the_top_before_a_large_drop_is_a_peak_of_the_workload() -> None:
    assert mib(learned((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB))) == [100]
    assert mib(learned((0, 10, JOB), (1000, 100, JOB), (2000, 99.5, JOB))) == []
    without_workload = learned((0, 10, POD), (1000, 100, POD), (2000, 10, POD))
    assert without_workload.peaks == Peaks()


def test_a_drop_after_a_sleep_shows_no_peak() -> None:
    assert mib(learned((0, 10, JOB), (1000, 100, JOB), (3999, 10, JOB))) == [100]
    slept = learned((0, 10, JOB), (1000, 100, JOB), (4000, 10, JOB))
    assert mib(slept) == []
    assert mib(learn(slept, look(5000))) == [], "the use that is left when the pod is gone"
    assert mib(ended(slept, peak_mib=300)) == [300]


def test_an_exit_over_several_samples_is_one_peak() -> None:
    exit_ = [(2000, 400, JOB), (2050, 280, JOB), (2100, 160, JOB), (2150, 10, JOB)]
    one = (0, 10, JOB), (1000, 510, JOB)
    assert mib(learned(*one, *exit_)) == [510]
    assert mib(learned(*one, *exit_, (3000, 10.5, JOB), (4000, 2, JOB))) == [510]
    assert mib(learned(*one, *exit_, (3000, 300, JOB), (4000, 10, JOB))) == [510, 300]
    assert mib(learned((0, 510, JOB), *exit_)) == [510], "the pod was there before the daemon"


@pytest.mark.parametrize(
    "looks",
    [(), ((0, 10, JOB),), ((0, 10, JOB), (1000, 40, JOB)), ((0, 10, JOB), (1000, 100, JOB))],
    ids=["unseen", "begun", "halfway", "all"],
)
def test_a_pod_that_ends_leaves_its_peak(looks: tuple[tuple[float, float, Pod], ...]) -> None:
    """The daemon may have slept meanwhile, and have seen nothing or only a part of its use."""
    growths = ended(learned(*looks), peak_mib=103)
    assert mib(growths) == [103]
    assert mib(learn(growths, look(9000))) == [103], "the pod is gone"


@pytest.mark.parametrize(("seen_mib", "peaks"), [(103, [103]), (97, [103]), (96, [96, 103]), (110, [103])])
def test_a_drop_and_the_end_of_its_pod_are_one_peak(seen_mib: int, peaks: list[int]) -> None:
    growths = learned((0, 10, JOB), (1000, seen_mib, JOB), (2000, 10, JOB))
    assert mib(growths) == [seen_mib]
    growths = ended(growths, peak_mib=103)
    assert mib(growths) == peaks
    assert mib(learn(growths, look(9000))) == peaks


def test_growth_after_a_drop_is_another_peak() -> None:
    growths = learned((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB), (3000, 101, JOB))
    assert mib(ended(growths, peak_mib=101)) == [100, 101]


def test_the_peak_of_another_pod_stays() -> None:
    """An init container left its peak; then the daemon slept until the pod's end."""
    growths = learned((0, 10, JOB), (1000, 30, JOB), (2000, 10, JOB))
    growths = growths._replace(peaks=Peaks({"default/job": (100 * MIB,)}))
    assert mib(ended(growths, peak_mib=101)) == [100, 101]


def test_a_sandbox_leaves_no_peak() -> None:
    growths = learned((0, 10, JOB))
    assert mib(ended(growths, peak_mib=5)) == []
    assert mib(ended(growths, peak_mib=6)) == [6]


def shares(*used_pct: float, limit_mib: int | None = 100) -> Peaks:
    """Return the peaks after the ends of pods that needed so much of their limit."""
    peaks = Peaks()
    for share in used_pct:
        limit = None if limit_mib is None else limit_mib * MIB
        end = Ended(JOB.cgroup, "default/job", int(share * MIB), limit_bytes=limit)
        peaks = peaks.with_end(end, 0, 1 << 30)
    return peaks


@pytest.mark.parametrize(
    ("ended_pods", "used_share"),
    [
        pytest.param(shares(*[20] * 7), 1.0, id="too-few"),
        pytest.param(shares(*[20] * 8), 0.2, id="enough"),
        pytest.param(shares(*[10, 30] * 4), 0.3, id="one-standard-deviation-above-the-mean"),
        pytest.param(shares(*[90] * 32, *[20] * 32), 0.2, id="the-last-ones"),
        pytest.param(shares(*[120] * 8), 1.0, id="never-more-than-the-limit"),
        pytest.param(shares(*[20] * 8, limit_mib=None), 1.0, id="without-a-limit"),
    ],
)
def test_ended_pods_show_what_share_of_a_limit_pods_need(ended_pods: Peaks, used_share: float) -> None:
    assert ended_pods.used_share == pytest.approx(used_share)


def test_a_killed_pod_does_not_show_what_pods_need() -> None:
    end = Ended(JOB.cgroup, "default/job", 20 * MIB, killed=True, limit_bytes=100 * MIB)
    assert Peaks().with_end(end, 0, 1 << 30).shares == ()


def test_on_a_large_node_small_pods_leave_peaks() -> None:
    growths = learned((0, 10, JOB))
    for peak_mib, peaks in ((15, []), (16, [16])):
        end = Ended(JOB.cgroup, "default/job", peak_mib * MIB)
        sample = look(100, PodUsage(10 * MIB, JOB))
        large = replace(sample.headroom, node_total_bytes=64 << 30, kubepods_max_bytes=64 << 30)
        assert mib(learn(growths, replace(sample, ended=(end,), headroom=large))) == peaks


@pytest.mark.parametrize("peak_mib", [100, 0], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("known_mib", "peaks"),
    [
        pytest.param((), [130], id="more-than-it-had"),
        pytest.param((90,), [90, 130], id="more-than-all-others"),
        pytest.param((90, 101), [90, 101], id="a-higher-one-is-known"),
        pytest.param((90,) * 15, [*[90] * 15, 130], id="one-pod-may-leave-fifteen-in-a-minute"),
    ],
)
@pytest.mark.parametrize("seen", ["drop", "use"])
def test_a_killed_container_needed_more_than_it_had(
    known_mib: tuple[int, ...], peaks: list[int], seen: str, peak_mib: int
) -> None:
    """A sample may have seen its memory go, and taken its use for a peak."""
    growths = Growths(peaks=Peaks({"default/job": tuple(one * MIB for one in known_mib)}))
    for ms, used_mib in [(0, 10), (1000, 100), (2000, 10)][: 3 if seen == "drop" else 2]:
        growths = learn(growths, look(ms, PodUsage(used_mib * MIB, JOB)))
    assert mib(ended(growths, peak_mib=peak_mib, killed=True)) == peaks


def test_a_guess_lasts_until_its_pod_has_ended_by_itself() -> None:
    killed = ended(learned((0, 10, JOB)), peak_mib=100, killed=True)
    assert mib(killed) == [130]
    assert mib(ended(killed, peak_mib=90, cgroup=CgroupId("kubepods/other", 99))) == [90, 130]
    assert mib(ended(killed, peak_mib=115, after_kill=True)) == [115]
    assert mib(ended(killed, peak_mib=50, killed=True)) == [130], "a second kill, with less"


def test_of_a_killed_container_only_the_guess_is_left() -> None:
    seen = learned((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB))
    assert ended(seen, peak_mib=0, killed=True).peaks == Peaks(killed={"default/job": 100 * MIB})


def test_a_pod_that_needed_no_more_than_its_killed_container_had_ends_the_guess() -> None:
    killed = ended(learned((0, 10, JOB)), peak_mib=100, killed=True)
    assert mib(ended(killed, peak_mib=0, after_kill=True)) == []
    assert mib(ended(killed, peak_mib=0, after_kill=True, cgroup=CgroupId("kubepods/other", 99))) == []


def test_a_pod_that_is_gone_leaves_no_peak_of_a_sandbox_or_of_long_ago() -> None:
    assert mib(learn(learned((0, 5, JOB)), look(1000))) == []
    assert mib(learn(learned((0, 6, JOB)), look(1000))) == [6]
    assert mib(learn(learned((0, 6, JOB)), look(3000))) == []


def test_no_guess_is_larger_than_the_node() -> None:
    assert mib(ended(learned((0, 10, JOB)), peak_mib=900, killed=True)) == [972], "95 % of 1024 MiB"


def test_the_top_of_a_pod_that_is_gone_is_a_peak() -> None:
    other = pod("other")
    growths = learned((0, 10, JOB), (1000, 100, JOB), (2000, 99.5, JOB))
    assert growths.workloads == {POD.cgroup: "default/job"}
    growths = learn(growths, look(3000, PodUsage(MIB, other)))
    assert growths.peaks.known == {"default/job": (100 * MIB,)}
    assert set(growths.pods) == {other.cgroup}
    assert growths.workloads == {}
    growths = learn(growths, look(4000))
    assert growths.peaks.known == {"default/job": (100 * MIB,)}, "a pod without a workload leaves none"
    assert growths.pods == {}


def test_the_memory_left_after_an_exit_is_no_peak_when_the_pod_is_gone() -> None:
    growths = learned((0, 10, JOB), (1000, 100, JOB), (2000, 10, JOB), (3000, 10, NEW_CONTAINER))
    assert learn(growths, look(4000)).peaks.known == {"default/job": (100 * MIB,)}


def test_a_pod_whose_name_came_late_leaves_its_peak() -> None:
    growths = learned((0, 10, POD), (1000, 100, JOB))
    assert learn(growths, look(2000)).peaks.known == {"default/job": (100 * MIB,)}


def test_the_controllers_of_pods_that_stay_are_kept() -> None:
    other, third = (replace(pod(name), workload=f"default/{name}") for name in ("other", "third"))
    growths = learn(Growths(), look(0, PodUsage(MIB, JOB), PodUsage(MIB, other)))
    assert growths.workloads == {POD.cgroup: "default/job", other.cgroup: "default/other"}
    assert learn(growths, look(1000, PodUsage(MIB, other))).workloads == {other.cgroup: "default/other"}
    more = learn(growths, look(1000, *[PodUsage(MIB, one) for one in (JOB, other, third)])).workloads
    assert more == {**growths.workloads, third.cgroup: "default/third"}


def test_the_peaks_of_a_pod_are_those_of_its_workload() -> None:
    found = Peaks({"default/job": (1, 2), "default/other": (3,)})
    assert found.of(JOB) == (1, 2)
    assert found.of(replace(JOB, workload="default/new")) == ()
    assert found.of(POD) == ()


def test_the_last_16_peaks_of_a_workload_are_kept() -> None:
    found = Peaks()
    for number in range(20):
        found = found.with_new([("default/job", number)])
    assert found.known == {"default/job": tuple(range(4, 20))}


def test_the_1000_workloads_that_left_a_peak_last_are_kept() -> None:
    found = Peaks().with_new([(f"job-{number}", 1) for number in range(1000)])
    assert len(found.known) == 1000
    found = found.with_new([("job-0", 2), ("job-1000", 3)])
    assert len(found.known) == 1000
    assert "job-1" not in found.known
    assert (found.known["job-0"], found.known["job-1000"]) == ((1, 2), (3,))
