"""Pod names from kubelet's log folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpause.core.pod_names import Names, PodName, parse_container_log, parse_pod_log_dir, workload_of
from cgpause.pods.names import read_names

UID, OTHER = "0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b", "1f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b"
ID = "1c0a36e959628a1f1a0513b9aeb4e7d5a85e194611df932b2e07ba525e5f4438"


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        pytest.param(f"default_web-0_{UID}", PodName("default", "web-0"), id="api-pod"),
        pytest.param(f"a_my.pod.with.dots_{UID}", PodName("a", "my.pod.with.dots"), id="dots"),
        pytest.param(f"default_web\n_{UID}", None, id="newline"),
        pytest.param(f"default_web_{UID}\n", None, id="newline-at-end"),
        pytest.param(f"default_we b_{UID}", None, id="space"),
        pytest.param(f"default_w\udcffb_{UID}", None, id="not-utf8"),
        pytest.param(f"default_a_b_{UID}", None, id="one-part-too-many"),
        pytest.param(f"web_{UID}", None, id="one-part-missing"),
        pytest.param(f"__{UID}", None, id="empty-names"),
        pytest.param("", None, id="empty"),
    ],
)
def test_pod_log_folder_names_the_pod(entry: str, name: PodName | None) -> None:
    assert parse_pod_log_dir(entry) == (None if name is None else (UID, name))


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        pytest.param(f"web-0_default_main-{ID}.log", "main", id="plain"),
        pytest.param(f"web-0_default_side-car-2-{ID}.log", "side-car-2", id="dashes"),
        pytest.param(f"web-0_default_main-{ID}.log\n", None, id="newline-at-end"),
        pytest.param(f"web-0_default_ma\nin-{ID}.log", None, id="newline"),
        pytest.param(f"web-0_default_main-{ID[1:]}.log", None, id="short-id"),
        pytest.param(f"web-0_default_main-{ID}.log.1", None, id="rotated"),
        pytest.param("", None, id="empty"),
    ],
)
def test_container_log_names_the_container(entry: str, name: str | None) -> None:
    assert parse_container_log(entry) == (None if name is None else (ID, name))


def test_missing_folders_give_no_names(tmp_path: Path) -> None:
    assert read_names(str(tmp_path / "nothing")) == Names({}, {})
    (tmp_path / "pods").write_text("a file, not a folder")
    assert read_names(str(tmp_path)) == Names({}, {})


@pytest.mark.parametrize(
    "others",
    [
        # kubelet makes one folder. A process with write access could otherwise fake a pod's protection or end its own.
        pytest.param([f"kube-system_dns_{OTHER}", f"default_mine_{OTHER}"], id="two-for-one-pod"),
        pytest.param(["lost+found", "a\nb", f"x_{UID}", f"default_\udcff_{UID}"], id="foreign"),
    ],
)
def test_entries_that_name_no_pod_do_not_hide_others(others: list[str], tmp_path: Path) -> None:
    for entry in (f"default_web_{UID}", *others):
        (tmp_path / "pods" / entry).mkdir(parents=True)
    assert read_names(str(tmp_path)).pods == {UID: PodName("default", "web")}


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        pytest.param("web-5d4f8c7b9d-x7k2p", "web", id="replicaset"),
        pytest.param("job-x7k2p", "job", id="job"),
        pytest.param("cron-29012345-x7k2p", "cron", id="cron-job"),
        pytest.param("db-0", "db", id="statefulset"),
        pytest.param("bare", "bare", id="bare"),
        # kubelet sees 63 characters: the API server has cut the name before it added the last five.
        pytest.param("a" * 50 + "-5d4f8c7" + "x7k2p", "a" * 50, id="cut-within-the-hash"),
        pytest.param("a" * 57 + "-" + "x7k2p", "a" * 57, id="cut-at-the-dash"),
        pytest.param("a" * 58 + "x7k2p", "a" * 58, id="cut-within-the-name"),
        pytest.param("a" * 63, "a" * 63, id="long-and-bare"),
    ],
)
def test_the_pods_of_a_workload_share_its_name(name: str, workload: str) -> None:
    assert workload_of("team", name) == f"team/{workload}"
