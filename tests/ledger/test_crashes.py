"""A process that dies at any step leaves a state that a resume restores."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.crashing import SCENARIOS, CgroupState, PausableCgroup, Scenario, check_every_crash, deaths, freeze
from helpers.ledgers import hold, make_cgroup

from cgpause import restore


@pytest.mark.parametrize("torn", [False, True], ids=["before-a-step", "inside-a-write"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_whoever_dies_at_any_step_leaves_a_pod_that_resume_puts_right(
    pod: PausableCgroup, scenario: Scenario, torn: bool
) -> None:
    """A plain file is empty between its truncation and its write; a kernel file never is."""
    check_every_crash(pod, scenario, torn=torn)


def test_a_daemon_killed_at_any_step_of_a_freeze_leaves_what_restore_undoes_without_it(tmp_path: Path) -> None:
    pod = make_cgroup(tmp_path, "kubepods.slice/kubepods-podb1f4499cb83e8ce3e7de136e9e81cb0d.slice")

    def set_up() -> None:
        pod.set("50000 100000", 20000)
        hold(pod, "throttle")

    for _, where in deaths(pod, set_up, freeze):
        assert pod.state().record is not None
        assert restore.main(["--cgroup-root", str(tmp_path)]) == 0
        assert pod.state() == CgroupState("50000 100000", "20000", "0", None), where
