"""Draws docs/measurements/cluster.png from docs/measurements/cluster.json: `python -m lab.pages.cluster_plot`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from lab.measure.cluster import NODES, PERCENTS, SCORINGS
from lab.pages.picture import save
from lab.vm.host import REPO

PICTURE = REPO / "docs/measurements" / "cluster.png"
_COLOURS = {"LeastAllocated": "#0072B2", "MostAllocated": "#D55E00", "RequestedToCapacityRatio": "#009E73"}
_STYLES = {"none": ("--", "o", "without cgpause"), "reserve": ("-", "s", "with cgpause")}


def draw(cells: Sequence[dict[str, Any]]) -> None:
    """Draw restarts, work done and nodes used by oversubscription into PICTURE."""
    mpl.use("Agg")
    sweep = [cell for cell in cells if cell["nodes"] == NODES]
    spread = next(
        cell for cell in sweep if (cell["scoring"], cell["arm"], cell["percent"]) == ("LeastAllocated", "none", 100)
    )
    whole = spread["cpu_s"] - spread["lost_cpu_s"]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    restarts, work, nodes = figure.subplots(1, 3)
    for scoring in SCORINGS:
        for arm, (line, marker, words) in _STYLES.items():
            mine = sorted(
                (cell for cell in sweep if cell["scoring"] == scoring and cell["arm"] == arm),
                key=lambda cell: int(cell["percent"]),
            )
            look = {"color": _COLOURS[scoring], "linestyle": line, "marker": marker, "markersize": 4}
            percents = [cell["percent"] for cell in mine]
            restarts.plot(percents, [cell["restarts"] for cell in mine], label=f"{scoring}, {words}", **look)
            work.plot(percents, [100 * (cell["cpu_s"] - cell["lost_cpu_s"]) / whole for cell in mine], **look)
            if arm == "reserve":
                nodes.plot(percents, [cell["nodes_used"] for cell in mine], **look)
    restarts.set_title("restarts")
    restarts.set_yscale("symlog", linthresh=1)
    restarts.set_ylim(bottom=0)
    work.set_title("work done, % of all")
    work.set_ylim(80, 101)
    nodes.set_title("nodes used (with cgpause)")
    nodes.set_ylim(0, NODES + 0.3)
    for axes in (restarts, work, nodes):
        axes.set_xlabel("limits on a node, % of its memory")
        axes.set_xticks(PERCENTS)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    save(figure, PICTURE)


def main() -> int:
    """Draw the picture from cluster.json."""
    draw(json.loads((REPO / "docs/measurements" / "cluster.json").read_text())["runs"][0]["cells"])
    print(f"wrote {PICTURE.relative_to(REPO)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
