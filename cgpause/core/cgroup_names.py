"""Conversion of cgroup names to QoS class, pod UID and container id, for both cgroup drivers; strings only.

The names are those of kubelet 1.20 to 1.36 (pkg/kubelet/cm/cgroup_manager_linux.go), captured in tests/fixtures. With
the systemd driver a slice's name repeats its parents' (`kubepods-burstable-pod<U>.slice`, dashes of U turned into
underscores), and a distribution may nest the tree one level deeper (`kubelet.slice/kubelet-kubepods.slice`).
"""

from __future__ import annotations

import re
from enum import StrEnum

from cgpause.core.model import QosClass


class CgroupDriver(StrEnum):
    """The kubelet's cgroup driver, which decides how cgroups are named."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


# A UUID, or for a static pod the md5 of its manifest: 32 hex digits without dashes.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_ROOT = re.compile(r"(?:[A-Za-z0-9_]+-)*kubepods\.slice|kubepods")
_TIER = re.compile(r"(?:[A-Za-z0-9_]+-)*kubepods-(?P<slice>burstable|besteffort)\.slice|(?P<dir>burstable|besteffort)")
_POD = re.compile(
    rf"(?:[A-Za-z0-9_]+-)*kubepods(?:-(?:burstable|besteffort))?-pod(?P<slice>{_UID})\.slice|pod(?P<dir>{_UID})"
)
_MONITOR = "crio-conmon-"
_CONTAINER = re.compile(
    r"(?:cri-containerd|crio|docker|libpod)-(?P<scope>[0-9a-f]{64})\.scope|(?:crio-)?(?P<dir>[0-9a-f]{64})"
)
_TIERS = {"burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT}


def root_driver(name: str) -> CgroupDriver | None:
    """Return the driver if a cgroup is named like a kubepods root, else None."""
    if not _ROOT.fullmatch(name):
        return None
    return CgroupDriver.SYSTEMD if name.endswith(".slice") else CgroupDriver.CGROUPFS


def tier_class(name: str) -> QosClass | None:
    """Return the QoS class of a tier directly below the kubepods root; Guaranteed pods have no tier."""
    match = _TIER.fullmatch(name)
    return _TIERS[match["slice"] or match["dir"]] if match else None


def pod_uid(name: str) -> str | None:
    """Return the UID of a pod's cgroup, in the API's spelling (dashes), else None."""
    match = _POD.fullmatch(name)
    return (match["slice"] or match["dir"]).replace("_", "-") if match else None


def container_id(name: str) -> str | None:
    """Return the id if the cgroup is that of a container or sandbox (the name is the same for both), else None."""
    match = _CONTAINER.fullmatch(name)
    return match["scope"] or match["dir"] if match else None


def is_monitor(name: str) -> bool:
    """Return True if the cgroup is that of CRI-O's monitor of a container.

    CRI-O with `conmon_cgroup = "pod"` puts it into the pod. Its process belongs to the host, and so does its network.
    """
    return name.startswith(_MONITOR)


def monitored_name(monitor: str) -> str:
    """Return the name of the cgroup of the container that a monitor watches."""
    return "crio-" + monitor.removeprefix(_MONITOR)


def is_static_uid(uid: str) -> bool:
    """Return True if a UID is that of a static pod: a hash of its manifest, without dashes."""
    return "-" not in uid
