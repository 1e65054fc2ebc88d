"""Learned kinds of workloads, and the kind of a silent pod."""

from __future__ import annotations

import pytest

from cgpause.core.model import PodKind
from cgpause.policy.kinds import FIRM_S, KEPT, Kinds


@pytest.fixture
def kinds() -> Kinds:
    return Kinds()


def test_silence_makes_batch_with_care_where_other_pods_can_be_paused(kinds: Kinds) -> None:
    kinds.note_silent("default/slow", FIRM_S - 0.1)
    kinds.note_batch("default/job")
    assert kinds.is_silent("default/slow")
    assert kinds.of_silent("default/slow", FIRM_S - 0.1) is PodKind.STARTING
    assert kinds.of_silent("default/slow", FIRM_S) is PodKind.BATCH
    assert kinds.of_silent(None, 0.0) is PodKind.STARTING
    assert kinds.of_silent("default/job", 0.0) is PodKind.BATCH


def test_a_silent_pod_of_a_service_is_starting_for_as_long_as_it_is_silent(kinds: Kinds) -> None:
    kinds.note_listening("default/web")
    assert kinds.of_silent("default/web", 0.0) is PodKind.STARTING
    assert kinds.of_silent("default/web", 10 * FIRM_S) is PodKind.STARTING
    assert kinds.of_silent("default/other", 0.0) is PodKind.BATCH


def test_a_silent_pod_of_a_workload_that_was_only_probed_is_batch() -> None:
    """It may be `kubectl exec` in a job."""
    kinds = Kinds({"default/before": True})
    kinds.note_probed("default/job")
    assert kinds.known() == {"default/before": True, "default/job": True}
    assert kinds.of_silent("default/job", FIRM_S) is PodKind.BATCH
    assert kinds.of_silent("default/before", FIRM_S) is PodKind.BATCH, "until a pod of it listens again"


def test_a_workload_that_was_a_service_before_the_daemons_start_may_still_be_starting() -> None:
    kinds = Kinds({"default/web": True, "default/job": False})
    assert kinds.of_silent("default/web", FIRM_S - 0.1) is PodKind.STARTING
    assert kinds.of_silent("default/web", FIRM_S) is PodKind.BATCH
    only = Kinds({"default/web": True})
    assert only.of_silent("default/web", FIRM_S - 0.1) is PodKind.STARTING, "while no workload is certainly batch, too"


def test_a_workload_that_is_forgotten_is_as_new(kinds: Kinds) -> None:
    kinds.note_batch("default/job")
    kinds.note_listening("default/web")
    for workload in (None, "default/other", "default/web"):
        kinds.forget(workload)
    assert kinds.known() == {"default/job": False}
    assert kinds.of_silent("default/web", FIRM_S) is PodKind.BATCH
    assert kinds.of_silent("default/web", 0.0) is PodKind.STARTING, "a job is certainly batch"
    kinds.forget("default/job")
    assert kinds.known() == {}
    assert kinds.of_silent("default/web", 0.0) is PodKind.BATCH, "none is, any more"


def test_a_thousand_workloads_are_remembered_the_oldest_go_first(kinds: Kinds) -> None:
    for number in range(1001):
        kinds.note_batch(f"default/job{number}")
    assert not kinds.is_silent("default/job0")
    assert kinds.is_silent("default/job1")
    assert kinds.of_silent("default/new", 0.0) is PodKind.STARTING


def test_a_workload_that_is_met_again_is_not_the_first_to_go() -> None:
    """Runs with names of their own (workflows, CI) would push out the services that were there first."""
    kinds = Kinds({"default/web": True, "default/old": False})
    for number in range(1500):
        kinds.note_batch(f"default/run{number}")
        assert kinds.is_service("default/web")
        kinds.note_listening("default/web")
    assert "default/old" not in kinds.known()


def test_a_workload_that_becomes_a_service_is_not_the_first_to_go() -> None:
    kinds = Kinds({"default/web": None, **{f"default/run{number}": False for number in range(KEPT - 1)}})
    kinds.note_listening("default/web")
    kinds.note_batch("default/new")
    assert kinds.known()["default/web"] is True
    assert "default/run0" not in kinds.known()


def test_what_was_known_counts_again() -> None:
    kinds = Kinds({"default/web": True, "default/job": False, "default/slow": None})
    assert kinds.known() == {"default/web": True, "default/job": False, "default/slow": None}
    assert kinds.of_silent("default/job", 0.0) is PodKind.BATCH
    assert kinds.of_silent("default/slow", 0.0) is PodKind.STARTING, "for another one is batch for certain"
    assert not kinds.is_silent("default/web")
    kinds.note_listening("default/job")
    assert kinds.of_silent("default/slow", 0.0) is PodKind.BATCH, "none is certain any more"


def test_services_known_from_before_make_no_workload_certain() -> None:
    kinds = Kinds({"default/web": True, "default/shop": True})
    assert kinds.of_silent("default/new", 0.0) is PodKind.BATCH, "there is no other pod to pause instead"
    kinds.note_batch("default/job")
    assert kinds.of_silent("default/new", 0.0) is PodKind.STARTING
    assert kinds.of_silent("default/new", FIRM_S + 1) is PodKind.BATCH


def test_what_is_known_is_a_copy_and_changes_only_with_something_new() -> None:
    kinds = Kinds({"default/web": True})
    kinds.note_listening("default/web")
    assert not kinds.note_batch("default/web")
    assert not kinds.note_silent("default/web", FIRM_S)
    kinds.note_listening(None)
    assert kinds.known() == {"default/web": True}
    silent = [kinds.note_silent("default/job", seconds) for seconds in (1.0, 2.0, FIRM_S, FIRM_S + 1)]
    assert silent == [True, False, True, False]
    known = kinds.known()
    kinds.note_listening("default/job")
    assert (known["default/job"], kinds.known()["default/job"]) == (False, True)


def test_pods_without_a_controller_teach_nothing(kinds: Kinds) -> None:
    kinds.note_listening(None)
    kinds.note_batch(None)
    kinds.note_silent(None, FIRM_S)
    kinds.note_silent(None, 1.0)
    assert kinds.known() == {}
    kinds.note_batch("default/job")
    assert kinds.of_silent(None, FIRM_S) is PodKind.BATCH
