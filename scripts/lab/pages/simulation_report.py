"""The page about the simulation's error against a kernel, from the results of `lab.measure.validate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lab.measure.experiment_results import NONE, UNLIMITED, WATERMARK, percent
from lab.pages.report import Report, group_by, table

BAR = 0.15
"""Largest error allowed in the sums of restarts and of total times, as a share."""
HELD_TO = (NONE, WATERMARK)
"""The arms whose error in restarts is judged: they have enough restarts for a share."""

_FROM = {
    "unit_s": "CPU time of all jobs, least squares over the numbers of units and pages",
    "make_s": "total time less the jobs' CPU time, for each job",
    "charged_bytes": "mean use of kubepods; with the reclaimable part",
    "reclaim_s": "a write to `memory.reclaim` of a tree without reclaimable memory, by least squares over three trees",
}


def error(measured: float, simulated: float) -> float | None:
    """Return the simulation's error as a share of the measured figure; None if that is 0."""
    return simulated / measured - 1 if measured else None


def total(cells: Iterable[dict[str, Any]], which: str, name: str) -> float:
    """Return the sum of a figure over cells; `which` is `measured`, `simulated` or `absolute_error`."""
    return sum(float(cell[which][name]) for cell in cells)


def misses(results: dict[str, Any]) -> list[str]:
    """Return a phrase for each sum with an error above BAR."""
    (run,) = results["runs"]
    found = []
    for arm, cells in group_by(run["cells"], "arm").items():
        for name, words in (("restarts", "restarts"), ("total_s", "total time")):
            off = error(total(cells, "measured", name), total(cells, "simulated", name))
            if (name == "total_s" or arm in HELD_TO) and off is not None and abs(off) > BAR:
                found.append(f"{words} of the arm {arm}: {percent(off, 1, sign=True)}")
    return found


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of simulation.json."""
    (run,) = results["runs"]
    costs, cells = run["costs"], run["cells"]
    far = misses(results)
    trials = sum(cell["trials"] for cell in cells)
    lines = [
        "# How far the simulation is from the kernel",
        "",
        "Written by `scripts/bench simulation`, which simulates it again; do not edit. `cgpause simulate` runs the",
        "policies themselves, on nodes, containers, kernel and kubelet that are modelled in virtual time. Here it runs",
        f"the {trials} trials of [evaluation.md](evaluation.md) that end at kubepods' limit: the same jobs",
        "with the same allocations, the same admission and back-off, the same configuration of the daemon.",
        f"Each trial is simulated {run['simulations']} times, and each time containers take 0.1 % longer to make.",
        "The mean counts: the first kill decides all later ones, so one simulation is a matter of chance.",
        "",
        f"**{'Not within' if far else 'Within'} {percent(BAR)} on restarts and total time, summed over all loads"
        + (": " + "; ".join(far) if far else "")
        + f".** Restarts count in the arms that have enough of them: {', '.join(HELD_TO)}.",
        "",
        *_sums(cells),
        "",
        "A single trial is further off. Mean absolute error of a trial, and as a share of the mean that was measured:",
        "",
        *_single(cells),
        "",
        "A trial with many kills is a matter of chance in the kernel too. Sums by load, over those of its sets of",
        "jobs with restarts:",
        "",
        *_loads(cells),
        "",
        "## Assumptions",
        "",
        f"Four costs are taken from the trials of the arm {UNLIMITED}, where no pod is killed or paused; these",
        "trials show no error. The fifth was measured once, on the same machine. Nothing is fitted to the other",
        "arms, or to any load:",
        "",
        "| cost | | from |",
        "|---|---|---|",
        f"| work after a unit of memory | {1000 * costs['unit_s']:.1f} ms of CPU time | {_FROM['unit_s']} |",
        f"| taking a page | {1e6 * costs['page_s']:.1f} µs of CPU time | the same |",
        f"| starting a container | {1000 * costs['make_s']:.1f} ms of a CPU, one by one | {_FROM['make_s']} |",
        f"| other memory charged to a pod | {costs['charged_bytes'] / 1024:.0f} KiB | {_FROM['charged_bytes']} |",
        f"| an attempt to reclaim | {1e6 * costs['reclaim_s']:.1f} µs of CPU time per pod | {_FROM['reclaim_s']} |",
        "",
        "A process that wants memory when there is none tries to reclaim some, 18 times, and the kernel looks into",
        "every cgroup each time (`try_charge_memcg()`, mm/memcontrol.c). If another pod frees memory meanwhile, no",
        "kill follows.",
        "",
        "The simulation leaves out:",
        "",
        "- The kernel's other work when memory is out: the search for a victim, the report of the kill, the end",
        "  of the victim. Where kills are many, total times and lost CPU time come out too low.",
        "- The daemon's CPU time, and that of writing to cgroups: with a policy, total times come out a little low.",
        "- `memory.high` on kubepods, pressure (PSI) and page faults of the daemon. A burst that `memory.high` would",
        "  have stopped is not stopped here.",
        "- CPU is shared evenly at every instant. A scheduler shares it in slices.",
        "",
        "All of this was measured with one CPU, which a paused pod leaves to the others. With CPUs enough, a",
        "pause leaves them idle, and total times depend on their number. That is simulated too, but nothing here",
        "compares it with a kernel. [policy-bed.md](policy-bed.md) shows how much it matters.",
        "",
        f"Simulated at commit {results['commit']}, {results['date']}; measured on {'; '.join(run['where'])}.",
    ]
    return "\n".join([*lines, ""])


def _beside(cells: list[dict[str, Any]], name: str, digits: int = 0) -> list[str]:
    measured, simulated = total(cells, "measured", name), total(cells, "simulated", name)
    off = error(measured, simulated)
    shown = "-" if off is None else percent(off, 1, sign=True)
    return [f"{measured:.{digits}f}", f"{simulated:.{digits}f}", shown]


def _titles(names: Iterable[str]) -> list[str]:
    return [title for name in names for title in (f"{name}: measured", "simulated", "error")]


def _sums(cells: list[dict[str, Any]]) -> list[str]:
    names = {
        "restarts": "restarts",
        "total_s": "total time, s",
        "lost_cpu_s": "lost CPU time, s",
        "pauses": "pauses",
        "paused_s": "paused, s",
    }
    rows = (
        [arm, sum(cell["trials"] for cell in mine), *(text for name in names for text in _beside(mine, name))]
        for arm, mine in group_by(cells, "arm").items()
    )
    return table(["arm", "trials", *_titles(names.values())], rows)


def _single(cells: list[dict[str, Any]]) -> list[str]:
    rows = []
    for arm, mine in group_by(cells, "arm").items():
        trials = sum(cell["trials"] for cell in mine)
        row = [arm]
        for name in ("restarts", "total_s"):
            off, measured = total(mine, "absolute_error", name), total(mine, "measured", name)
            row += [f"{off / trials:.2f}", percent(off / measured, 1) if measured else "-"]
        rows.append(row)
    return table(("arm", "restarts", "", "total time, s", ""), rows)


def _loads(cells: list[dict[str, Any]]) -> list[str]:
    rows = []
    for cell in sorted(cells, key=lambda cell: (-cell["share"], cell["oversubscription"])):
        if cell["measured"]["restarts"] or cell["simulated"]["restarts"]:
            figures = _beside([cell], "restarts") + _beside([cell], "total_s", 1)
            rows.append([f"1/{cell['share']}", percent(cell["oversubscription"]), cell["arm"], *figures])
    return table(["limit", "oversubscription", "arm", *_titles(["restarts", "total time, s"])], rows)


REPORT = Report("simulation", render)
