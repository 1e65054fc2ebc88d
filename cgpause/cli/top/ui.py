"""Effects of keys on the dashboard; pure: `update(ui, key, snapshot)` returns the new state and the action to take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from itertools import groupby

from cgpause.cli.byhand import protected_text
from cgpause.cli.top import keys
from cgpause.cli.top.values import NodeView, PodState, SeenPod
from cgpause.core.model import CgroupId, Mechanism, Owner


class Sort(StrEnum):
    """Orders of the pods, as the key `s` cycles through them."""

    DEMAND = "demand"
    MEMORY = "memory"
    CPU = "cpu"
    PAUSED = "paused longest"
    NAME = "name"


class Mode(Enum):
    """Mode of the dashboard, which decides the meaning of keys."""

    BROWSE = "browse"
    FILTER = "filter"
    HELP = "help"
    QUIT = "quit"


class Deed(StrEnum):
    """Action of the operator on pods."""

    PAUSE = "pause"
    RESUME = "resume"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True)
class Act:
    """An action on one or more pods, to be carried out."""

    deed: Deed
    pods: tuple[SeenPod, ...]
    skipped: int = 0
    """Number of marked pods on which the action is not possible."""


@dataclass(frozen=True, slots=True)
class Group:
    """The heading of a namespace's pods, with their totals."""

    namespace: str
    pods: int
    paused: int
    current_bytes: int
    demand: float


Row = SeenPod | Group


@dataclass(frozen=True, slots=True)
class Ui:
    """The operator's choices: mode, order, filter, selected and marked pods; and the message to show."""

    mode: Mode = Mode.BROWSE
    sort: Sort = Sort.DEMAND
    reverse: bool = False
    grouped: bool = False
    """Whether the pods are listed by namespace."""
    filter: str = ""
    selected: CgroupId | None = None
    """The pod that the cursor follows; None: it rests on the first pod."""
    marked: frozenset[CgroupId] = field(default_factory=frozenset)
    """Pods on which the next action acts, instead of the selected one."""
    top: int = 0
    """Index of the first visible row."""
    describing: bool = False
    scroll: int = 0
    """Index of the first visible line of the description."""
    asked: Act | None = None
    """Action that waits for the operator's yes: the next key is the answer."""
    message: str = ""
    failed: bool = False
    """Whether the message reports a failure."""


def state_words(seen: SeenPod) -> str:
    """Return a pod's state in a few words, without times."""
    record = seen.pod.paused
    if record is None or seen.state is PodState.ERROR:
        return seen.state.value
    return "frozen" if record.mechanism is Mechanism.FREEZE else "paused"


def shown_pods(snapshot: NodeView, ui: Ui) -> list[SeenPod]:
    """Return the pods that pass the filter, in the chosen order."""
    wanted = ui.filter.lower()
    pods = [seen for seen in snapshot.pods if wanted in _searched(seen) or seen.pod.uid.startswith(wanted)]
    pods.sort(key=lambda seen: seen.label)
    if ui.sort is not Sort.NAME:
        pods.sort(key=lambda seen: -(seen.current_bytes or 0))
        pods.sort(key=_ORDERS[ui.sort])
    if ui.reverse:
        pods.reverse()
    if ui.grouped:
        pods.sort(key=lambda seen: seen.pod.namespace or "")
    return pods


def _by_demand(seen: SeenPod) -> tuple[float, float]:
    if seen.verdict.place is None:
        # A pod paused by hand has no known demand; it comes first, where its operator looks for it. Under watermark no
        # pod has a demand: the others follow by rank.
        rank = seen.verdict.rank
        return (-math.inf, 0) if seen.pod.paused is not None else (0.0, math.inf if rank is None else rank)
    return -seen.demand, 0


_ORDERS: dict[Sort, Callable[[SeenPod], tuple[float, float]]] = {
    Sort.DEMAND: _by_demand,
    Sort.MEMORY: lambda seen: (-(seen.current_bytes or 0), 0),
    Sort.CPU: lambda seen: (-(seen.cpu_millicores or 0), 0),
    Sort.PAUSED: lambda seen: (math.inf if seen.pod.paused is None else seen.pod.paused.since_ns, 0),
}


