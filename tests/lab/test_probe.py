"""The pure parts of the lab's liveness run."""

from __future__ import annotations

import pytest
from lab.bed.services import Probes, add_up
from lab.measure.probe import tell_apart


def take_all(probes: Probes, verdicts: str) -> list[bool]:
    """Feed verdicts (`a` answered, `m` missed) to the probes; return the results of `take`."""
    return [probes.take("answered 900" if verdict == "a" else "missed 1000100") for verdict in verdicts]


@pytest.mark.parametrize(
    ("verdicts", "kills", "longest"),
    [
        pytest.param("aaaa", [False] * 4, 0, id="all-answered"),
        pytest.param("mmamm", [False] * 5, 2, id="an-answer-begins-anew"),
        pytest.param("ammm", [False, False, False, True], 3, id="three-in-a-row"),
    ],
)
def test_a_container_is_killed_for_misses_in_a_row(verdicts: str, kills: list[bool], longest: int) -> None:
    probes = Probes(failures=3)

    assert kills == take_all(probes, verdicts)
    assert longest == probes.longest_run
    assert (verdicts.count("a"), verdicts.count("m")) == (probes.answered, probes.missed)


def test_a_new_container_starts_with_a_clean_sheet() -> None:
    probes = Probes(failures=3)
    take_all(probes, "mmm")
    probes.kill()

    assert take_all(probes, "mm") == [False, False]
    assert (probes.kills, probes.longest_run) == (1, 3)


def test_services_are_added_up_but_runs_are_those_of_one() -> None:
    services = [Probes(failures=3), Probes(failures=3)]
    take_all(services[0], "mma")
    take_all(services[1], "am")

    total = add_up(services)

    assert (total.answered, total.missed, total.longest_run, total.slowest_answer_us) == (2, 3, 2, 900)


def test_holds_are_told_apart_by_their_pods() -> None:
    found = tell_apart([("s", 2.5), ("b", 20.0), ("s", 4.0)], {"s"})

    assert found == {
        "service_pauses": 2,
        "service_paused_s": 6.5,
        "service_longest_s": 4.0,
        "batch_pauses": 1,
        "batch_paused_s": 20.0,
        "batch_longest_s": 20.0,
    }
