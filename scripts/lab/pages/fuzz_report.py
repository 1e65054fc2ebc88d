"""The page about fuzzed parsers, from the results of `lab.measure.fuzz`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import Report


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of fuzz.json."""
    (run,) = results["runs"]
    targets = run["targets"]
    broken = [(target["target"], one) for target in targets for one in target["broken"]]
    lines = [
        "# Parsers, fuzzed",
        "",
        "Written by `scripts/bench fuzz`, which does it again; do not edit. Every parser of text that is not ours",
        "(files of the kernel and of kubelet, names of cgroups and log folders, records in xattrs, the configuration,",
        f"references on the command line) is driven by its coverage (atheris) for {run['seconds']:g} s. A parser",
        "must accept the bytes or raise its own error. A value that it accepts must be within its bounds, and must be",
        "the same after it was written and read back (tests/helpers/fuzz_targets.py). The tests do the same with",
        "hypothesis.",
        "",
        "| what | times | broken |",
        "|---|---|---|",
    ]
    lines += [f"| {target['target']} | {target['executed']} | {len(target['broken'])} |" for target in targets]
    lines += ["", f"**{sum(target['executed'] for target in targets)} times, {len(broken)} broken.**"]
    lines += [f"- {name}: {one}" for name, one in broken]
    lines += ["", f"Commit {results['commit']}, {results['date']}, Python {run['python']}."]
    return "\n".join([*lines, ""])


REPORT = Report("fuzz", render)
