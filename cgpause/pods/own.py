"""Which pod cgpause itself runs in, where it runs in one: paused, it could never resume anybody.

Asked for by process id. In a container `/proc/self/cgroup` says `0::/`, for it has a cgroup namespace and so a root of
its own; `cgroup.procs` of the host's tree names the processes of the reader's PID namespace, with their ids there, and
all others as 0. So whoever reads it finds its own id in its own cgroup and nowhere else, whatever namespaces it is in.
`CGPAUSE_POD_UID`, which a manifest sets by the downward API, says the same without the kernel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from cgpause.core.errors import CgroupGoneError, KernelReadError
from cgpause.kernel.cgroupfs import Cgroup
from cgpause.pods.containers import descendants

POD_UID = "CGPAUSE_POD_UID"
_NO_PROCESSES = (errno.ENOENT, errno.EOPNOTSUPP)
"""ENOENT: a tree of our own. EOPNOTSUPP: a threaded cgroup, whose processes its domain lists; a container may make one,
and is not to protect itself by it."""


def holds_us(cgroup: Cgroup, uid: str, own_uid: str | None) -> bool:
    """Whether this process runs in a pod.

    Raises:
        KernelReadError: it cannot be told, because the pod's processes cannot be listed.
    """
    if uid == own_uid:
        return True
    try:
        below = descendants(cgroup)
    except CgroupGoneError:
        return False
    for name in ("", *below):
        try:
            if os.getpid() in cgroup.pids(name):
                return True
        except CgroupGoneError:
            continue  # we are not in what is gone
        except KernelReadError as e:
            if e.errno not in _NO_PROCESSES:
                raise
    return False


def own_pod_uid(env: Mapping[str, str] = os.environ) -> str | None:
    """UID of the own pod as the manifest says it; None where it says nothing."""
    return env.get(POD_UID, "").strip().lower() or None
