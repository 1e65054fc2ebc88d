"""Pod arguments of the commands, and their shell completion; on an error it offers no pod and prints no message.

Completion reads only names and pause records, not memory, processes or configuration, to answer the Tab key quickly.
The shell scripts that call it are in scripts/completions/.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Annotated

import typer

from cgpause.core.errors import CgpauseError
from cgpause.core.kubepods import pod_uid
from cgpause.core.model import Owner
from cgpause.core.names import read_names
from cgpause.kernel.cgroupfs import Cgroup, find_cgroup_root
from cgpause.ledger.ledger import read_record
from cgpause.pods.discover import find_kubepods, list_pods
from cgpause.restore import paused_cgroups


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
    """Return references of pods, filtered by the owner of their pause, without pods that the line already names."""
    given = context.find_root().params
    try:
        root = given["cgroup_root"] or find_cgroup_root()
        found = find_kubepods(root)
        if found is None:
            return []
        with closing(found[0]) as kubepods:
            uids = [pod.uid for pod in list_pods(kubepods, lambda *_: None)[0]]
        paused = {
            pod_uid(os.path.basename(cgroup.id.path)): _owner(cgroup)
            for cgroup in paused_cgroups(root, lambda *_: None)
        }
        names = read_names(given["log_dir"]).pods
    except (CgpauseError, OSError):
        return []
    offered = {"/".join(names.get(uid, (uid,))) for uid in uids if wanted(paused.get(uid))}
    return sorted(offered - set(context.params.get("refs") or ()))


def _owner(cgroup: Cgroup) -> Owner:
    try:
        record = read_record(cgroup)
    except CgpauseError:
        record = None
    # A pod with an unreadable record may be resumable, but a manual pause cannot take it over.
    return Owner.MANUAL if record is None else record.owner


_WAYS = "namespace/name, name, UID, UID prefix or cgroup path"
AnyPod = Annotated[
    str | None,
    typer.Option(
        metavar="REF", help="Only this pod: namespace/name, name, UID or its begin.", autocompletion=_offer_all
    ),
]
OnePod = Annotated[
    str | None,
    typer.Argument(
        metavar="[REF]", help=f"Tell the story of this pod alone: {_WAYS}.", autocompletion=_offer_when_none
    ),
]
PausablePods = Annotated[
    list[str],
    typer.Argument(metavar="REF...", help=f"Pods: {_WAYS}.", autocompletion=_offer_pausable),
]
PausedPods = Annotated[
    list[str] | None, typer.Argument(metavar="[REF...]", help=f"Pods: {_WAYS}.", autocompletion=_offer_paused)
]
