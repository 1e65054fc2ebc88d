"""Learned growth: rates above noise, page cache, drops and restarts, and the peaks of workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.growths import CAPACITY, JOB, LARGE, NEW_CONTAINER, NOISE, PAUSED, POD, history, learned, look, readings
from helpers.nodes import MIB, MS, START_NS, S, growth, pod
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpause.core.model import Pod, PodKind, PodUsage
from cgpause.policy.growth import Growth, Growths, large_bytes, noise_bytes, worthwhile_bytes
from cgpause.policy.learn import learn

BATCH = replace(POD, kind=PodKind.BATCH)
NEW = {"admitted": False, "started_ns": START_NS + S, "at_ns": START_NS + S}
"""What is known of a pod that begins, or begins again, a second after START_NS."""


def after(known: Growth, ms: float, used_mib: float, seen: Pod = POD) -> Growth:
    """Return the growth after `known` at START_NS and one more sample."""
    growths = Growths({POD.cgroup: known}, START_NS)
    return learn(growths, look(ms, PodUsage(int(used_mib * MIB), seen))).pods[POD.cgroup]


# Sizes


@pytest.mark.parametrize(("cpus", "kib"), [(1, 256), (2, 512), (64, 16384)])
def test_noise_is_one_charge_batch_on_each_cpu(cpus: int, kib: int) -> None:
    assert noise_bytes(cpus) == kib << 10


@pytest.mark.parametrize(
    ("top", "noise", "expected"),
    [
        pytest.param(0, NOISE, 2 * NOISE, id="at-least-twice-the-noise"),
        pytest.param(12 * MIB, NOISE, 768 << 10, id="a-sixteenth-of-the-top"),
        pytest.param(16 * MIB, NOISE, MIB, id="both"),
        pytest.param(500 * MIB, NOISE, MIB, id="a-thousandth-of-the-capacity"),
        pytest.param(500 * MIB, MIB, 2 * MIB, id="many-cpus"),
    ],
)
def test_a_large_drop(top: int, noise: int, expected: int) -> None:
    assert large_bytes(top, CAPACITY, noise) == expected


@pytest.mark.parametrize(("growing", "expected"), [(0, 1000), (1, 1000), (20, 1000), (21, 952), (40, 500)])
def test_the_smallest_surge_that_is_worth_a_pause_is_smaller_if_many_pods_grow(growing: int, expected: int) -> None:
    assert worthwhile_bytes(200_000, growing) == pytest.approx(expected, abs=0.5)


# Values of one pod


@pytest.mark.parametrize(("started_ns", "ran_ns", "may"), [(0, 0, False), (1, 2 * S - 1, True), (1, 2 * S, False)])
def test_a_container_may_take_its_first_memory_for_two_seconds(started_ns: int, ran_ns: int, may: bool) -> None:
    assert growth(50, started_ns=started_ns, ran_ns=ran_ns).may_take_first_memory() is may


def test_the_surge_is_counted_from_the_low() -> None:
    assert growth(50, low=20 * MIB).surge() == 30 * MIB


def test_the_usual_step_is_the_mean_of_the_steps_weighted_by_their_size() -> None:
    assert growth(50).step() == 0
    assert growth(50, flow=3.0, squares=30.0).step() == 10


# Rates


def test_the_first_look_shows_no_growth() -> None:
    first = history((0, 10, POD))
    assert first == growth(10)
    assert (first.last_peak, first.highest_peak, first.base) == (0, 0, None)
    assert (first.admitted, first.started_ns) == (True, 0), "a pod from before the daemon is no newcomer"
    assert learned((0, 10, POD)).moving == (PodUsage(10 * MIB, POD),)


def test_growth_is_a_rate() -> None:
    grown = history((0, 10, POD), (500, 15, POD))
    assert grown.rate == 10 * MIB
    assert grown.grew
    assert (grown.top, grown.low, grown.ran_ns) == (15 * MIB, 10 * MIB, S // 2)


@pytest.mark.parametrize(
    ("looks", "mib_a_s"),
    [
        pytest.param([(0, 10), (500, 5)], 0, id="shrinking"),
        # A program that takes back memory it has just freed shows no new growth.
        pytest.param([(0, 10), (500, 9.5), (1000, 10)], 0, id="below-the-last-top"),
        pytest.param([(0, 10), (100, 10.25), (200, 10.5)], 0.25, id="small-steps-are-judged-over-a-second-at-least"),
        pytest.param([(0, 10), (500, 15), (10_500, 15)], 5, id="a-burst-is-forgotten-by-halves"),
        pytest.param([(0, 10), (500, 15), (700, 15)], 10 * 0.5**0.02, id="a-burst-is-expected-again"),
        pytest.param([(0, 10), (500, 15), (1000, 16)], 10 * 0.5**0.05, id="the-largest-rate-counts-not-the-last"),
        pytest.param([(0, 10), (5, 12), (500, 15)], 10, id="a-time-too-short-to-learn-from-is-not-lost"),
    ],
)
def test_rates(looks: list[tuple[float, float]], mib_a_s: float) -> None:
    assert history(*((ms, used, POD) for ms, used in looks)).rate == pytest.approx(mib_a_s * MIB)


@pytest.mark.parametrize(("grown", "grew"), [(NOISE - 1, False), (NOISE, False), (NOISE + 1, True)])
def test_only_growth_above_noise_is_growth(grown: int, grew: bool) -> None:
    found = history((0, 10, POD), (500, 10 + grown / MIB, POD))
    assert found.grew is grew
    assert found.rate == (2 * grown if grew else 0)


@pytest.mark.parametrize(
    ("used_mib", "rate"),
    [(10.25, 0), (10.25 + 2**-20, 2**-20 / 2), (10.75, 0.25)],
    ids=["noise", "just-above", "three-times"],
)
def test_growth_in_small_steps_is_seen_over_time(used_mib: float, rate: float) -> None:
    """Growth since the low counts after subtracting one noise amount; 1 KiB/s is ignored."""
    known = growth(10 + (used_mib - 10 - 2**-20), low=10 * MIB, low_ran_ns=S, ran_ns=2 * S)
    found = after(known, 1000, used_mib)
    assert found.rate == (rate * MIB if rate * MIB >= 1024 else 0)
    assert not found.grew


def test_small_steps_within_noise_do_not_make_a_rate_larger() -> None:
    known = growth(20, low=10 * MIB, rate=20.0 * MIB)
    assert after(known, 1000, 20.1).rate == pytest.approx(20 * MIB * 0.5**0.1)
    assert after(known, 1000, 20.0).rate == pytest.approx(20 * MIB * 0.5**0.1)
    assert after(known._replace(rate=1.0 * MIB), 1000, 20.0).rate == pytest.approx(MIB * 0.5**0.1), "it took nothing"


@pytest.mark.parametrize(("rate", "kept"), [(1023.99, False), (1024.01, True)])
def test_a_rate_of_next_to_nothing_is_forgotten(rate: float, kept: bool) -> None:
    found = after(growth(10, rate=rate / 0.5**0.001), 10, 10)
    assert found.rate == (pytest.approx(rate) if kept else 0)


@pytest.mark.parametrize(("ms", "rate"), [(9.999999, 0), (10, 500 * MIB)], ids=["too-short", "long-enough"])
def test_the_shortest_time_to_learn_from(ms: float, rate: float) -> None:
    growths = learned((0, 10, POD), (ms, 15, POD))
    assert growths.pods[POD.cgroup].rate == rate
    assert growths.at_ns == START_NS + (10 * MS if rate else 0)


def test_a_reading_in_a_look_that_was_too_short_is_taken_with_the_next() -> None:
    growths = learn(Growths(), look(0, PodUsage(100 * MIB, POD)))
    growths = learn(growths, look(5, PodUsage(200 * MIB, POD), read_ms=5))
    assert growths.read_at_ns == 0
    cached = replace(POD, reclaimable_bytes=100 * MIB)
    growths = learn(growths, look(50, PodUsage(200 * MIB, cached), read_ms=5))
    assert growths.read_at_ns == START_NS + 5 * MS
    assert growths.pods[POD.cgroup].used == 100 * MIB


# Averages


@pytest.mark.parametrize("cached_kib_a_s", [0.0, 4.0], ids=["no-cache", "a-little-more-cache"])
@pytest.mark.parametrize("every_ms", [50, 250, 1000])
def test_a_readings_growth_counts_once(every_ms: int, cached_kib_a_s: float) -> None:
    """The pod grows evenly, and its page cache is read each second."""
    looks = [
        (ms, 10 + 20 * ms / 1000, 1 + cached_kib_a_s * ms / 1024000 if ms % 1000 == 0 else None)
        for ms in range(0, 20_001, every_ms)
    ]
    found = readings(*looks)
    assert found.flow == pytest.approx(20 * MIB, rel=0.02)
    assert found.step() == pytest.approx(MIB, rel=0.02), "20 MiB/s in steps of 50 ms, however rarely it is sampled"
    assert found.grew


def test_the_averages_of_a_pod_that_takes_nothing_are_halved_in_two_seconds() -> None:
    found = after(growth(10, rate=MIB, flow=8.0 * MIB, squares=4.0), 4000, 10)
    assert (found.flow, found.squares) == (2.0 * MIB, 1.0)


def test_growth_that_was_page_cache_is_taken_back_from_the_averages_too() -> None:
    before = readings((0, 100, 1), (1000, 100, 1))
    found = readings((0, 100, 1), (1000, 100, 1), (1500, 110, None), (1900, 118, None), (2000, 120, 21))
    assert (found.flow, found.squares, found.rate) == (before.flow, before.squares, before.rate) == (0, 0, 0)


def test_a_reading_in_a_pause_changes_no_average() -> None:
    known = growth(
        10, paused_used=10 * MIB, flow=5.0 * MIB, squares=25.0 * MIB**2, read_flow=5.0 * MIB, read_squares=25.0 * MIB**2
    )
    seen = replace(PAUSED, reclaimable_bytes=MIB // 2)
    growths = Growths({POD.cgroup: known}, at_ns=START_NS, read_at_ns=START_NS)
    found = learn(growths, look(1000, PodUsage(int(10.5 * MIB), seen), read_ms=1000)).pods[POD.cgroup]
    assert (found.flow, found.squares) == (known.flow, known.squares)


# Pods that stand still


@settings(max_examples=30)
@given(st.data(), st.integers(2, 64), st.integers(1, 1000))
def test_steps_within_the_charge_batches_of_all_cpus_are_never_growth(data: st.DataObject, cpus: int, mib: int) -> None:
    """The pod stays idle for hours, as at its first sample."""
    noise = noise_bytes(cpus)
    growths = Growths()
    at_ms = 0
    for _ in range(40):
        at_ms += data.draw(st.sampled_from([50, 1000, 2000, 600_000]))
        usage = PodUsage(mib * MIB + data.draw(st.integers(0, noise)), POD)
        growths = learn(growths, look(at_ms, usage, cpus=cpus))
        found = growths.pods[POD.cgroup]
        assert found.rate == 0
        assert not found.grew
        assert found.base is None
    assert growths.moving == ()


@pytest.mark.parametrize(
    ("used", "low"),
    [(10 * MIB - NOISE, 10 * MIB - NOISE), (10 * MIB - NOISE + 1, 10 * MIB), (10 * MIB, 10 * MIB)],
    ids=["beyond-noise", "within", "at-the-top"],
)
def test_the_low_follows_only_beyond_noise(used: int, low: int) -> None:
    found = learn(Growths({POD.cgroup: growth(10)}, START_NS), look(1000, PodUsage(used, POD)))
    assert found.pods[POD.cgroup].low == low
    assert found.moving == ()


def test_a_new_low_begins_the_surge_anew() -> None:
    found = history((0, 10, POD), (1000, 9.6, POD), (2000, 9.5, POD))
    assert (found.low, found.low_ran_ns, found.top, found.base) == (int(9.5 * MIB), 2 * S, 10 * MIB, None)
    assert history((0, 10, POD), (1000, 9.6, POD), (2000, 9.6, POD)).low_ran_ns == S


@pytest.mark.parametrize(
    ("known", "seen", "is_moving"),
    [
        pytest.param(growth(10), POD, False, id="still"),
        pytest.param(growth(10, rate=MIB), POD, True, id="has-a-rate"),
        pytest.param(growth(10), PAUSED, True, id="paused"),
        pytest.param(growth(10, admitted=False), POD, True, id="newcomer"),
        pytest.param(growth(10, excused=True), POD, True, id="excused"),
        pytest.param(growth(10, paused_used=10 * MIB), POD, False, id="just-resumed"),
    ],
)
@pytest.mark.parametrize("ms", [5, 1000], ids=["too-short", "long-enough"])
def test_which_pods_may_move(ms: int, known: Growth, seen: Pod, is_moving: bool) -> None:
    usage = PodUsage(10 * MIB, seen)
    found = learn(Growths({POD.cgroup: known}, START_NS), look(ms, usage))
    assert found.moving == ((usage,) if is_moving else ())


# Pauses


def test_a_paused_pod_keeps_its_rate_and_what_it_grows_counts_from_the_pause() -> None:
    found = history((0, 10, POD), (500, 15, POD), (600, 15, PAUSED), (60_000, 18, PAUSED))
    assert found.rate == 10 * MIB
    assert found.paused_used == 15 * MIB
    assert found.used == 18 * MIB
    assert not found.grew


def test_a_pause_is_no_running_time() -> None:
    looks = [(0, 10, POD), (500, 15, POD), (1000, 15, PAUSED), (60_000, 15, PAUSED), (60_500, 15, POD)]
    assert history(*looks).ran_ns == S // 2
    assert history(*looks, (61_000, 15, POD)).ran_ns == S


def test_after_a_pause_growth_starts_anew() -> None:
    """The sample before is of a paused pod, so it gives no rate."""
    looks = [(0, 10, POD), (500, 10, PAUSED), (1000, 30, POD)]
    resumed = history(*looks)
    assert resumed.paused_used is None
    assert resumed.rate == 0
    assert resumed.top == 30 * MIB
    assert history(*looks, (1100, 31, POD)).rate == pytest.approx(10 * MIB)


# Newcomers


def test_a_pod_that_appears_later_is_a_newcomer() -> None:
    growths = learn(learned((0, 5, pod("other"))), look(1000, PodUsage(10 * MIB, POD)))
    found = growths.pods[POD.cgroup]
    assert found == growth(10, **NEW)
    assert PodUsage(10 * MIB, POD) in growths.moving


def test_a_pod_that_was_paused_before_the_daemon_has_its_memory_and_waits_to_go_on() -> None:
    found = history((0, 10, PAUSED))
    assert found.admitted
    assert found.started_ns == START_NS
    assert found.paused_used == 10 * MIB


@pytest.mark.parametrize(("ran_ms", "seen", "admitted"), [(1999, POD, False), (2000, POD, True), (2000, PAUSED, False)])
def test_a_newcomer_that_had_to_run_is_none_after_two_seconds(ran_ms: int, seen: Pod, admitted: bool) -> None:
    """Such as one that ran in its turn, whatever the memory."""
    known = growth(10, admitted=False, started_ns=START_NS - ran_ms * MS, ran_ns=(ran_ms - 100) * MS)
    known = known._replace(at_ns=START_NS, paused_used=10 * MIB if seen is PAUSED else None)
    assert after(known, 100, 10, seen).admitted is admitted
    spared = replace(seen, spared_until_ns=START_NS - 1899 * MS)
    assert not after(known, 100, 10, spared).admitted, "its containers were made until a moment ago"


# Drops and restarts


@pytest.mark.parametrize(("drop", "dropped"), [(LARGE, False), (LARGE + 1, True)], ids=["at", "just-below"])
def test_a_large_drop_ends_a_surge(drop: int, dropped: bool) -> None:
    used = 100 * MIB - drop
    known = growth(100, low=50 * MIB, low_ran_ns=S, ran_ns=9 * S, rate=MIB, excused=True)
    found = after(known, 1000, used / MIB)
    assert found.base == (used if dropped else None)
    assert found.top == (used if dropped else 100 * MIB)
    assert found.low == (used if dropped else 50 * MIB)
    assert found.low_ran_ns == (10 * S if dropped else S)
    assert found.excused is not dropped, "an excused pod runs until it gives back"
    assert found.admitted
    assert not found.grew
    assert found.rate > 0


@pytest.mark.parametrize(
    ("seen", "used_mib", "given_mib"),
    [
        pytest.param(BATCH, 40, 60, id="a large drop"),
        pytest.param(BATCH, 99, 0, id="a small one"),
        pytest.param(replace(BATCH, changed_at_ns=NEW_CONTAINER.changed_at_ns), 5, 95, id="a restart"),
        pytest.param(replace(BATCH, kind=PodKind.SERVICE), 40, 0, id="a service"),
        pytest.param(None, 0, 90, id="it has ended"),
    ],
)
def test_what_pods_give_back(seen: Pod | None, used_mib: float, given_mib: float) -> None:
    other = PodUsage(10 * MIB, pod("other"))
    before = Growths({POD.cgroup: growth(90, top=100 * MIB)}, START_NS)
    found = learn(before, look(1000, other, *([] if seen is None else [PodUsage(int(used_mib * MIB), seen)])))
    assert found.freed_bytes == given_mib * MIB
    assert learn(found, look(2000, other)).freed_bytes == used_mib * MIB, "it has ended since"


def test_a_sample_too_soon_tells_nothing_of_what_was_given_back() -> None:
    before = Growths({POD.cgroup: growth(100)}, START_NS, freed_bytes=MIB)
    soon = learn(before, look(5, PodUsage(40 * MIB, BATCH)))
    assert soon.freed_bytes == 0
    assert learn(soon, look(15, PodUsage(40 * MIB, BATCH))).freed_bytes == 60 * MIB


def test_the_base_follows_use_downwards() -> None:
    assert after(growth(100, base=100 * MIB, rate=MIB), 1000, 99.9).base == int(99.9 * MIB)
    assert after(growth(100, base=100 * MIB), 1000, 101).base == 100 * MIB
    assert after(growth(100), 1000, 99).base is None


def test_a_restarted_pod_begins_again() -> None:
    known = growth(100, low=50 * MIB, ran_ns=9 * S, rate=MIB, base=50 * MIB, excused=True)
    expected = growth(5, **NEW, last_peak=100 * MIB, highest_peak=100 * MIB, read_used=known.read_used)
    assert after(known, 1000, 5, NEW_CONTAINER) == expected


def test_a_restart_that_was_counted_before_is_a_drop() -> None:
    """An earlier sample saw the memory go, so this sample changed little."""
    found = after(growth(4, top=100 * MIB, low=4 * MIB), 1000, 4, NEW_CONTAINER)
    assert found.base == 4 * MIB
    assert found.admitted
    assert after(growth(5, top=100 * MIB, low=4 * MIB), 1000, 4, NEW_CONTAINER).admitted, "at the size of a drop"
    assert not after(growth(5 + 2**-20, top=100 * MIB, low=4 * MIB), 1000, 4, NEW_CONTAINER).admitted


@pytest.mark.parametrize("used_mib", [5, 100], ids=["an earlier sample saw the memory go", "it has yet to go"])
def test_a_pod_in_which_no_program_runs_is_a_newcomer(used_mib: int) -> None:
    known = growth(used_mib, low=MIB, base=MIB, ran_ns=9 * S, rate=MIB, flow=1e6, squares=1e12, excused=True)
    found = after(known, 1000, used_mib, replace(BATCH, no_program=True))
    assert (found.base, found.admitted, found.excused) == (None, False, False)
    assert (found.started_ns, found.ran_ns, found.low_ran_ns) == (START_NS + S, 0, 0)
    assert (found.rate, found.flow, found.squares) == (0, 0, 0)
    made = learn(Growths({BATCH.cgroup: found}, START_NS + S), look(1100, PodUsage(used_mib * MIB, BATCH)))
    assert not made.pods[BATCH.cgroup].admitted


def test_a_pod_that_stands_still_is_no_newcomer_when_another_container_of_it_starts() -> None:
    """It would have to be granted its memory anew, and would be paused while that does not fit."""
    for looks in ([(0, 200, JOB)], [(0, 300, JOB), (500, 200, JOB)]):
        found = history(*looks, (1000, 200, JOB), (2000, 200, NEW_CONTAINER), (2050, 200, NEW_CONTAINER))
        assert found.admitted


@pytest.mark.parametrize(("changed_ms", "admitted"), [(1000, True), (1000 + 1e-6, False)], ids=["before", "new"])
def test_only_a_drop_within_five_seconds_of_a_change_is_a_restart(changed_ms: float, admitted: bool) -> None:
    seen = replace(JOB, changed_at_ns=START_NS + round(changed_ms * MS))
    assert after(growth(100), 6000, 5, seen).admitted is admitted
    assert after(growth(100), 1000, 5, JOB).admitted, "its containers have not changed"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 1000), st.booleans(), st.booleans()), max_size=20))
def test_what_is_learned_is_consistent(looks: list[tuple[int, int, bool, bool]]) -> None:
    growths, at_ms, fastest, last, read_ms = Growths(), 0, 0.0, None, None
    for after_ms, used_mib, is_paused, is_read in looks:
        at_ms += after_ms
        read_ms = at_ms if is_read else read_ms
        growths = learn(growths, look(at_ms, PodUsage(used_mib * MIB, PAUSED if is_paused else POD), read_ms=read_ms))
        if last is not None:
            fastest = max(fastest, (used_mib - last) * MIB * 100)  # at most once in 10 ms
        last = used_mib
        found = growths.pods[POD.cgroup]
        assert 0 <= found.rate <= max(fastest, 1000 * MIB * 100)
        assert found.low <= found.used <= found.top
        assert found.surge() >= 0
        assert found.base is None or found.base <= found.low
        assert 0 <= found.low_ran_ns <= found.ran_ns <= at_ms * MS
