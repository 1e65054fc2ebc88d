"""Finds the pod that cgpause itself runs in, if any: if that pod were paused, cgpause could not resume any pod.

The search uses the process id. `/proc/self/cgroup` does not help: a container has its own cgroup namespace, and reads
`0::/`. `cgroup.procs` of the host's tree shows the processes of the reader's PID namespace with their ids there, and
all others as 0. So in any namespaces a process finds its own id in its own cgroup and nowhere else.
`CGPAUSE_POD_UID`, which a manifest sets by the downward API, gives the pod's UID without the kernel.
"""

from __future__ import annotations

import errno
import os

from cgpause.core.errors import CgroupGoneError, KernelReadError
from cgpause.kernel.cgroupfs import Cgroup

POD_UID = "CGPAUSE_POD_UID"
_NO_PROCESSES = (errno.ENOENT, errno.EOPNOTSUPP)
"""Errors that mean no processes. ENOENT: the cgroup was removed, or this is an ordinary directory tree. EOPNOTSUPP: a
threaded cgroup; its domain cgroup lists its processes. A container may make one, and must not protect itself from a
pause with it."""
_NO_PROCESSES_BELOW = (*_NO_PROCESSES, errno.EACCES)
"""Errors that mean no processes, for a cgroup below the pod's. EACCES too: a container can remove the right to read its
cgroup, and must not protect itself so. cgpause's own container does not do that."""


def holds_us(cgroup: Cgroup, uid: str, own_uid: str | None) -> bool:
    """Return True if this process runs in the pod with this cgroup and UID; `own_uid` is from `own_pod_uid`.

    Raises:
        KernelReadError: the pod's processes cannot be listed, so the answer is unknown.
    """
    if uid == own_uid:
        return True
    try:
        below = tuple(cgroup.descendants())
    except CgroupGoneError:
        return False
    for name in ("", *below):
        try:
            if os.getpid() in cgroup.pids(name):
                return True
        except CgroupGoneError:
            continue  # a removed cgroup holds no process
        except KernelReadError as e:
            if e.errno not in (_NO_PROCESSES_BELOW if name else _NO_PROCESSES):
                raise
    return False


def own_pod_uid() -> str | None:
    """Return the UID of cgpause's own pod from CGPAUSE_POD_UID; None if the variable is empty or not set."""
    return os.environ.get(POD_UID, "").strip().lower() or None
