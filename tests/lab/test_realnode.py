"""The pure parts of `scripts/bench realnode`."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest
from lab.measure.realnode.image import IMAGE, image_archive
from lab.measure.realnode.node import Outcome, Pod, outcomes

from cgpause.core.cgroup_names import is_static_uid, pod_uid


def status(**state: dict[str, Any]) -> dict[str, Any]:
    return {
        "items": [{"metadata": {"uid": "u"}, "status": {"containerStatuses": [{"restartCount": 2, "state": state}]}}]
    }


def test_cgpause_takes_a_pod_with_a_uid_of_its_own_for_one_of_the_api() -> None:
    pod = Pod("a", ["idle"])

    assert pod_uid(pod.cgroup.name) == pod.uid == pod.manifest()["metadata"]["uid"]
    assert not is_static_uid(pod.uid)


def test_a_pod_has_only_the_limits_and_the_probe_that_it_is_given() -> None:
    (bare,) = Pod("a", ["idle"]).manifest()["spec"]["containers"]
    (full,) = Pod("b", ["serve", "80"], 64, cpu_limit="500m", port=80).manifest()["spec"]["containers"]

    assert (bare["resources"]["limits"], "livenessProbe" in bare) == ({}, False)
    assert full["resources"]["limits"] == {"memory": "64", "cpu": "500m"}
    assert full["livenessProbe"]["httpGet"]["port"] == 80


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(status(running={}), Outcome(running=True, restarts=2), id="running"),
        pytest.param(
            status(terminated={"exitCode": 0, "finishedAt": "1970-01-01T00:01:00Z"}),
            Outcome(restarts=2, done_at=60.0),
            id="done",
        ),
        pytest.param(
            status(terminated={"exitCode": 137, "finishedAt": "1970-01-01T00:01:00Z"}), Outcome(restarts=2), id="killed"
        ),
        pytest.param(status(terminated={"exitCode": 0, "finishedAt": None}), Outcome(restarts=2, lost=True), id="lost"),
        pytest.param(status(waiting={}), Outcome(restarts=2), id="in-back-off"),
    ],
)
def test_kubelet_says_what_became_of_a_pod(answer: dict[str, Any], expected: Outcome) -> None:
    assert outcomes(answer) == {"u": expected}


def test_a_kubelet_without_pods_says_nothing() -> None:
    assert outcomes({"items": None}) == {}


def test_the_image_is_an_archive_that_containerd_reads() -> None:
    with tarfile.open(fileobj=io.BytesIO(image_archive(b"program"))) as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        names = archive.getnames()
        with tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            assert layer.getmember("pause").mode == 0o755
            assert layer.getmember("lib64").linkname == "usr/lib64"

    assert manifest["RepoTags"] == [IMAGE]
    assert {manifest["Config"], *manifest["Layers"]} <= set(names)
