"""The page about what tuning is worth: what `lab.tuning` found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from cgpause.tune.gain import Gain, Verdict, gain
from cgpause.tune.report import interval
from cgpause.tune.study import gain_values
from cgpause.tune.subject import Cost
from lab.report import Report
from lab.tuning import (
    AHEAD_RESERVE,
    BARE_RESERVE,
    COMMON_RESERVE,
    NONE,
    RESERVE,
    TUNED_RESERVE,
    TUNED_WATERMARK,
    WATERMARK,
)

PICTURE = "tuning.png"
ARMS = (NONE, WATERMARK, TUNED_WATERMARK, RESERVE, TUNED_RESERVE, BARE_RESERVE, AHEAD_RESERVE, COMMON_RESERVE)
GUESSES = (COMMON_RESERVE, BARE_RESERVE, AHEAD_RESERVE)
"""Constants for all loads."""

Cell = dict[str, Any]


def costs_of(cell: Cell, arm: str) -> list[Cost]:
    """An arm's held-out runs."""
    return [Cost(*one) for one in cell["costs"][arm]]


def gained(cell: Cell, arm: str, other: str = RESERVE) -> Gain:
    """What an arm gains to another."""
    return gain(costs_of(cell, arm), costs_of(cell, other))


def name_of(cell: Cell) -> str:
    """A load."""
    return f"{cell['preset']}, {cell['cpus']} CPU{'s' * (cell['cpus'] != 1)}"


def with_verdict(cells: Iterable[Cell], arm: str, verdict: Verdict) -> list[str]:
    """The loads on which an arm is better, worse or neither than the reserve untuned."""
    return [name_of(cell) for cell in cells if gained(cell, arm).verdict == verdict]


def render(results: dict[str, Any]) -> str:
    """The report as Markdown; `results` is what tuning.json holds."""
    (run,) = results["runs"]
    cells, others = run["cells"], run["others"]
    everywhere = [*cells, *others]
    runs = len(run["held_out_seeds"])
    seeds = len(run["common_seeds"])
    lines = [
        "# What tuning is worth",
        "",
        *_paragraph(
            "Written by `scripts/bench tune`, which does all of it again; do not edit. Every run is a simulation of "
            "jobs of the paper (`cgpause simulate --preset`) on one node of 32 GB instead of three, with a third of "
            "the jobs; how far that is from a kernel: [simulation.md](simulation.md)."
        ),
        *_paragraph(f"**{_headline(cells)}**"),
        *_paragraph(
            f"Each policy was tuned for each load by itself, with {run['trials']} trials on "
            f"{len(run['training_seeds'])} sets of jobs, and judged on {runs} others (`cgpause tune` does that for a "
            "load of yours). Restarts and total time, means of these:"
        ),
        *_means(cells),
        "",
        f"![Restarts and total time of every policy on every load]({PICTURE})",
        "",
        "## watermark",
        "",
        *_paragraph(
            "Tuned for the very load, beside the reserve policy as it comes; differences in runs of the same jobs with "
            "95 % confidence intervals, less than 0 is better. Restarts count first: a restart that could have been "
            "spared is a promise broken, and time saved does not mend it."
        ),
        *_gains(cells, TUNED_WATERMARK, RESERVE),
        "",
        "The same beside watermark with the paper's parameters:",
        "",
        *_gains(cells, TUNED_WATERMARK, WATERMARK),
        "",
        "What was found:",
        "",
        *_values(cells, TUNED_WATERMARK),
        "",
        "## reserve",
        "",
        "Tuned for the very load, beside its defaults:",
        "",
        *_gains(cells, TUNED_RESERVE, RESERVE),
        "",
        *_values(cells, TUNED_RESERVE),
        "",
        "### One set of constants for all loads?",
        "",
        *_paragraph(
            f"*Common*: {_constants(run, 'common')}. It was found on all of these loads together, with {seeds} "
            f"set{'s' * (seeds != 1)} of jobs of each. *Bare* and *ahead* are guesses. *Bare*: "
            f"{_constants(run, 'bare')}; hardly anything is kept free. *Ahead*: {_constants(run, 'ahead')}."
        ),
        *(f"- {_robust(everywhere, arm)}" for arm in GUESSES),
        "",
        *_paragraph(
            "Beside the defaults: restarts a run; total time. The loads in the second part are those that nothing was "
            "tuned on."
        ),
        *_beside(cells, others),
        "",
        *_paragraph(
            f"{runs} runs without a restart are no proof that there is none: one in every {runs / 3:.0f} runs would be "
            "in keeping with that. A kernel has more surprises than a simulation, and margins are for these: here "
            "looks come at most 5 ms late, and nothing but the jobs takes memory."
        ),
        *_paragraph(
            f"Simulated at commit {results['commit']}, {results['date']}, with {run['optimiser']}; seeds "
            f"{run['training_seeds'][0]} to {run['training_seeds'][-1]} to tune on, {run['held_out_seeds'][0]} to "
            f"{run['held_out_seeds'][-1]} held out."
        ),
    ]
    return "\n".join(lines)


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 116, break_long_words=False, break_on_hyphens=False), ""]


