"""Pod references as operators write them → pods; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cgpause.errors import PodLookupError
from cgpause.model import Pod

_SHORTEST_PREFIX = 4
"""Shorter UID prefixes would match by accident."""


def find_pod(ref: str, pods: Sequence[Pod], root: str) -> Pod:
    """The one pod that `ref` means: namespace/name, name, UID, a unique prefix of the UID, or a cgroup path.

    Raises:
        PodLookupError: no pod matches, or several do; the message lists them.
    """
    uid = ref.lower().replace("_", "-")
    path = ref.rstrip("/").removeprefix(root.rstrip("/") + "/").removeprefix("/")
    meanings: tuple[Callable[[Pod], bool], ...] = (
        lambda pod: pod.name is not None and ref == f"{pod.namespace}/{pod.name}",
        # A UID before a bare name: whoever names a pod like another's UID shall not be taken for that one.
        lambda pod: uid == pod.uid,
        lambda pod: path == pod.cgroup.path,
        lambda pod: ref == pod.name,
        lambda pod: len(uid) >= _SHORTEST_PREFIX and pod.uid.startswith(uid),
    )
    for means in meanings:
        matches = [pod for pod in pods if means(pod)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise PodLookupError(
                f"{ref!r} matches {len(matches)} pods; name one of them:\n"
                + "\n".join(f"  {pod.label}  (uid {pod.uid})" for pod in matches)
            )
    raise PodLookupError(
        f"no pod matches {ref!r} among the {len(pods)} on this node; give namespace/name, name, UID, "
        f"a UID prefix of at least {_SHORTEST_PREFIX} characters, or a cgroup path (see: cgpause status)"
    )
