"""The page about mutants that unit tests kill, from the results of `lab.measure.mutants`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import Report, row_of

GOAL_PCT = 85


def pct(killed: int, tried: int) -> float:
    """Return the percentage of tried mutants that tests killed; 100 if none was tried."""
    return 100 * killed / tried if tried else 100.0


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of mutants.json: one run for each module.

    Each survivor there has its `reason`, which is typed by hand; `lab.measure.mutants` keeps it.
    """
    runs = results["runs"]
    lines = [
        "# Mutants that unit tests kill",
        "",
        "Written by `scripts/bench mutants`, which does it again; do not edit. A mutant is a module with one change: a",
        "comparison, an operator, a number, a condition, a decorator, or a statement that is deleted. The module's own",
        "unit tests must fail on it. cosmic-ray makes the mutants, and each module is sampled: always the same mutants",
        "while the module stays the same. Annotations and log lines count as any other code, except that annotations",
        "are never evaluated and so are not changed. Tests on a real kernel and of the whole daemon kill others; they",
        f"do not count here. The goal is {GOAL_PCT} % of each module.",
        "",
        "| module | mutants | tried | killed | | commit |",
        "|---|---|---|---|---|---|",
        *map(_row, runs),
        "",
        "## Survivors",
        "",
        "Each with the reason why no test asks for it.",
    ]
    for run in runs:
        if run["survivors"]:
            lines += ["", f"### {run['module']}", ""]
        for one in run["survivors"]:
            reason = one.get("reason", "**no reason yet**")
            lines.append(f"- Line {one['line']}: {_code(one['before'])} became {_code(one['after'])}: {reason}")
    return "\n".join([*lines, ""])


def _row(run: dict[str, Any]) -> str:
    share = f"{pct(run['killed'], run['tried']):.0f} %"
    counts = (run[name] for name in ("module", "mutants", "tried", "killed"))
    return row_of([*counts, share, f"{run['commit']}, {run['date']}"])


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text or ' '}`"


REPORT = Report("mutants", render)
