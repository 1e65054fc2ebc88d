"""The page that sets the results of `lab.measure.paper` beside the published ones (Kang & Yu 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cgpause.offline.simulate import Arm
from lab.measure.experiment_results import percent
from lab.measure.paper import CPUS, OVERSUBSCRIPTIONS, SHOWN, SIZES
from lab.pages.experiment_claims import PAPER_RESTARTS_SAVED, PAPER_TIME_SAVED
from lab.pages.report import Report

NEAR = {"restarts": 0.10, "total_s": 0.04}
"""Largest difference, in shares of 1, between a published mean and ours that counts as a match."""
_BOTH = (
    f"both published means met, that of restarts within {percent(NEAR['restarts'])} of what there is without a policy, "
    f"that of total time within {percent(NEAR['total_s'])}"
)
_POLICIES = (Arm.WATERMARK, Arm.RESERVE)


@dataclass(frozen=True, slots=True)
class Loads:
    """The cells of a run, by load, CPUs and policy."""

    cells: dict[tuple[str, int, Arm], dict[str, Any]]

    @classmethod
    def of(cls, run: dict[str, Any]) -> Loads:
        """Return the cells of a run in a results file."""
        return cls({(cell["load"], int(cell["cpus"]), Arm(cell["policy"])): cell for cell in run["cells"]})

    def mean(self, load: str, cpus: int, arm: Arm, name: str) -> float:
        """Return a figure's mean over the seeds."""
        return float(self.cells[load, cpus, arm][name][0])

    def restarting(self, cpus: int) -> list[str]:
        """Return the loads with a restart in at least one seed without a policy."""
        return [load for load in names() if self.cells[load, cpus, Arm.NONE]["restarts"][2] > 0]

    def saved(self, cpus: int, arm: Arm, name: str, sizes: Sequence[int] = SIZES) -> tuple[float, float, float]:
        """Return the shares that a policy saves on `restarting` loads: of their sum, on the best, and on the worst."""
        loads = [load for load in self.restarting(cpus) if load in names(sizes)]
        each = [1 - self.mean(load, cpus, arm, name) / self.mean(load, cpus, Arm.NONE, name) for load in loads]
        ours, theirs = (sum(self.mean(load, cpus, one, name) for load in loads) for one in (arm, Arm.NONE))
        return (1 - ours / theirs, max(each), min(each)) if loads else (0.0, 0.0, 0.0)

    def as_published(self, cpus: int, sizes: Sequence[int] = SIZES) -> bool:
        """Whether the paper's algorithm saves its published means, within NEAR."""
        means = {"restarts": PAPER_RESTARTS_SAVED[0], "total_s": PAPER_TIME_SAVED[0]}
        return all(
            abs(self.saved(cpus, Arm.WATERMARK, name, sizes)[0] - mean) <= NEAR[name] for name, mean in means.items()
        )