def _searched(seen: SeenPod) -> str:
    pod = seen.pod
    owner = "" if pod.paused is None else pod.paused.owner.by
    return f"{seen.label} {pod.qos} {pod.kind} {seen.state.value} {state_words(seen)} {owner}".lower()


def shown_rows(snapshot: NodeView, ui: Ui) -> list[Row]:
    """Return the rows of the table: the shown pods, with a heading before each namespace if they are grouped."""
    pods = shown_pods(snapshot, ui)
    if not ui.grouped:
        return [*pods]
    rows: list[Row] = []
    for namespace, members in groupby(pods, key=lambda seen: seen.pod.namespace or ""):
        of = list(members)
        paused = sum(seen.pod.paused is not None for seen in of)
        used = sum(seen.current_bytes or 0 for seen in of)
        rows += [Group(namespace, len(of), paused, used, sum(seen.demand for seen in of)), *of]
    return rows


def cursor(snapshot: NodeView, ui: Ui) -> SeenPod | None:
    """Return the pod at the cursor: the selected one, else the first; None without pods."""
    # A pod stays described although a filter by state hides it from now on.
    pods = snapshot.pods if ui.describing else shown_pods(snapshot, ui)
    return next((pod for pod in pods if pod.key == ui.selected), pods[0] if pods else None)


def settle(ui: Ui, snapshot: NodeView, rows: int) -> Ui:
    """Return `ui` scrolled to its cursor in `rows` rows, without marks of pods that are gone."""
    there = {pod.key for pod in snapshot.pods}
    if ui.asked is not None and there.isdisjoint(pod.key for pod in ui.asked.pods):
        gone = f"{ui.asked.pods[0].label} is gone: nothing was done"
        ui = replace(ui, asked=None, message=gone, failed=True)
    if not ui.marked <= there:
        ui = replace(ui, marked=ui.marked & there)
    listed = shown_rows(snapshot, ui)
    index = next((place for place, row in enumerate(listed) if isinstance(row, SeenPod) and row.key == ui.selected), -1)
    if index < 0:
        # The cursor goes back to the first pod, and a description never changes to another pod.
        return ui if ui.describing and ui.selected in there else replace(ui, selected=None, top=0, describing=False)
    first = index - isinstance(listed[index - 1], Group) if index else 0  # with its heading
    top = min(ui.top, max(len(listed) - rows, 0))
    return replace(ui, top=min(max(top, index - max(rows, 1) + 1), first if rows > 1 else index))


def update(ui: Ui, key: str, snapshot: NodeView, rows: int = 10) -> tuple[Ui, Act | None]:
    """Return the state after a key, and the action to take or None; `rows` is the number of visible rows."""
    if ui.asked is not None:
        answered = replace(ui, asked=None, message="", failed=False)
        if key in ("y", "Y"):
            return (answered if ui.describing else replace(answered, marked=frozenset())), ui.asked
        return replace(answered, message="nothing was done"), None
    if ui.mode is Mode.FILTER:
        return _update_filter(ui, key, snapshot, rows), None
    ui = replace(ui, message="", failed=False)
    if key == "q":
        return replace(ui, mode=Mode.QUIT), None
    if ui.mode is Mode.HELP:
        return replace(ui, mode=Mode.BROWSE), None
    return settle(_browse(ui, _VI.get(key, key), snapshot, rows), snapshot, rows), None


def _update_filter(ui: Ui, key: str, snapshot: NodeView, rows: int) -> Ui:
    if key == keys.ENTER:
        ui = replace(ui, mode=Mode.BROWSE)
    elif key == keys.ESC:
        ui = replace(ui, mode=Mode.BROWSE, filter="")
    elif key == keys.BACKSPACE:
        ui = replace(ui, filter=ui.filter[:-1])
    elif key in _MOVES:
        ui = _move(ui, key, snapshot, rows)
    elif len(key) == 1:
        ui = replace(ui, filter=ui.filter + key)
    return settle(ui, snapshot, rows)


_DEEDS = {"p": Deed.PAUSE, "r": Deed.RESUME, "f": Deed.FREEZE}
_VI = {"k": keys.UP, "j": keys.DOWN, "g": keys.HOME, "G": keys.END, "e": keys.ENTER, "d": keys.ENTER, "h": "?"}
_MOVES = (keys.UP, keys.DOWN, keys.HOME, keys.END, keys.PAGE_UP, keys.PAGE_DOWN)


