"""The pure parts of `scripts/bench realnode`."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest
from lab.measure.realnode.cases import CASES
from lab.measure.realnode.image import IMAGE, image_archive
from lab.measure.realnode.node import Outcome, Pod, outcomes
from lab.pages.realnode_report import answers, finding, tables

from cgpause.core.kubepods import is_static_uid, pod_uid

CLEAN = {"originals_back": True, "records_left": 0, "restarts": 0}


def status(**state: dict[str, Any]) -> dict[str, Any]:
    return {
        "items": [{"metadata": {"uid": "u"}, "status": {"containerStatuses": [{"restartCount": 2, "state": state}]}}]
    }


def load(arm: str, done_s: float | None, restarts: int) -> dict[str, Any]:
    figures = {"done_s": [done_s], "restarts": [restarts], "restarts_beside": 0, "oom_kills": restarts}
    return {"case": "idle", "arm": arm, **figures}


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


def test_a_load_that_does_not_end_is_said_to() -> None:
    run = {"loads": [load("without", 28, 2), load("with", None, 0)], "checks": []}

    line, missing = answers(run)
    assert missing == "- Not measured: unlimited, probed, reload, kubelet, sigterm, uninstall."
    assert "0 restarts with cgpause, 2 without; done after not done" not in line
    assert "0 restarts with cgpause, 2 without; not done" in line
    assert "| idle | with | not done | 0 | 0 | 0 | - | - |" in tables(run)


def test_a_check_says_what_was_undone_and_whether_originals_are_back() -> None:
    undone = {"case": "reload", "times_undone": 2, "longest_undone_s": 0.4, "paused_at_end": True, **CLEAN}

    assert finding(undone) == "undone 2 times, for 0.4 s at most; originals back; no record left; 0 restarts"
    assert "originals **not** back" in finding({"case": "uninstall", **CLEAN, "originals_back": False})


def test_checks_that_fail_are_named() -> None:
    checks = [{"case": "reload", "ok": False}, {"case": "uninstall", "ok": True}]

    assert answers({"loads": [], "checks": checks})[0] == "- Of 2 checks of a pause by hand these fail: reload."


def test_the_report_has_words_for_every_case() -> None:
    (missing,) = answers({"loads": [], "checks": []})

    assert all(case in missing for case in CASES)
