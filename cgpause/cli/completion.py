"""Pod arguments of the commands, and their shell completion; on an error it offers no pod and prints no message.

Completion reads only names and pause records, not memory, processes or configuration, to answer the Tab key quickly.
The shell scripts that call it are in scripts/completions/.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from cgpause.core.errors import CgpauseError
from cgpause.core.model import Owner

if TYPE_CHECKING:
    from cgpause.core.pod_names import PodName
    from cgpause.kernel.cgroupfs import Cgroup


def _offer_all(context: typer.Context) -> list[str]:
    return _offer(context, lambda _: True)


def _offer_pausable(context: typer.Context) -> list[str]:
    return _offer(context, lambda owner: owner is not Owner.MANUAL)


def _offer_paused(context: typer.Context) -> list[str]:
    return _offer(context, lambda owner: owner is not None)


def _offer_when_none(context: typer.Context) -> list[str]:
    """Offer all pods to a command that takes one pod, or none if the line already names one."""
    return [] if context.params.get("ref") else _offer_all(context)


def _offer(context: typer.Context, wanted: Callable[[Owner | None], bool]) -> list[str]:
    """Return references of pods, filtered by the owner of their pause, without pods that the line already names.

    With --namespace, only its pods, by their names alone.
    """
    namespace = context.find_root().params.get("namespace")
    offered: set[str] = set()
    for uid, name, owner in _pods(context):
        if wanted(owner) and namespace in (None, name and name.namespace):
            offered.add(uid if name is None else name.name if namespace else "/".join(name))
    return sorted(offered - set(context.params.get("refs") or ()))


def offer_namespaces(context: typer.Context) -> list[str]:
    """Return the namespaces of the node's pods."""
    return sorted({name.namespace for _, name, _ in _pods(context) if name is not None})


def _pods(context: typer.Context) -> list[tuple[str, PodName | None, Owner | None]]:
    """Return UID, name, and the owner of its pause for each pod; none if they cannot be read."""
    # Here, as every other command starts without them.
    from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
    from cgpause.pods.discover import find_kubepods, list_pods
    from cgpause.pods.names import read_names

    given = context.find_root().params
    try:
        root = given["cgroup_root"] or find_cgroup_root()
        found = find_kubepods(root)
        if found is None:
            return []
        names = read_names(given["log_dir"]).pods
        pods: list[tuple[str, PodName | None, Owner | None]] = []
        with closing(found[0]) as kubepods:
            for pod in list_pods(kubepods, lambda *_: None)[0]:
                with suppress(CgpauseError), Cgroup(root, pod.cgroup.path) as cgroup:
                    pods.append((pod.uid, names.get(pod.uid), _owner(cgroup)))
        return pods
    except (CgpauseError, OSError):
        return []


def _owner(cgroup: Cgroup) -> Owner | None:
    from cgpause.ledger.ledger import read_record

    try:
        record = read_record(cgroup)
    except CgpauseError:
        return Owner.MANUAL  # it may be resumable, but a manual pause cannot take it over
    return None if record is None else record.owner


_WAYS = "namespace/name, name, UID, UID prefix or cgroup path"
_GLOBS = f"{_WAYS}, or a glob such as 'batch/*'"
AnyPod = Annotated[
    str | None,
    typer.Option(
        metavar="REF", help="Only this pod: namespace/name, name, a glob, UID or its prefix.", autocompletion=_offer_all
    ),
]
OnePod = Annotated[
    str | None,
    typer.Argument(
        metavar="[REF]", help=f"Tell the story of this pod alone: {_WAYS}.", autocompletion=_offer_when_none
    ),
]
PausablePods = Annotated[
    list[str], typer.Argument(metavar="REF...", help=f"Pods: {_GLOBS}.", autocompletion=_offer_pausable)
]
PausedPods = Annotated[
    list[str] | None, typer.Argument(metavar="[REF...]", help=f"Pods: {_GLOBS}.", autocompletion=_offer_paused)
]
Pods = Annotated[
    list[str] | None, typer.Argument(metavar="[REF...]", help=f"Only these pods: {_GLOBS}.", autocompletion=_offer_all)
]