def _browse(ui: Ui, key: str, snapshot: NodeView, rows: int) -> Ui:
    if key in _MOVES:
        return _move(ui, key, snapshot, rows)
    match key:
        case "s":
            order = list(Sort)
            sort = order[(order.index(ui.sort) + 1) % len(order)]
            return replace(ui, sort=sort, message=f"sorted by {sort}")
        case "S":
            return replace(ui, reverse=not ui.reverse, message="usual order" if ui.reverse else "reverse order")
        case "n":
            return replace(ui, grouped=not ui.grouped)
        case "/":
            return replace(ui, mode=Mode.FILTER, describing=False)
        case "?":
            return replace(ui, mode=Mode.HELP)
        case " ":
            return _mark(ui, snapshot, rows)
        case keys.ENTER:
            here = cursor(snapshot, ui)
            return ui if here is None else replace(ui, describing=not ui.describing, scroll=0, selected=here.key)
        case keys.ESC:
            return _step_back(ui)
        case "p" | "r" | "f":
            return _ask(ui, _DEEDS[key], snapshot)
    return ui


def _step_back(ui: Ui) -> Ui:
    """Undo one choice: the description, the marks, the filter, the selection."""
    if ui.describing:
        return replace(ui, describing=False)
    if ui.marked:
        return replace(ui, marked=frozenset())
    return replace(ui, filter="") if ui.filter else replace(ui, selected=None)


def _move(ui: Ui, key: str, snapshot: NodeView, rows: int) -> Ui:
    """Move the cursor, or scroll the description; `screen.settled` limits the latter to its lines."""
    page = max(rows, 1)
    steps = {keys.UP: -1, keys.DOWN: 1, keys.PAGE_UP: -page, keys.PAGE_DOWN: page}
    steps |= {keys.HOME: -(1 << 30), keys.END: 1 << 30}
    if ui.describing:
        return replace(ui, scroll=max(ui.scroll + steps[key], 0))
    pods = shown_pods(snapshot, ui)
    if not pods:
        return ui
    now = next((place for place, pod in enumerate(pods) if pod.key == ui.selected), 0)
    return replace(ui, selected=pods[min(max(now + steps[key], 0), len(pods) - 1)].key)


def _mark(ui: Ui, snapshot: NodeView, rows: int) -> Ui:
    """Mark the pod at the cursor, or take its mark away, and go to the next pod."""
    here = cursor(snapshot, ui)
    if here is None or ui.describing:
        return ui
    return _move(replace(ui, marked=ui.marked ^ {here.key}, selected=here.key), keys.DOWN, snapshot, rows)


def _ask(ui: Ui, deed: Deed, snapshot: NodeView) -> Ui:
    """Return `ui` with the question about the marked pods, or the one at the cursor; or why the action is refused."""
    here = cursor(snapshot, ui)
    pods = [pod for pod in snapshot.pods if pod.key in ui.marked]
    if ui.describing or not pods:
        pods = [] if here is None else [here]
    refusals = [_refusal(pod, deed) for pod in pods]
    targets = tuple(seen for seen, no in zip(pods, refusals, strict=True) if no is None)
    if targets:
        return replace(ui, asked=Act(deed, targets, len(pods) - len(targets)))
    if not pods:
        return replace(ui, message="no pod is shown", failed=True)
    more = f"; and {len(pods) - 1} more cannot be {PAST[deed]}" if len(pods) > 1 else ""
    return replace(ui, message=f"{refusals[0]}{more}", failed=True)


PAST = {Deed.PAUSE: "paused", Deed.RESUME: "resumed", Deed.FREEZE: "frozen"}


def _refusal(seen: SeenPod, deed: Deed) -> str | None:
    """Return why an action on a pod is not possible, or None if it is."""
    record, protected = seen.pod.paused, seen.pod.protected
    if deed is Deed.RESUME:
        # A pod with an unreadable record may still be paused.
        if record is None and seen.state not in (PodState.ERROR, PodState.PROTECTED):
            return f"{seen.label} is not paused"
    elif record is not None and record.owner is Owner.MANUAL:  # a pause by the daemon can be taken over
        return f"{seen.label} is already {state_words(seen)} {record.owner.by}"
    elif protected is not None:
        return protected_text(seen.label, protected)
    return None