def names(sizes: Iterable[int] = SIZES) -> list[str]:
    """Return the names of the loads, in order."""
    return [f"paper-{size}g-{pct}" for size in sizes for pct in OVERSUBSCRIPTIONS]


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of paper.json."""
    (run,) = results["runs"]
    loads = Loads.of(run)
    lines = [
        "# The paper's experiment, simulated at its size",
        "",
        "Written by `scripts/bench paper`, which simulates it again; do not edit. Section 6.2 of Kang & Yu 2024",
        "([doi 10.3745/TKIPS.2024.13.3.91](https://doi.org/10.3745/TKIPS.2024.13.3.91)), as it is in the presets of",
        "`cgpause lab simulate`: 100 containers of 2 GB, 50 of 4 GB or 25 of 8 GB on three workers of 32 GB,",
        "oversubscribed to 100 to 150 %, under no policy, the paper's algorithm (`watermark`) and `reserve`;",
        f"{run['seeds']} sets of jobs each. How far the simulation is from a kernel: [simulation.md](simulation.md).",
        "The same experiment on a kernel, but smaller: [evaluation.md](evaluation.md).",
        "",
        f"**{_verdict(loads)}**",
        "",
        *_beside(loads),
        "",
        "![What was saved, as published and as simulated](paper-saved.png)",
        "",
        "## What is known of the paper, and what is not",
        "",
        *_KNOWN,
        "",
        "## Does the shape hold?",
        "",
        *_shape(loads),
        "",
        "### Why the paper's algorithm does so much worse here in places",
        "",
        "What `watermark` saves by size, and which part of its restarts are its own removals: when all is paused and",
        "use does not fall to Mlower, Algorithm 2 removes the containers that it paused last (removeContainer).",
        "",
        *_by_size(loads),
        "",
        *_why(loads),
        "",
        "## Restarts",
        "",
        "![Restarts by load, policy and number of CPUs](paper-restarts.png)",
        "",
        "Means; loads without restarts under every policy are left out.",
        "",
        *_restarts(loads),
        "",
        "## Total time",
        "",
        "![Total time by load, policy and number of CPUs](paper-time.png)",
        "",
        "Without a policy in seconds, and what each policy adds to that; loads as above.",
        "",
        *_times(loads),
        "",
        "## Waiting and running",
        "",
        f"![Waiting and running times with {SHOWN[2]} CPUs](paper-jobs.png)",
        "",
        "Waiting is the time for admission and in back-off, running that of all containers of a job, paused or not.",
        "",
        "## Memory use over time",
        "",
        f"![Memory use over time, paper-{SHOWN[0]}g-{SHOWN[1]}, {SHOWN[2]} CPUs](paper-memory.png)",
        "",
        *_use(run),
        "",
        f"Simulated at commit {results['commit']}, {results['date']}.",
    ]
    return "\n".join([*lines, ""])


_KNOWN = [
    "- **Published figures.** Four are in the paper's abstract: restarts fall by 40 % on average and by 58 % at best,",
    "  total time by 7 % and 13 %. Its Figures 4 and 8 to 11 are pictures, and their numbers are in no text that could",
    "  be read for this page. So nothing is set beside them bar by bar; whether each curve has the paper's shape is",
    "  open. Nor does the abstract tell over what it averages: here it is the sum over all loads with restarts.",
    "- **Sizes** are those of the presets, from section 6.2. They were not compared with Table 2 again for this page.",
    "- **Parameters** of the algorithm are Table 3's, as in [evaluation.md](evaluation.md). `reserve` has its own.",
    "- **Not known**: the CPUs of a worker, how long a container works on its memory, how often it takes it, how long",
    "  kubelet takes to start one. The presets' values are ours and fitted to nothing: 2 s of CPU time for each unit",
    "  of memory, three rounds, 0.2 s for a start. CPUs are varied below.",
]


def _verdict(loads: Loads) -> str:
    near = [cpus for cpus in CPUS if loads.as_published(cpus)]
    alone = {size: [cpus for cpus in CPUS if loads.as_published(cpus, [size])] for size in SIZES}
    sizes = [f"of {size} GB with {_many(found)} CPUs a worker" for size, found in alone.items() if found]
    begin = (
        f"With {_many(near)} CPUs a worker" if near else "The paper's figures do not come out: with no number of CPUs"
    )
    return f"{begin} are {_BOTH}. Taken alone, containers {_many(sizes) if sizes else 'of no size'} meet both."


def _beside(loads: Loads) -> list[str]:
    def row(title: str, *saved: tuple[float | None, ...]) -> str:
        return f"| {title} | {' | '.join('-' if one is None else percent(one) for all_ in saved for one in all_)} |"

    heads = [
        f"{what} saved{which}" for what in ("restarts", "total time") for which in ("", ", best load", ", worst load")
    ]
    return [
        f"| | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(heads),
        row("published, paper's algorithm", (*PAPER_RESTARTS_SAVED, None), (*PAPER_TIME_SAVED, None)),
        *(
            row(f"{arm}, {cpus} CPUs", *(loads.saved(cpus, arm, name) for name in ("restarts", "total_s")))
            for arm in _POLICIES
            for cpus in CPUS
        ),
    ]


def _shape(loads: Loads) -> list[str]:
    lines = []
    falls = [
        f"{size} GB with {cpus} CPUs"
        for cpus in CPUS
        for size in SIZES
        if not _rises([loads.mean(load, cpus, Arm.NONE, "restarts") for load in names([size])])
    ]
    but = f", except {'; '.join(falls)}" if falls else ", for every size and number of CPUs"
    lines.append(f"- **Ordering.** Without a policy, restarts never fall as oversubscription rises{but}.")
    begins = {
        size: sorted({_begins(loads, cpus, size) for cpus in CPUS}, key=lambda pct: (pct is None, pct))
        for size in SIZES
    }
    words = "; ".join(
        f"{size} GB: {_many([f'{pct} %' if pct else 'nowhere' for pct in found])}" for size, found in begins.items()
    )
    lines.append(f"- **Where restarts begin**, without a policy, over all numbers of CPUs: {words}. Below, jobs fit.")
    for arm in _POLICIES:
        pairs = [(cpus, load) for cpus in CPUS for load in loads.restarting(cpus)]
        fewer = [_compare(loads, cpus, load, arm, "restarts") for cpus, load in pairs]
        sooner = [_compare(loads, cpus, load, arm, "total_s") for cpus, load in pairs]
        lines.append(
            f"- **`{arm}` beside none**, in the {len(pairs)} cases (load and CPUs) with restarts: fewer restarts in "
            f"{fewer.count(-1)}, as many in {fewer.count(0)}, more in {fewer.count(1)}; "
            f"sooner done in {sooner.count(-1)}, later in {sooner.count(1)}."
        )
    longer = {cpus: [one for one in loads.restarting(cpus) if _later(loads, cpus, one)] for cpus in CPUS}
    told = "; ".join(f"{cpus} CPUs: {_many(_sizes(found)) if found else 'nowhere'}" for cpus, found in longer.items())
    lines += [
        f"- **Where `reserve` takes longer than none** (by more than 2 %): {told}.",
        "  Whoever is held leaves its CPU to others, which helps only where they want it. With CPUs enough a restart",
        "  costs nobody else anything, while a pause costs time; with few, all wait for what is lost to kills.",
    ]
    return lines


def _later(loads: Loads, cpus: int, load: str) -> bool:
    return loads.mean(load, cpus, Arm.RESERVE, "total_s") > 1.02 * loads.mean(load, cpus, Arm.NONE, "total_s")


def _sizes(found: Sequence[str]) -> list[str]:
    return [load.removeprefix("paper-").replace("g-", " GB at ") + " %" for load in found]


def _rises(values: Sequence[float]) -> bool:
    # A fall by up to half a restart is chance.
    return all(after >= before - 0.5 for before, after in pairwise(values))


def _begins(loads: Loads, cpus: int, size: int) -> int | None:
    restarting = loads.restarting(cpus)
    return next((pct for pct in OVERSUBSCRIPTIONS if f"paper-{size}g-{pct}" in restarting), None)


def _compare(loads: Loads, cpus: int, load: str, arm: Arm, name: str) -> int:
    ours, theirs = (loads.mean(load, cpus, one, name) for one in (arm, Arm.NONE))
    return (ours > theirs) - (ours < theirs)


def _many(found: Sequence[object]) -> str:
    *first, last = map(str, found)
    return f"{', '.join(first)} and {last}" if first else last


def _told(loads: Loads) -> list[str]:
    return [
        load for load in names() if any(loads.cells[load, cpus, arm]["restarts"][2] for cpus in CPUS for arm in Arm)
    ]


def _why(loads: Loads) -> list[str]:
    few, many = (loads.mean("paper-2g-150", cpus, Arm.NONE, "used_mean_pct") for cpus in (CPUS[0], SHOWN[2]))
    return [
        "A paused container keeps what it holds, here at least half of its limit. Where all together hold more",
        "than Mlower, pausing cannot bring use down to it, and nobody is resumed until somebody is removed and",
        "begins from zero; meanwhile the node stands still, which is where total time goes. That comes about more",
        "easily where memory is fuller to begin with, as with few CPUs (2 GB at 150 % without a policy:",
        f"{few:.0f} % used on average with {CPUS[0]} CPUs, {many:.0f} % with {SHOWN[2]}), and where a node has few",
        "containers: of 8 GB, six",
        "at most. The abstract tells of nothing like it. The paper's containers may have worked longer or held less;",
        "that is not known, and nothing was fitted to find out.",
    ]


def _by_size(loads: Loads) -> list[str]:
    columns = ("restarts saved", "of all restarts removals", "total time saved")
    lines = [
        "| limit | " + " | ".join(f"{cpus} CPUs: {' | '.join(columns)}" for cpus in CPUS) + " |",
        "|---|" + "--:|" * (len(CPUS) * len(columns)),
    ]
    for size in SIZES:
        cells = []
        for cpus in CPUS:
            restarts, total = (loads.saved(cpus, Arm.WATERMARK, name, [size])[0] for name in ("restarts", "total_s"))
            killed, removed = (
                sum(loads.mean(load, cpus, Arm.WATERMARK, name) for load in names([size]))
                for name in ("restarts", "sacrifices")
            )
            cells += [percent(restarts), percent(removed / killed) if killed else "-", percent(total)]
        lines.append(f"| {size} GB | {' | '.join(cells)} |")
    return lines


def _head(columns: str) -> list[str]:
    return [
        "| limit | oversubscription | " + " | ".join(f"{cpus} CPUs: {columns}" for cpus in CPUS) + " |",
        "|---|---|" + "--:|--:|--:|" * len(CPUS),
    ]


def _place(load: str) -> str:
    size, _, pct = load.removeprefix("paper-").partition("g-")
    return f"{size} GB | {pct} %"


def _restarts(loads: Loads) -> list[str]:
    lines = _head("none | watermark | reserve")
    for load in _told(loads):
        cells = " | ".join(f"{loads.mean(load, cpus, arm, 'restarts'):.1f}" for cpus in CPUS for arm in Arm)
        lines.append(f"| {_place(load)} | {cells} |")
    return lines


def _times(loads: Loads) -> list[str]:
    lines = _head("none, s | watermark | reserve")
    for load in _told(loads):
        cells = []
        for cpus in CPUS:
            none = loads.mean(load, cpus, Arm.NONE, "total_s")
            cells.append(f"{none:.0f}")
            cells += [percent(loads.mean(load, cpus, arm, "total_s") / none - 1, sign=True) for arm in _POLICIES]
        lines.append(f"| {_place(load)} | {' | '.join(cells)} |")
    return lines


def _use(run: dict[str, Any]) -> list[str]:
    told = "; ".join(f"{one['policy']} {one['restarts']} restarts in {one['total_s']:.0f} s" for one in run["use"])
    return [
        f"The most that was used in each half second on each of the three workers, with the first set of jobs: {told}.",
        "Whether the paper's Figure 4 shows the same could not be seen from its text.",
    ]


REPORT = Report("paper", render)
