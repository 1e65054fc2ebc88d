"""Actions on plain trees: one bad pod does not stop the others, troubles are logged once, dry runs write nothing."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from helpers.actuating import BY_HAND, CONFIG, ORIGINALS, SAMPLE, Bench, lines
from helpers.fixtures import Log, Patch
from helpers.trees import lock_held, records_left

from cgpause.config.settings import Config, HowPaused, ThrottleConfig
from cgpause.core.clock import now_ns
from cgpause.core.model import CpuMax, Freeze, Mechanism, Owner, Pause, Result
from cgpause.daemon.process import is_outdated
from cgpause.kernel.inotify import Watch
from cgpause.ledger import ledger


@pytest.mark.parametrize("mechanism", Mechanism)
def test_pods_are_paused_and_each_gets_its_own_original_back(bench: Bench, caplog: Log, mechanism: Mechanism) -> None:
    bench.pause("a", "b", "c", mechanism=mechanism)
    assert bench.paused() == ["a", "b", "c"]
    assert bench.cpu_max() == (["1001 100000"] * 3 if mechanism is Mechanism.THROTTLE else ORIGINALS)
    assert len(records_left(bench.fake.root)) == 3
    bench.resume("a", "b", "c")
    assert (bench.paused(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])
    assert (bench.actuator.counts.pauses, bench.actuator.counts.causes[Result.HEADROOM]) == (3, 3)
    assert len(lines(caplog)) == 6


def test_a_pause_and_a_resume_are_logged_with_all_an_operator_asks_for(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    bench.resume("b")
    paused, resumed = lines(caplog)
    uid = bench.fake.uids["b"]
    assert paused == (
        f'paused pod=default/b uid={uid} mechanism=throttle cpu_max_from="50000 100000" cpu_max_to="1001 100000" '
        "memory_current_bytes=1 used_pct=95.0 reason=test"
    )
    assert resumed.startswith(
        f'resumed pod=default/b uid={uid} mechanism=throttle cpu_max_from="1001 100000" '
        'cpu_max_to="50000 100000" paused_s='
    )
    assert resumed.endswith("used_pct=95.0 reason=test")


def test_whatever_is_done_to_a_pod_is_told_once_to_log_and_history(bench: Bench, caplog: Log) -> None:
    bench.pause("a", "b")
    bench.freeze("b")
    bench.drift(1)
    bench.resume("a")
    bench.sacrifice("b")
    bench.pause("c")
    bench.actuator.log_adopted(bench.tracked("c"))
    bench.actuator.forget(bench.tracked("c").pod)

    *told, adopted, gone = lines(caplog)
    assert adopted.startswith("adopted pod=default/c ")
    assert [event.line for event in bench.kept] == [*told, gone]
    assert [(event.what, event.pod, event.result) for event in bench.kept] == [
        ("paused", "default/a", None),
        ("paused", "default/b", None),
        ("froze", "default/b", None),
        ("asserted again", "default/b", None),
        ("resumed", "default/a", "headroom"),
        ("sacrificed", "default/b", None),
        ("resumed", "default/b", "sacrificed"),
        ("paused", "default/c", None),
        ("gone", "default/c", "gone"),
    ]
    assert (bench.kept[2].reason, bench.kept[2].used_pct) == ("it grows", 95.0)
    assert len({event.pause for event in bench.kept}) == 3
    assert all(event.uid and event.reason and event.owner == "daemon" for event in bench.kept)


def test_all_pods_are_paused_before_any_is_told_of(bench: Bench, monkeypatch: Patch) -> None:
    """The journal may block the daemon."""
    seen: list[list[str]] = []
    monkeypatch.setattr("cgpause.daemon.reports.report", lambda *_: seen.append(bench.cpu_max()))
    bench.pause("a", "b", "c")
    assert len(seen) == 3
    assert seen[0] == seen[-1] == bench.cpu_max()


def test_what_an_operator_has_taken_over_since_the_last_look_is_left_alone(bench: Bench) -> None:
    bench.pause("a", "b", "c")
    bench.tracked("a").pod = replace(bench.tracked("a").pod, distress="a probe")
    for name in ("a", "b", "c"):
        bench.take_over(name)
        assert bench.tracked(name).pod.paused != ledger.read_record(bench.tracked(name).cgroup), "not known yet"

    assert bench.actuator.resume(bench.tracked("a"), "x"), "it counts as resumed"
    bench.resume("b")
    bench.freeze("c")

    assert bench.cpu_max() == ["1001 100000"] * 3
    assert bench.frozen() == []
    for name in ("a", "b", "c"):
        assert bench.record(name).owner is Owner.MANUAL
    assert bench.tracked("a").pod.distress is None
    assert [event.what for event in bench.kept] == ["paused"] * 3
    assert bench.actuator.counts.causes[Result.OPERATOR] == 0, "none has ended"
    # The daemon resumes an operator's expired pause once it knows the new owner.
    assert bench.actuator.resume(bench.tracked("a"), "pause expired", Result.EXPIRED)
    assert bench.paused() == ["b", "c"]


def test_who_adopts_or_forgets_a_pod_that_runs_has_nothing_to_tell(bench: Bench) -> None:
    bench.actuator.log_adopted(bench.tracked("a"))
    bench.actuator.forget(bench.tracked("a").pod)

    assert bench.kept == []


@pytest.mark.parametrize(
    "code", [errno.EINVAL, errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.ENODEV], ids=errno.errorcode.get
)
def test_one_bad_pod_never_stops_the_others(bench: Bench, code: int) -> None:
    with bench.refusing("b", code):
        bench.pause("a", "b", "c")
    assert bench.cpu_max() == ["1001 100000", "50000 100000", "1001 100000"]
    assert bench.actuator.counts.pauses == 2
    with bench.refusing("a", code):
        bench.resume("a", "c")
    assert bench.cpu_max() == ["1001 100000", "50000 100000", "200000 50000"]
    bench.resume("a")
    assert bench.cpu_max() == ORIGINALS


def test_a_pod_the_kernel_refuses_is_set_aside_for_a_while_and_told_once(bench: Bench, caplog: Log) -> None:
    with bench.refusing("b", errno.EACCES):
        for _ in range(3):
            bench.pause("b")
    assert len(lines(caplog, "could not pause")) == 1
    assert "EACCES" in lines(caplog)[0]
    tracked = bench.tracked("b")
    assert tracked.pod.protected is not None
    assert tracked.pod.protected.startswith("could not pause")
    bench.tree.refresh(now_ns())
    assert tracked.pod.protected is not None
    bench.tree.refresh(now_ns() + 61 * 10**9)
    assert tracked.pod.protected is None
    bench.pause("b")
    assert bench.paused() == ["b"]
    assert (bench.actuator.counts.pauses, bench.actuator.counts.pause_failures) == (1, 3)


def test_a_busy_pod_is_left_for_the_next_tick_and_told_once(bench: Bench, caplog: Log) -> None:
    """Otherwise a stopped process that holds the lock would cause twenty log lines a second."""
    with lock_held(bench.folders["b"]):
        for _ in range(3):
            bench.pause("a", "b", "c")
        assert len(lines(caplog, "busy")) == 1
        assert bench.cpu_max() == ["1001 100000", "50000 100000", "1001 100000"]
        assert bench.paused() == ["a", "c"]
    bench.pause("b")
    with lock_held(bench.folders["b"]):
        bench.freeze("a", "b")
        assert bench.frozen() == ["a"]
        bench.resume("a", "b", "c")
        assert bench.paused() == ["b"]
    bench.freeze("b")
    assert bench.frozen() == ["b"]
    bench.resume("b")
    assert (bench.paused(), bench.frozen(), bench.cpu_max()) == ([], [], ORIGINALS)
    assert (bench.actuator.counts.pause_failures, bench.actuator.counts.resume_failures) == (0, 0)


def test_a_pod_that_is_gone_is_nobodys_trouble(bench: Bench, caplog: Log) -> None:
    action = Pause(bench.tracked("b").pod, 1, Mechanism.THROTTLE, "test")
    shutil.rmtree(bench.folders["b"])
    bench.apply(action)
    bench.tree.refresh(1)
    bench.apply(action)
    assert lines(caplog) == []


def test_a_pause_by_an_operator_who_was_faster_is_not_ours(bench: Bench, caplog: Log) -> None:
    bench.pause_by_hand("a", replace(BY_HAND, mechanism=Mechanism.FREEZE))
    bench.pause("a")
    assert bench.record("a").owner is Owner.MANUAL
    assert (bench.actuator.counts.pauses, lines(caplog), bench.cpu_max()) == (0, [], ORIGINALS)


def test_a_resume_by_an_operator_who_was_faster_is_not_ours(bench: Bench, caplog: Log) -> None:
    bench.pause("a")
    bench.resume_by_hand("a")
    bench.resume("a")
    causes = +bench.actuator.counts.causes
    assert (bench.paused(), causes, len(lines(caplog))) == ([], {Result.OPERATOR: 1}, 1)


def test_a_reaction_begins_when_the_look_was_due(bench: Bench) -> None:
    at_ns = now_ns()
    late = replace(SAMPLE, at_ns=at_ns, late_ns=2_000_000_000)
    bench.actuator.apply([Pause(bench.tracked("a").pod, 1, Mechanism.THROTTLE, "test")], late, CONFIG)
    at_once = replace(late, late_ns=0)
    bench.actuator.apply([Pause(bench.tracked("b").pod, 1, Mechanism.THROTTLE, "test")], at_once, CONFIG)

    (figure,) = bench.actuator.counts.reactions.values()["cgpause_reaction_latency_seconds"]
    assert sum(figure.counts) == 2
    assert 2 < figure.value <= 2 + 2 * (now_ns() - at_ns) / 1e9


def test_a_pause_that_an_operator_ended_is_counted_once(bench: Bench) -> None:
    bench.pause("a")
    bench.resume_by_hand("a")
    bench.read_record("a")
    bench.read_record("a")

    assert +bench.actuator.counts.causes == {Result.OPERATOR: 1}


def test_a_bug_in_the_figures_costs_no_event(bench: Bench, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(bench.actuator.counts, "count", lambda _: 1 // 0)
    bench.pause("b")
    assert [event.what for event in bench.kept] == ["paused"]
    assert len(lines(caplog, "event not counted")) == 1


def test_a_resume_says_whether_it_is_over(bench: Bench) -> None:
    bench.pause("b", "c")
    assert bench.actuator.resume(bench.tracked("a"), "x")
    assert bench.actuator.resume(bench.tracked("b"), "x", Result.OPERATOR, used_pct=12.5)
    assert (bench.kept[-1].result, bench.kept[-1].used_pct) == (Result.OPERATOR, 12.5)
    with bench.refusing("c", 5):
        assert not bench.actuator.resume(bench.tracked("c"), "x")
    assert bench.paused() == ["c"]


def test_a_resumed_pod_is_as_new(bench: Bench) -> None:
    bench.pause("b")
    bench.drift(3)
    tracked = bench.tracked("b")
    tracked.pod, tracked.damaged = replace(tracked.pod, distress="dying"), True
    bench.resume("b")
    assert (tracked.damaged, tracked.pod.distress, tracked.pod.paused) == (False, None, None)
    assert tracked.drifts.count == 3, "they count for the whole hour"


def test_a_resume_that_fails_keeps_the_record_is_tried_again_and_told_once_for_each_pause(
    bench: Bench, caplog: Log
) -> None:
    for _ in range(2):
        bench.pause("b")
        with bench.refusing("b", 5):
            bench.resume("b")
            bench.resume("b")
        assert bench.paused() == ["b"]
        bench.resume("b")
        assert (bench.paused(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])
    assert [r.levelname for r in caplog.records if "could not resume" in r.getMessage()] == ["ERROR"] * 2
    assert (bench.actuator.counts.resume_failures, +bench.actuator.counts.causes) == (4, {Result.HEADROOM: 2})


# --- watches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["none", "refused", "busy"])
def test_only_paused_pods_wake_us_with_every_write(bench: Bench, watch: Watch, failure: str) -> None:
    """A pod that thrashes at its own memory.max would wake the daemon a hundred times a second."""
    events = bench.folders["b"] / "memory.events"
    with ExitStack() as stack:
        if failure == "refused":
            stack.enter_context(bench.refusing("b", errno.EACCES))
        elif failure == "busy":
            stack.enter_context(lock_held(bench.folders["b"]))
        bench.pause("b")
    watch.read()
    events.write_text("max 1\noom_kill 0\n")
    assert bool(watch.read().pods) is (failure == "none")
    bench.resume("b")
    watch.read()
    events.write_text("max 1\noom_kill 0\n")
    assert watch.read().pods == {}


def test_memory_events_is_open_during_a_pause(bench: Bench) -> None:
    """Or the kernel may drop its inode, and then sends no event for an OOM kill (tests/vm/test_distress_kernel.py)."""
    bench.pause("b")
    events_fd = bench.tracked("b").events_fd
    assert os.readlink(f"/proc/self/fd/{events_fd}") == str(bench.folders["b"] / "memory.events")
    bench.resume("b")
    assert bench.tracked("b").events_fd == -1
    assert not os.path.exists(f"/proc/self/fd/{events_fd}")


# --- freeze ----------------------------------------------------------------------------------------------------------


def test_a_throttled_pod_is_frozen_logged_counted_and_resumed_from_both(bench: Bench, caplog: Log) -> None:
    bench.pause("a", "b")
    for _ in range(3):
        bench.freeze("b")
    assert (bench.frozen(), bench.paused(), bench.actuator.counts.freezes) == (["b"], ["a", "b"], 1)
    assert (bench.record("b").mechanism, bench.record("b").reason) == (Mechanism.FREEZE, "it grows")
    froze = lines(caplog)[-1]
    assert len(lines(caplog, "froze")) == 1
    assert froze.startswith(f"froze pod=default/b uid={bench.fake.uids['b']} mechanism=freeze paused_s=")
    assert froze.endswith('used_pct=95.0 reason="it grows"')
    bench.resume("a", "b")
    assert (bench.frozen(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])
    assert "mechanism=freeze" in lines(caplog, "resumed pod=default/b")[0]


def test_the_second_step_of_a_pause_is_no_event_and_its_time_counts_as_frozen(bench: Bench, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    bench.pause("b")
    paused = bench.record("b")
    bench.apply(Freeze(bench.tracked("b").pod, paused.reason))
    assert (bench.frozen(), bench.record("b")) == (["b"], replace(paused, mechanism=Mechanism.FREEZE))
    time.sleep(0.01)  # times have a resolution of one millisecond
    bench.resume("b")
    assert [line.split()[0] for line in lines(caplog)] == ["paused", "resumed"]
    assert "mechanism=freeze" in lines(caplog, "resumed")[0]
    counts = bench.actuator.counts
    assert (counts.freezes, counts.pauses) == (0, 1)
    mechanisms = {figure.labels[-1] for figure in counts.values()["cgpause_paused_seconds_total"]}
    assert mechanisms == {"throttle", "freeze"}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES, errno.ENODEV, errno.EIO], ids=errno.errorcode.get)
def test_a_pod_that_cannot_be_frozen_stays_throttled_is_told_once_and_stops_nobody(
    bench: Bench, caplog: Log, code: int
) -> None:
    bench.pause("a", "b", "c")
    with bench.refusing("b", code, "cgroup.freeze"):
        for _ in range(3):
            bench.freeze("a", "b", "c")
    assert (bench.frozen(), bench.paused(), bench.actuator.counts.freezes) == (["a", "c"], ["a", "b", "c"], 2)
    assert len(lines(caplog, "could not freeze")) == (code != errno.ENODEV)
    assert bench.tracked("b").pod.protected is None  # a protected pod would run again
    bench.resume("a", "b", "c")
    assert (bench.frozen(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])


@pytest.mark.parametrize("owner", [None, Owner.MANUAL], ids=["resumed", "paused-by-hand"])
def test_an_operator_who_was_faster_than_a_freeze_has_the_pod(bench: Bench, caplog: Log, owner: Owner | None) -> None:
    bench.pause("b")
    bench.resume_by_hand("b")
    if owner is not None:
        bench.pause_by_hand("b")
    bench.freeze("b")
    assert (bench.frozen(), bench.actuator.counts.freezes, len(lines(caplog))) == ([], 0, 1)
    paused = bench.tracked("b").pod.paused
    assert (paused and paused.owner) is owner


THROTTLED, FROZEN_LATER, FROZEN_AT_ONCE = "throttled", "throttled and then frozen", "frozen at once"


@pytest.mark.parametrize(
    ("how", "quota_us", "outdated"),
    [
        pytest.param(HowPaused.AUTO, 1001, {FROZEN_AT_ONCE}, id="auto"),
        pytest.param(HowPaused.THROTTLE, 1001, {FROZEN_AT_ONCE, FROZEN_LATER}, id="throttle"),
        pytest.param(HowPaused.FREEZE, 1001, {THROTTLED}, id="freeze"),
        pytest.param(HowPaused.FREEZE, 2001, {THROTTLED}, id="freeze-has-no-quota"),
        pytest.param(HowPaused.AUTO, 2001, {THROTTLED, FROZEN_LATER, FROZEN_AT_ONCE}, id="another-quota"),
    ],
)
def test_a_pause_is_outdated_if_the_configuration_would_make_another(
    bench: Bench, how: HowPaused, quota_us: int, outdated: set[str]
) -> None:
    bench.pause("a", "b")
    bench.freeze("b")
    bench.pause("c", mechanism=Mechanism.FREEZE)
    config = Config(mechanism=how, throttle=ThrottleConfig(quota_us=quota_us))
    records = dict(zip((THROTTLED, FROZEN_LATER, FROZEN_AT_ONCE), map(bench.record, "abc"), strict=True))
    assert {name for name, record in records.items() if is_outdated(record, config)} == outdated
    assert not any(is_outdated(replace(record, owner=Owner.MANUAL), config) for record in records.values())


def test_a_quota_that_a_pods_own_limit_lowers_is_not_outdated(bench: Bench) -> None:
    bench.pause("b")
    config = Config(throttle=ThrottleConfig(quota_us=60_000))
    low = replace(bench.record("b"), written=CpuMax(50_000, 100_000))
    assert not is_outdated(low, config)
