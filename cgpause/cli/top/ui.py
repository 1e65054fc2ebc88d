"""Effects of keys on the dashboard; pure: `update(ui, key, snapshot)` returns the new state and the action to take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from cgpause.cli.top import keys
from cgpause.cli.top.values import NodeView, PodState, SeenPod
from cgpause.core.model import CgroupId, Mechanism, Owner


class Sort(StrEnum):
    """Orders of the pods, as the key `s` cycles through them."""

    NEED = "need"
    MEMORY = "memory"
    CPU = "cpu"
    NAME = "name"


class Mode(Enum):
    """Mode of the dashboard, which decides the meaning of keys."""

    BROWSE = "browse"
    FILTER = "filter"
    CONFIRM = "confirm"
    HELP = "help"
    STILL = "still"
    """A single printed frame, without keys."""


class Deed(StrEnum):
    """Action of the operator on a pod."""

    PAUSE = "pause"
    RESUME = "resume"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True)
class Act:
    """An action on a pod, to be carried out."""

    deed: Deed
    key: CgroupId
    label: str


@dataclass(frozen=True, slots=True)
class Quit:
    """The end of the dashboard."""


Intent = Act | Quit | None


@dataclass(frozen=True, slots=True)
class Ui:
    """The operator's choices: mode, order, filter, selected pod; and the message to show."""

    mode: Mode = Mode.BROWSE
    sort: Sort = Sort.NEED
    filter: str = ""
    selected: CgroupId | None = None
    """None without a selection: the list stays at its top, which has the pods with the largest demands."""
    top: int = 0
    """Index of the first visible row."""
    explaining: bool = False
    asked: Act | None = None
    """Action that waits for the operator's yes."""
    message: str = ""
    failed: bool = False
    """Whether the message reports a failure."""


def shown_pods(snapshot: NodeView, ui: Ui) -> list[SeenPod]:
    """Return the pods that pass the filter, in the chosen order."""
    pods = list(snapshot.pods)
    if ui.filter:
        wanted = ui.filter.lower()
        pods = [pod for pod in pods if wanted in _searched(pod) or pod.uid.startswith(wanted)]
    pods.sort(key=lambda pod: pod.label)
    if ui.sort is Sort.CPU:
        pods.sort(key=lambda pod: -(pod.cpu_millicores or 0))
    elif ui.sort is not Sort.NAME:
        pods.sort(key=lambda pod: -(pod.current_bytes or 0))
        if ui.sort is Sort.NEED:
            pods.sort(key=_by_need)
    return pods


def _by_need(pod: SeenPod) -> tuple[float, int]:
    if pod.place is None:
        # A pod paused by hand has no known demand; it comes first, where its operator looks for it. Under watermark no
        # pod has a demand: the others follow by rank.
        return (-math.inf, 0) if pod.paused is not None else (0.0, 0 if pod.rank is None else pod.rank)
    return -pod.need, 0


def _searched(pod: SeenPod) -> str:
    return f"{pod.label} {pod.qos} {pod.workload} {pod.state.value}".lower()


def settle(ui: Ui, snapshot: NodeView, rows: int) -> Ui:
    """Return `ui` scrolled to its selected pod in `rows` rows, without selection or question of a pod that is gone."""
    asked = ui.asked
    if ui.mode is Mode.CONFIRM and asked is not None and all(pod.key != asked.key for pod in snapshot.pods):
        gone = f"{asked.label} is gone: nothing was done"
        ui = replace(ui, mode=Mode.BROWSE, asked=None, message=gone, failed=True)
    pods = shown_pods(snapshot, ui)
    rows = max(rows, 1)
    index = next((place for place, pod in enumerate(pods) if pod.key == ui.selected), None)
    if index is None:  # no neighbour is selected instead: the operator's next key would act on the wrong pod
        return replace(ui, selected=None, top=0)
    top = min(ui.top, max(len(pods) - rows, 0))
    top = min(max(top, index - rows + 1), index)
    return replace(ui, top=top)


def update(ui: Ui, key: str, snapshot: NodeView, rows: int = 10) -> tuple[Ui, Intent]:
    """Return the state after a key, and the action to take or None; `rows` is the number of visible pods."""
    if ui.mode is Mode.CONFIRM:
        answered = replace(ui, mode=Mode.BROWSE, asked=None, message="", failed=False)
        if key in ("y", "Y"):
            return answered, ui.asked
        return replace(answered, message="nothing was done"), None
    if ui.mode is Mode.FILTER:
        return _update_filter(ui, key, snapshot, rows), None
    ui = replace(ui, message="", failed=False)
    if ui.mode is Mode.HELP:
        if key == "q":
            return ui, Quit()
        return replace(ui, mode=Mode.BROWSE), None
    if key == "q":
        return ui, Quit()
    return settle(_browse(ui, key, snapshot, rows), snapshot, rows), None