def _headline(cells: list[Cell]) -> str:
    better = with_verdict(cells, TUNED_WATERMARK, Verdict.BETTER)
    quicker = [
        name_of(cell) for cell in cells if gained(cell, TUNED_WATERMARK).time_pct.high < 0
    ]  # whatever it costs in restarts
    said = (
        f"Tuned watermark beats the untuned reserve on {len(better)} of {len(cells)} loads: {'; '.join(better)}."
        if better
        else f"Tuned watermark beats the untuned reserve on none of {len(cells)} loads."
    )
    fewest = min(fmean(cost.restarts for cost in costs_of(cell, TUNED_WATERMARK)) for cell in cells)
    most = max(fmean(cost.restarts for cost in costs_of(cell, RESERVE)) for cell in cells)
    said += f" It has {fewest:.1f} restarts a run at best, where the reserve has {most:.1f} at worst."
    if quicker:
        said += f" It is quicker, for those restarts, on {len(quicker)}: {'; '.join(quicker)}."
    return said


def _means(cells: list[Cell]) -> Iterator[str]:
    yield "| load | " + " | ".join(ARMS) + " |"
    yield "|---|" + "---|" * len(ARMS)
    for cell in cells:
        shown = []
        for arm in ARMS:
            costs = costs_of(cell, arm)
            left = sum(cost.unfinished for cost in costs)
            text = f"{fmean(cost.restarts for cost in costs):.1f}, {fmean(cost.total_s for cost in costs):.1f} s"
            shown.append(f"{text}, {left} jobs unfinished" if left else text)
        yield f"| {name_of(cell)} | " + " | ".join(shown) + " |"


def _gains(cells: list[Cell], arm: str, other: str) -> Iterator[str]:
    yield "| load | restarts a run | total time | so it is |"
    yield "|---|---|---|---|"
    for cell in cells:
        restarts, time, verdict = _gain(cell, arm, other)
        yield f"| {name_of(cell)} | {restarts} | {time} | {verdict} |"


def _beside(cells: list[Cell], others: list[Cell]) -> Iterator[str]:
    yield "| load | " + " | ".join(arm.partition(", ")[2] for arm in GUESSES) + " |"
    yield "|---|" + "---|" * len(GUESSES)
    for number, cell in enumerate([*cells, *others]):
        if number == len(cells):
            yield "| *not tuned on:* |" + " |" * len(GUESSES)
        shown = ("{}; {}; {}".format(*_gain(cell, arm, RESERVE)) for arm in GUESSES)
        yield f"| {name_of(cell)} | " + " | ".join(shown) + " |"


def _gain(cell: Cell, arm: str, other: str) -> tuple[str, str, str]:
    found = gained(cell, arm, other)
    shown = gain_values(found)
    return interval(shown["restarts"]), interval(shown["time_pct"], " %"), found.verdict


def _values(cells: list[Cell], arm: str) -> Iterator[str]:
    names = list(cells[0]["values"][arm])
    yield "| load | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---|" + "---|" * len(names)
    for cell in cells:
        yield f"| {name_of(cell)} | " + " | ".join(f"{cell['values'][arm][name]:g}" for name in names) + " |"


def _constants(run: Mapping[str, Any], arm: str) -> str:
    return ", ".join(f"`{name} = {value:g}` (default {run['defaults'][name]:g})" for name, value in run[arm].items())


def _robust(cells: list[Cell], arm: str) -> str:
    """On how many loads it is better, and where it has restarts that the defaults do not have."""
    counts = {verdict: len(with_verdict(cells, arm, verdict)) for verdict in Verdict}
    said = f"*{arm.partition(', ')[2].capitalize()}* is better on {counts[Verdict.BETTER]} of {len(cells)} loads"
    said += f", worse on {counts[Verdict.WORSE]}, and open on {counts[Verdict.OPEN]}."
    more = [
        f"{name_of(cell)} ({mine} in {len(cell['costs'][arm])} runs, {theirs} with the defaults)"
        for cell in cells
        if (mine := _restarts(cell, arm)) > (theirs := _restarts(cell, RESERVE))
    ]
    return f"{said} More restarts: {'; '.join(more)}." if more else f"{said} Nowhere has it more restarts."


def _restarts(cell: Cell, arm: str) -> int:
    return sum(cost.restarts for cost in costs_of(cell, arm))


REPORT = Report("tuning", render)
