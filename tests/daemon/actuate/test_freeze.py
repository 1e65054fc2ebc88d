"""Throttled pods that the actuator freezes, and pods that it cannot freeze."""

from __future__ import annotations

import errno
import logging
import time
from dataclasses import replace

import pytest
from helpers.actuating import ORIGINALS, Bench, lines
from helpers.fixtures import Log
from helpers.trees import lock_held, records_left

from cgpause.core.model import Freeze, Mechanism, Owner


def test_a_throttled_pod_is_frozen_logged_counted_and_resumed_from_both(bench: Bench, caplog: Log) -> None:
    bench.pause("a", "b")
    bench.freeze("b")
    assert (bench.frozen(), bench.held(), bench.actuator.counts.freezes) == (["b"], ["a", "b"], 1)
    assert (bench.record("b").mechanism, bench.record("b").reason) == (Mechanism.FREEZE, "it grows")
    froze = lines(caplog)[-1]
    assert froze.startswith(f"froze pod=default/b uid={bench.fake.uids['b']} mechanism=freeze paused_s=")
    assert froze.endswith('used_pct=95.0 reason="it grows"')
    bench.resume("a", "b")
    assert (bench.frozen(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])
    assert "mechanism=freeze" in lines(caplog, "resumed pod=default/b")[0]


def test_the_second_step_of_an_ordinary_pause_is_no_event_and_its_time_counts_as_frozen(
    bench: Bench, caplog: Log
) -> None:
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
    held = {figure.labels[-1] for figure in counts.values()["cgpause_paused_seconds_total"]}
    assert held == {"throttle", "freeze"}


def test_freezing_a_frozen_pod_again_says_nothing(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    for _ in range(3):
        bench.freeze("b")
    assert (len(lines(caplog, "froze")), bench.actuator.counts.freezes) == (1, 1)


@pytest.mark.parametrize(
    "code", [errno.EINVAL, errno.EACCES, errno.ENODEV, errno.EIO], ids=lambda code: errno.errorcode[code]
)
def test_a_pod_that_cannot_be_frozen_stays_throttled_is_told_once_and_stops_nobody(
    bench: Bench, caplog: Log, code: int
) -> None:
    bench.pause("a", "b", "c")
    with bench.refusing("b", code, "cgroup.freeze"):
        for _ in range(3):
            bench.freeze("a", "b", "c")
    assert (bench.frozen(), bench.held(), bench.actuator.counts.freezes) == (["a", "c"], ["a", "b", "c"], 2)
    assert len(lines(caplog, "could not freeze")) == (code != errno.ENODEV)
    assert bench.tracked("b").pod.protected is None  # a protected pod would run again
    bench.resume("a", "b", "c")
    assert (bench.frozen(), bench.cpu_max(), records_left(bench.fake.root)) == ([], ORIGINALS, [])


def test_a_pod_frozen_by_somebody_else_is_told_once_and_left_to_them(bench: Bench, caplog: Log) -> None:
    bench.pause("b")
    (bench.folders["b"] / "cgroup.freeze").write_text("1\n")
    for _ in range(3):
        bench.freeze("b")
    assert [line.split(" pod=")[0] for line in lines(caplog)] == ["paused", "could not freeze"]
    bench.resume("b")
    assert (bench.frozen(), bench.cpu_max()) == (["b"], ORIGINALS)


def test_a_busy_pod_is_frozen_by_a_later_decision(bench: Bench) -> None:
    bench.pause("b")
    with lock_held(bench.folders["b"]):
        bench.freeze("b")
    assert bench.frozen() == []
    bench.freeze("b")
    assert bench.frozen() == ["b"]


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


def test_a_foreign_write_to_a_frozen_pod_is_answered(bench: Bench) -> None:
    bench.pause("b")
    bench.freeze("b")
    bench.drift(1)
    assert (bench.cpu_max()[1], bench.frozen(), bench.actuator.counts.drifts) == ("1001 100000", ["b"], 1)
    bench.resume("b")
    assert (bench.cpu_max()[1], bench.frozen()) == ("30000 100000", [])