def _update_filter(ui: Ui, key: str, snapshot: NodeView, rows: int) -> Ui:
    if key == keys.ENTER:
        ui = replace(ui, mode=Mode.BROWSE)
    elif key == keys.ESC:
        ui = replace(ui, mode=Mode.BROWSE, filter="")
    elif key == keys.BACKSPACE:
        ui = replace(ui, filter=ui.filter[:-1])
    elif key in (keys.UP, keys.DOWN):
        ui = _move(ui, key, snapshot, rows)
    elif len(key) == 1:
        ui = replace(ui, filter=ui.filter + key)
    return settle(ui, snapshot, rows)


_DEEDS = {"p": Deed.PAUSE, "r": Deed.RESUME, "f": Deed.FREEZE}
_VI = {"k": keys.UP, "j": keys.DOWN, "g": keys.HOME, "G": keys.END}


def _browse(ui: Ui, key: str, snapshot: NodeView, rows: int) -> Ui:
    key = _VI.get(key, key)
    if key in (keys.UP, keys.DOWN, keys.HOME, keys.END, keys.PAGE_UP, keys.PAGE_DOWN):
        return _move(ui, key, snapshot, rows)
    match key:
        case "s":
            order = list(Sort)
            sort = order[(order.index(ui.sort) + 1) % len(order)]
            return replace(ui, sort=sort, message=f"sorted by {sort}")
        case "/":
            return replace(ui, mode=Mode.FILTER)
        case "?" | "h":
            return replace(ui, mode=Mode.HELP)
        case "e" | keys.ENTER:
            if ui.selected is None and not ui.explaining:
                return _nobody_selected(ui)
            return replace(ui, explaining=not ui.explaining)
        case keys.ESC:  # undoes one step: explanation, filter, selection
            if ui.explaining:
                return replace(ui, explaining=False)
            return replace(ui, filter="") if ui.filter else replace(ui, selected=None)
        case "p" | "r" | "f":
            return _ask(ui, _DEEDS[key], snapshot)
    return ui


def _move(ui: Ui, key: str, snapshot: NodeView, rows: int) -> Ui:
    pods = shown_pods(snapshot, ui)
    if not pods:
        return ui
    now = next((place for place, pod in enumerate(pods) if pod.key == ui.selected), None)
    if now is None:
        place = len(pods) - 1 if key == keys.END else 0
    else:
        step = {keys.UP: -1, keys.DOWN: 1, keys.PAGE_UP: -rows, keys.PAGE_DOWN: rows}.get(key, 0)
        place = {keys.HOME: 0, keys.END: len(pods) - 1}.get(key, now + step)
    place = min(max(place, 0), len(pods) - 1)
    return replace(ui, selected=pods[place].key)


def _nobody_selected(ui: Ui) -> Ui:
    return replace(ui, message="select a pod first, with the arrow keys", failed=True)


def _ask(ui: Ui, deed: Deed, snapshot: NodeView) -> Ui:
    pod = next((pod for pod in snapshot.pods if pod.key == ui.selected), None)
    if pod is None:
        return _nobody_selected(ui)
    refusal = None
    if deed is Deed.RESUME:
        # A pod with an unreadable record may still be paused.
        if pod.paused is None and pod.state not in (PodState.ERROR, PodState.PROTECTED):
            refusal = f"{pod.label} is not paused"
    elif pod.paused is not None and pod.paused.owner is Owner.MANUAL:  # a pause by the daemon can be taken over
        held = "frozen" if pod.paused.mechanism is Mechanism.FREEZE else "paused"
        refusal = f"{pod.label} is already {held} {pod.paused.owner.by}"
    elif pod.protected is not None:
        refusal = protected_text(pod.label, pod.protected)
    if refusal is not None:
        return replace(ui, message=refusal, failed=True)
    return replace(ui, mode=Mode.CONFIRM, asked=Act(deed, pod.key, pod.label))


def protected_text(label: str, rule: str) -> str:
    """Return the message for a pause of a protected pod, with the command that overrides the protection."""
    return f"{label} is protected: {rule}; cgpause pause --force {label} overrides"
