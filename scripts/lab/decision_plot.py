"""Draws docs/decision.png, one decision of the reserve policy: `python -m lab.decision_plot`.

The pods are made up. What becomes of each, and by which numbers, is what `cgpause.policy.explain` says of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cgpause.config import Config
from cgpause.model import CgroupId, Headroom, Pod, PodUsage, QosClass, Sample, Workload
from cgpause.policy import State, Verdict, decide, explain
from cgpause.policy.hold import NS_PER_S
from lab.picture import save
from lab.vm_host import REPO

PICTURE = REPO / "docs" / "decision.png"

_MIB = 1 << 20
_CAPACITY_BYTES = 8192 * _MIB
_ROOM_BYTES = 420 * _MIB
_LOOKS_NS = (1000 * NS_PER_S, 1001 * NS_PER_S)
"""At the first look nothing is known of growth; at the second, a second of it."""
_FIRST, _RUNS, _PAUSED, _ALWAYS = "#0072B2", "#56B4E9", "#E69F00", "#999999"


@dataclass(frozen=True, slots=True)
class Made:
    """A pod at the second look; sizes in MiB."""

    name: str
    current: int
    limit: int
    grown: int
    """Between the two looks."""
    qos: QosClass = QosClass.BURSTABLE
    workload: Workload = Workload.BATCH
    protected: str | None = None

    def pod(self) -> Pod:
        """Its facts."""
        return Pod(
            cgroup=CgroupId(f"kubepods.slice/{self.name}", 1),
            uid=self.name,
            qos=self.qos,
            namespace="shop",
            name=self.name,
            memory_max_bytes=self.limit * _MIB,
            protected=self.protected,
            workload=self.workload,
        )


PODS = (
    Made("database", 2010, 2048, 120, QosClass.GUARANTEED, Workload.SERVICE, protected="Guaranteed"),
    Made("checkout", 700, 1024, 170, workload=Workload.SERVICE),
    Made("import-3", 1450, 1512, 90),
    Made("report", 900, 1400, 240),
    Made("resize-1", 640, 1024, 160),
    Made("resize-2", 480, 1024, 230),
    Made("resize-3", 320, 1024, 60),
    Made("idle", 300, 1024, 0),
    Made("nightly", 200, 512, 110, QosClass.BEST_EFFORT),
)


def decision() -> tuple[Verdict, ...]:
    """What is decided at the second look."""
    config = Config()
    margin = int(_CAPACITY_BYTES * config.reserve.margin_pct / 100)
    headroom = Headroom(_CAPACITY_BYTES, _ROOM_BYTES + margin, None, 0)
    before = tuple(PodUsage((made.current - made.grown) * _MIB, made.pod()) for made in PODS)
    now = tuple(PodUsage(made.current * _MIB, made.pod()) for made in PODS)
    state = decide(State(), Sample(_LOOKS_NS[0], headroom, before), config).state
    _, verdicts = explain(state, Sample(_LOOKS_NS[1], headroom, now), config)
    return verdicts


def in_words(verdicts: tuple[Verdict, ...]) -> str:
    """The same as text: tests see by it whether the picture is still what the policy decides."""
    return "\n".join(f"{_label(verdict)}: {verdict.text}" for verdict in verdicts)


def draw(path: Path) -> None:
    """Draw the picture.

    Raises:
        OSError: it cannot be written.
    """
    verdicts = decision()
    room = _ROOM_BYTES / _MIB
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 4.4))
        panel = figure.subplots(gridspec_kw={"left": 0.21, "right": 0.61, "top": 0.93, "bottom": 0.12})
        panel.barh(0, room, color="#dddddd", height=0.7)
        panel.text(3, 0, "headroom above margin and eviction threshold", va="center", fontsize=8)
        for row, verdict in enumerate(verdicts, start=1):
            _draw_pod(panel, row, verdict)
        panel.axvline(0, color="#D55E00", linewidth=1.2)
        panel.text(1.5, len(verdicts) + 0.75, "nothing left", color="#D55E00", va="center", fontsize=8)
        panel.set_yticks(range(len(verdicts) + 1), ["room", *map(_label, verdicts)])
        panel.set_ylim(len(verdicts) + 1, -0.7)
        panel.set_xlim(-16, room)
        panel.set_xlabel("what is left of the room, MiB; needs are served from it from above to below")
        save(figure, path, in_words(verdicts))


def _draw_pod(panel: Axes, row: int, verdict: Verdict) -> None:
    place = verdict.place
    assert place is not None, "the reserve policy gives every pod a place"
    need, left = place.need / _MIB, place.left / _MIB
    if not place.runs:
        colour = _PAUSED
    elif place.first:
        colour = _FIRST
    else:
        colour = _RUNS if place.stoppable else _ALWAYS
    panel.barh(row, need, left=left - need, color=colour, height=0.7, hatch=None if place.runs else "///")
    panel.plot([left, left], [row - 1.35, row + 0.35], color="#777777", linewidth=0.7, linestyle=":")
    beside = panel.get_yaxis_transform()
    panel.text(1.02, row - 0.2, verdict.what, transform=beside, va="center", fontsize=8, weight="bold")
    panel.text(1.02, row + 0.25, verdict.why, transform=beside, va="center", fontsize=7.5)


def _label(verdict: Verdict) -> str:
    pod = verdict.usage.pod
    kinds = [str(pod.qos)] if pod.qos is not QosClass.BURSTABLE else []
    kinds += [str(pod.workload)] if pod.workload is Workload.SERVICE else []
    return f"{pod.name} ({', '.join(kinds)})" if kinds else str(pod.name)


def main() -> int:
    """The command line."""
    draw(PICTURE)
    print(f"wrote {PICTURE.relative_to(REPO)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
