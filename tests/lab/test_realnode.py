"""The pure parts of `scripts/bench realnode`."""

from __future__ import annotations

from typing import Any

import pytest
from lab.measure.realnode.node import Outcome, Pod, outcomes

from cgpause.core.cgroup_names import is_static_uid, pod_uid


def status(**state: dict[str, Any]) -> dict[str, Any]:
    pod = {"metadata": {"uid": "u"}, "status": {"containerStatuses": [{"restartCount": 2, "state": state}]}}
    return {"items": [pod]}


def ended(code: int, at: str | None = "1970-01-01T00:01:00Z") -> dict[str, Any]:
    return status(terminated={"exitCode": code, "finishedAt": at})


def test_cgpause_takes_a_pod_with_a_uid_of_its_own_for_one_of_the_api() -> None:
    pod = Pod("a", ["idle"])

    assert pod_uid(pod.cgroup.name) == pod.uid == pod.manifest()["metadata"]["uid"]
    assert not is_static_uid(pod.uid)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(status(running={}), Outcome(running=True, restarts=2), id="running"),
        pytest.param(ended(0), Outcome(restarts=2, done_at=60.0), id="done"),
        pytest.param(ended(137), Outcome(restarts=2), id="killed"),
        pytest.param(ended(0, at=None), Outcome(restarts=2, lost=True), id="lost"),
        pytest.param(status(waiting={}), Outcome(restarts=2), id="in-back-off"),
    ],
)
def test_kubelet_says_what_became_of_a_pod(answer: dict[str, Any], expected: Outcome) -> None:
    assert outcomes(answer) == {"u": expected}
