"""Draw timeline.png from a recording of `lab.measure.timeline`: `python -m lab.pages.timeline_plot FILE`.

The recording is kept in docs/measurements/timeline.json, with commit and date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from lab.bed.arms import STOCK
from lab.bed.kubelet import EventKind
from lab.pages.picture import picture
from lab.pages.report import COUNTED_MACHINE, MEASUREMENTS, dated
from lab.vm.host import REPO

RESULTS = MEASUREMENTS / "timeline.json"
PICTURE = MEASUREMENTS / "timeline.png"

_MIB = 1 << 20
_RUNS, _PAUSED, _WAITS, _KILLED = "#56B4E9", "#E69F00", "#dddddd", "#000000"
_TITLES = {"none": "without cgpause", STOCK: "with cgpause"}


class Spans(NamedTuple):
    """One job's life as spans (begin, end), and the times of its kills; all in seconds."""

    runs: list[tuple[float, float]]
    backs_off: list[tuple[float, float]]
    """Spans in CrashLoopBackOff."""
    paused: list[tuple[float, float]]
    killed: list[float]


def spans(job: dict[str, Any]) -> Spans:
    """Return the spans and kills of a job, from its pauses and events."""
    found = Spans([], [], [(begin, end) for begin, end in job["paused"]], [])
    since_s = 0.0
    for kind, at_s in job["events"]:
        match EventKind(kind):
            case EventKind.STARTED:
                if found.killed:
                    found.backs_off.append((found.killed[-1], at_s))
                since_s = at_s
            case EventKind.KILLED:
                found.runs.append((since_s, at_s))
                found.killed.append(at_s)
            case EventKind.FINISHED:
                found.runs.append((since_s, at_s))
            case EventKind.ADMITTED | EventKind.NETWORKED | EventKind.REMOVED:
                pass
    return found


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw memory use and jobs of each arm into a PNG.

    Raises:
        OSError: the file cannot be written.
    """
    (run,) = results["runs"]
    arms = run["arms"]
    with picture(path, height=6.4) as figure:
        panels = figure.subplots(
            2, len(arms), sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": [1, 2.4]}
        )
        for (memory, jobs), arm in zip(zip(*panels, strict=True), arms, strict=True):
            _draw_memory(memory, arm)
            _draw_jobs(jobs, arm)
            memory.set_title(f"{_TITLES[arm['arm']]}: {_many(arm['restarts'], 'restart')}, {arm['total_s']:.0f} s")
            jobs.set_xlabel("seconds")
        panels[0][0].set_ylabel("used by pods, MiB")
        panels[1][0].set_ylabel("job, in the order of admission")
        killed = panels[1][0].plot([], [], "x", color=_KILLED, markersize=6, markeredgewidth=1.8)[0]
        handles = [Patch(color=_RUNS), Patch(color=_PAUSED), Patch(color=_WAITS), killed]
        labels = ["runs", "paused by cgpause", "CrashLoopBackOff", "OOM kill"]
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        one = arms[0]
        figure.suptitle(
            f"The same {one['jobs']} jobs, limits of {100 * one['oversubscription']:.0f} % of the memory\n"
            f"Linux {run['kernel']}, {COUNTED_MACHINE}; {results['date']}; {results['commit']}",
            fontsize=10,
        )


def _draw_memory(panel: Axes, arm: dict[str, Any]) -> None:
    limit = arm["capacity_bytes"] / _MIB
    panel.fill_between([at for at, _ in arm["used"]], [used / _MIB for _, used in arm["used"]], color="#bbbbbb", lw=0)
    panel.axhline(limit, color="#D55E00", linewidth=1)
    panel.text(0, limit, "memory.max of kubepods", color="#D55E00", fontsize=8, va="bottom")
    panel.set_ylim(0, limit * 1.15)


def _draw_jobs(panel: Axes, arm: dict[str, Any]) -> None:
    for number, job in enumerate(map(spans, arm["timeline"].values()), start=1):
        for colour, found in ((_RUNS, job.runs), (_WAITS, job.backs_off), (_PAUSED, job.paused)):
            lengths = [(begin, end - begin) for begin, end in found]
            panel.broken_barh(lengths, (number - 0.38, 0.76), color=colour, linewidth=0)
        panel.plot(job.killed, [number] * len(job.killed), "x", color=_KILLED, markersize=6, markeredgewidth=1.8)
    panel.set_ylim(len(arm["timeline"]) + 0.7, 0.3)
    panel.set_yticks(range(1, len(arm["timeline"]) + 1, 4))
    panel.set_xlim(left=0)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def main(argv: Sequence[str]) -> int:
    """Publish the recording in FILE and draw its picture."""
    (path,) = argv
    results = dated([json.loads(Path(path).read_text())])
    RESULTS.write_text(f"{json.dumps(results)}\n")
    draw(results, PICTURE)
    print(f"wrote {RESULTS.relative_to(REPO)} and {PICTURE.relative_to(REPO)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
