"""Conversion of pod references, as operators write them, to pods of the tree or of the history; pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from cgpause.core.errors import PodLookupError, printable
from cgpause.core.model import Pod

_SHORTEST_PREFIX = 4
"""Shortest prefix of a UID: a shorter one would match by accident."""
_MOST_NAMED = 3
_LONGEST_COMPARED = 300
"""Longest namespace and name; difflib takes quadratic time."""


class Known(NamedTuple):
    """The names by which an operator can refer to a pod."""

    uid: str
    label: str
    """`namespace/name`, or the UID while the name is unknown."""
    path: str | None = None
    """Path of its cgroup, relative to the cgroup root; None for a pod that may be gone."""

    @property
    def name(self) -> str:
        """Name without the namespace; empty while it is unknown."""
        return self.label.partition("/")[2]


def find_pods(ref: str, pods: Sequence[Pod], root: str, namespace: str | None = None) -> list[Pod]:
    """Return all pods that match a glob (`*`, `?`, `[`), or the one of any other reference.

    Raises:
        PodLookupError: no pod matches, or several match a reference that is no glob; the message lists them.
    """
    if not is_glob(ref):
        return [find_pod(ref, pods, root, namespace)]
    among = _among(pods, namespace)
    found = [among[place] for place in matching(ref, [Known(pod.uid, pod.label) for pod in among])]
    if not found:
        raise PodLookupError(f"no pod matches {ref!r} among the {len(among)} {_where(namespace)} (see: cgpause status)")
    return found


def find_pod(ref: str, pods: Sequence[Pod], root: str, namespace: str | None = None) -> Pod:
    """Return the pod for a reference: namespace/name, name, UID, a unique prefix of the UID, or a cgroup path.

    With a `namespace`, only its pods are looked at.

    Raises:
        PodLookupError: no pod matches, or several do; the message lists them.
    """
    among = _among(pods, namespace)
    known = [Known(pod.uid, pod.label, pod.cgroup.path) for pod in among]
    path = ref.rstrip("/").removeprefix(root.rstrip("/") + "/").removeprefix("/")
    places = matching(ref, known, path)
    if len(places) == 1:
        return among[places[0]]
    if places:
        raise PodLookupError(
            f"{ref!r} matches {len(places)} pods; name one of them:\n"
            + "\n".join(f"  {printable(known[place].label)}  (uid {known[place].uid})" for place in places)
        )
    near = nearest(ref, known)
    if near:
        raise PodLookupError(f"no pod {ref!r}; {near} (all {len(among)}: cgpause status)")
    raise PodLookupError(
        f"no pod {ref!r} among the {len(among)} {_where(namespace)}; give namespace/name, name, UID, "
        f"a UID prefix of at least {_SHORTEST_PREFIX} characters, or a cgroup path (see: cgpause status)"
    )


def _among(pods: Sequence[Pod], namespace: str | None) -> list[Pod]:
    return [pod for pod in pods if namespace in (None, pod.namespace)]


def _where(namespace: str | None) -> str:
    return "on this node" if namespace is None else f"of namespace {namespace!r} on this node"


def is_glob(ref: str) -> bool:
    """Return True if a reference is a pattern: no name in Kubernetes has one of these characters."""
    return any(char in ref for char in "*?[")


def matching(ref: str, known: Sequence[Known], path: str | None = None) -> list[int]:
    """Return the indexes in `known` of the pods that match `ref`; `path` is `ref` as a cgroup path."""
    uid = ref.lower().replace("_", "-")
    if is_glob(ref):
        return [place for place, pod in enumerate(known) if _fits(ref, pod)]
    meanings: tuple[Callable[[Known], bool], ...] = (
        lambda pod: "/" in pod.label and ref == pod.label,
        # A UID comes before a bare name: a pod with another pod's UID as its name must not pass for that pod.
        lambda pod: uid == pod.uid,
        lambda pod: path is not None and path == pod.path,
        lambda pod: ref != "" and ref == pod.name,
        lambda pod: len(uid) >= _SHORTEST_PREFIX and pod.uid.startswith(uid),
    )
    for means in meanings:
        places = [place for place, pod in enumerate(known) if means(pod)]
        if places:
            return places
    return []


def _fits(glob: str, pod: Known) -> bool:
    """Return True if a glob matches namespace/name, or without a slash the name (the UID if it is unknown)."""
    return fnmatchcase(pod.label if "/" in glob else pod.name or pod.label, glob)


def nearest(ref: str, known: Iterable[Known]) -> str:
    """Return a phrase with the names that begin with `ref`, or else the most similar ones; empty if there are none."""
    words: dict[str, list[str]] = {}
    for label, name in sorted({(pod.label, pod.name) for pod in known if pod.name}):
        words.setdefault(label, []).append(label)
        words.setdefault(name, []).append(label)
    # Operators remember the first part of the name of a Deployment's pod.
    close = [word for word in words if ref and word.startswith(ref)]
    if not close:
        compared = ref[:_LONGEST_COMPARED]
        close = difflib.get_close_matches(compared, words, n=_MOST_NAMED, cutoff=0.7)
        close = [word for word in close if _likeness(word, compared) == _likeness(close[0], compared)]
    near = list(dict.fromkeys(printable(label) for word in close for label in words[word]))
    if not near:
        return ""
    more = f" and {len(near) - _MOST_NAMED} more" if len(near) > _MOST_NAMED else ""
    return f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near[:_MOST_NAMED])}{more}"


def _likeness(word: str, ref: str) -> float:
    return difflib.SequenceMatcher(None, word, ref).ratio()
