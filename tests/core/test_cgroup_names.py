"""Names of cgroups as kubelet and the runtimes make them, and other entries in the tree."""

from __future__ import annotations

import pytest

from cgpause.core.cgroup_names import CgroupDriver, container_id, pod_uid, root_driver, tier_class
from cgpause.core.model import QosClass

UUID = "0f9d1a2b-3c4d-4e5f-8a6b-7c8d9e0f1a2b"
SLICED = "0f9d1a2b_3c4d_4e5f_8a6b_7c8d9e0f1a2b"
HASH = "b1f4499cb83e8ce3e7de136e9e81cb0d"
ID = "1c0a36e959628a1f1a0513b9aeb4e7d5a85e194611df932b2e07ba525e5f4438"


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("kubepods.slice", CgroupDriver.SYSTEMD),
        ("kubepods", CgroupDriver.CGROUPFS),
        ("kubelet-kubepods.slice", CgroupDriver.SYSTEMD),
        ("a-b-kubepods.slice", CgroupDriver.SYSTEMD),
        ("kubelet.slice", None),
        ("kubepods-burstable.slice", None),
        ("kubepods.slice.d", None),
        ("kubepods.slice\n", None),
        ("kubepods\n", None),
        (" kubepods", None),
        ("Kubepods", None),
        ("xkubepods.slice", None),
        ("my-kubepods", None),
        ("kubepods.slice\udcff", None),
        ("", None),
    ],
)
def test_root_is_told_by_its_name(name: str, driver: CgroupDriver | None) -> None:
    assert root_driver(name) == driver


@pytest.mark.parametrize(
    ("name", "qos"),
    [
        ("kubepods-burstable.slice", QosClass.BURSTABLE),
        ("kubepods-besteffort.slice", QosClass.BEST_EFFORT),
        ("kubelet-kubepods-besteffort.slice", QosClass.BEST_EFFORT),
        ("burstable", QosClass.BURSTABLE),
        ("besteffort", QosClass.BEST_EFFORT),
        ("guaranteed", None),
        ("kubepods-guaranteed.slice", None),
        ("kubepods-burstable.slice\n", None),
        ("burstable\n", None),
        ("Burstable", None),
        ("kubepods-burstable-burstable.slice", None),
        ("", None),
    ],
)
def test_tier_is_told_by_its_name(name: str, qos: QosClass | None) -> None:
    assert tier_class(name) == qos


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        pytest.param(f"kubepods-pod{SLICED}.slice", UUID, id="guaranteed"),
        pytest.param(f"kubepods-burstable-pod{SLICED}.slice", UUID, id="burstable"),
        pytest.param(f"kubepods-besteffort-pod{SLICED}.slice", UUID, id="besteffort"),
        pytest.param(f"kubelet-kubepods-burstable-pod{SLICED}.slice", UUID, id="nested"),
        pytest.param(f"kubepods-besteffort-pod{HASH}.slice", HASH, id="static"),
        pytest.param(f"pod{UUID}", UUID, id="cgroupfs"),
        pytest.param(f"pod{HASH}", HASH, id="cgroupfs-static"),
        pytest.param(f"kubepods-pod{SLICED}.slice\n", None, id="newline"),
        pytest.param(f"pod{UUID}\n", None, id="cgroupfs-newline"),
        pytest.param(f"pod{UUID} ", None, id="space"),
        pytest.param(f"pod{UUID}\udcff", None, id="not-utf8"),
        pytest.param(f"pod{UUID.upper()}", None, id="upper-case"),
        pytest.param(f"pod{UUID[:-1]}", None, id="one-digit-short"),
        pytest.param(f"pod{HASH}0", None, id="one-digit-more"),
        pytest.param(f"kubepods-pod{SLICED}.scope", None, id="scope"),
        pytest.param(f"pod{UUID}.slice", None, id="slice-without-its-parents"),
        pytest.param("podinfo", None, id="word"),
        pytest.param("", None, id="empty"),
    ],
)
def test_pod_uid_is_spelled_as_in_the_api(name: str, uid: str | None) -> None:
    assert pod_uid(name) == uid


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param(f"cri-containerd-{ID}.scope", True, id="containerd"),
        pytest.param(f"crio-{ID}.scope", True, id="cri-o"),
        pytest.param(ID, True, id="cgroupfs"),
        # cri-o internal/config/cgmgr: containerCgroupPath() is "crio-" + id, and only systemd adds ".scope".
        pytest.param(f"crio-{ID}", True, id="cri-o-cgroupfs"),
        pytest.param(f"crio-conmon-{ID}.scope", False, id="cri-o-monitor"),
        pytest.param(f"crio-conmon-{ID}", False, id="cri-o-monitor-cgroupfs"),
        pytest.param(f"cri-containerd-{ID}.scope\n", False, id="newline"),
        pytest.param(f"{ID}\n", False, id="cgroupfs-newline"),
        pytest.param(f"cri-containerd-{ID[1:]}.scope", False, id="one-digit-short"),
        pytest.param(f"{ID}0", False, id="one-digit-more"),
        pytest.param(f"x-{ID}.scope", False, id="unknown-runtime"),
        pytest.param("container", False, id="crun-subgroup"),
        pytest.param("", False, id="empty"),
    ],
)
def test_container_id_is_told_by_its_name(name: str, known: bool) -> None:
    assert container_id(name) == (ID if known else None)
