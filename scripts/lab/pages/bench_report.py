"""Writes performance.json, .md and a plot from the results of `lab.measure.bench` and `lab.measure.slowdown`.

No figure there is typed by hand. A measurement without results has no section.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.vm.host import REPO, LabError, commit_of

RESULTS = REPO / "docs/measurements" / "performance.json"
REPORT = REPO / "docs/measurements" / "performance.md"
PLOT = REPO / "docs/measurements" / "cost-growth.png"
_WHERE = {"plain": "native, ordinary tree", "real": "VM, real cgroups"}


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of performance.json."""
    runs, slowdown = results["runs"], results.get("slowdown")
    lines = [
        "# What cgpause costs",
        "",
        "Written by `scripts/bench`, which measures all of this again; do not edit. An ordinary tree has the same",
        "layout in ordinary files: it shows cgpause natively where the host has no cgroup v2 controllers. The VM has a",
        "real kernel but is emulated where KVM does not work, so its times are upper bounds; compare within a row, not",
        "between rows.",
        "",
        "| run | kernel | machine | Python | date | commit |",
        "|---|---|---|---|---|---|",
    ]
    named = [(_WHERE[run["tree"]], run) for run in runs]
    named += [("VM, under a quota", slowdown)] if slowdown else []
    named += [(f"{_WHERE[top['tree']]}, the dashboard", top) for top in results.get("tops", [])]
    trace = results.get("trace")
    named += [(f"{_WHERE[trace['tree']]}, a recording", trace)] if trace else []
    start = results.get("start")
    named += [(f"{_WHERE[start['tree']]}, the start of a command", start)] if start else []
    for name, run in named:
        machine = f"{run['machine']}, {run['cpus']} CPUs"
        lines.append(
            _row((name, run["kernel"], machine, run["python"], run["date"], run.get("commit", results["commit"])))
        )
    lines += _ticks(runs)
    lines += _growth(runs)
    lines += _idle(runs)
    lines += _reactions(runs)
    lines += _tops(results.get("tops", []))
    lines += _start(start)
    lines += _trace(trace)
    lines += _slowdown(slowdown)
    return "\n".join([*lines, ""])


def _ticks(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## One sampling tick",
        "",
        "Reads the node's and kubepods' memory and every pod's `memory.current`, and decides. The C loop reads and",
        "parses the same files and decides nothing. Median of alternating rounds.",
        "",
        "| run | pods | cgpause µs | C loop µs | ratio | µs a pod |",
        "|---|---|---|---|---|---|",
    ]
    for where, tick in _each_tick(runs):
        per_pod = f"{tick['python_us'] / tick['pods']:.2f}"
        lines.append(_row((where, tick["pods"], tick["python_us"], tick["c_us"], tick["ratio"], per_pod)))
    return lines


def _growth(runs: list[dict[str, Any]]) -> list[str]:
    ticks = [(where, tick) for where, tick in _each_tick(runs) if "near_us" in tick]
    if not ticks:
        return []
    used_pct = ticks[0][1].get("near_used_pct", 97)  # older results do not record it; it was 97 %
    lines = [
        "",
        "## Near the limit",
        "",
        f"The same tick on a busy node: pods that fill {used_pct:g} % of 64 GiB, a quarter of them growing, each in",
        "proportion to its limit. The policy then weighs every pod. Details are what is read besides once a second:",
        "reclaimable memory, CPU time, and who listens.",
        "",
        "| run | pods | far from the limit µs | near it µs | near it, µs a pod | details µs |",
        "|---|---|---|---|---|---|",
    ]
    for where, tick in ticks:
        per_pod = f"{tick['near_us'] / tick['pods']:.2f}"
        lines.append(_row((where, tick["pods"], tick["python_us"], tick["near_us"], per_pod, tick["details_us"])))
    return [*lines, "", f"![A tick's cost by number of pods]({PLOT.name})"]


def _each_tick(runs: list[dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((_WHERE[run["tree"]], tick) for run in runs for tick in run["tick"])


def _idle(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## Idling",
        "",
        "The daemon with comfortable headroom, after its start. Wake-ups are its voluntary context switches: an upper",
        "bound, for waiting for a lock in the kernel counts too.",
        "",
        "| run | pods | CPU % of one core | wake-ups per s | resident MiB | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        idle = run["idle"]
        values = (idle["pods"], idle["cpu_pct"], idle["wakeups_per_s"], idle["rss_mib"], idle["seconds"])
        lines.append(_row((_WHERE[run["tree"]], *values)))
    return lines


def _reactions(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## Reaction",
        "",
        "From the start of the tick that sees the threshold crossed to the last `cpu.max` written (lock, record,",
        "write, read back and log line for each pod).",
        "",
        "| run | pods paused | median µs | 99th percentile µs | samples |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        reaction = run["reaction"]
        times = (reaction["median_us"], reaction["p99_us"])
        lines.append(_row((_WHERE[run["tree"]], reaction["pods"], *times, reaction["samples"])))
    return lines


def _tops(tops: list[dict[str, Any]]) -> list[str]:
    if not tops:
        return []
    lines = [
        "",
        "## The dashboard",
        "",
        "`cgpause top` in a terminal, once a second, after its start; CPU time is the whole process's. On the ordinary",
        "tree kubepods is nearly full and a quarter of the pods grow; the real cgroups are idle.",
        "",
        "| run | pods | terminal | CPU % of one core | sent, bytes per s | resident MiB | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for top in tops:
        for size in top["sizes"]:
            terminal = f"{size['columns']}x{size['lines']}"
            values = (size["cpu_pct"], size["sent_bytes_per_s"], size["rss_mib"], size["seconds"])
            lines.append(_row((_WHERE[top["tree"]], top["pods"], terminal, *values)))
    return lines


def _trace(trace: dict[str, Any] | None) -> list[str]:
    if trace is None:
        return []
    amounts = ("samples per s", "CPU % of one core", "µs a sample", "bytes a pod-hour", "MiB a day", "seconds")
    columns = ("run", "load", "host's load average", *amounts)
    lines = [
        "",
        "## A recording",
        "",
        f"`cgpause lab record` with {trace['pods']} pods, after its start, packed; CPU time is the whole process's.",
        "The daemon has read most of its values already ([trace.md](../trace.md)). A host that is busy with other",
        "work makes that CPU time longer, for caches and cores are shared: its load average, of the minute before, is",
        "how busy it was.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for load in trace["loads"]:
        busy = load.get("load_average", "not recorded")
        costs = (load["cpu_pct"], load["sample_us"], load["bytes_per_pod_hour"], load["node_mib_per_day"])
        lines.append(_row((_WHERE[trace["tree"]], load["load"], busy, load["samples_per_s"], *costs, load["seconds"])))
    return lines


def _start(start: dict[str, Any] | None) -> list[str]:
    if start is None:
        return []
    lines = [
        "",
        "## The start of a command",
        "",
        f"From start to end, with {start['pods']} pods, in ms; {start['rounds']} alternating rounds.",
        f"The host's load average was {start['load_average']}.",
        "",
        "| command | median | shortest | CPU time |",
        "|---|---|---|---|",
    ]
    keys = ("median_ms", "shortest_ms", "cpu_ms")
    return [*lines, *(_row((f"`{one['command']}`", *(one[key] for key in keys))) for one in start["commands"])]


def _slowdown(slowdown: dict[str, Any] | None) -> list[str]:
    if slowdown is None:
        return []
    lines = [
        "",
        "## A container under a quota",
        "",
        f"Time of the same work (about {slowdown['work_s']:g} s of CPU time) from start to exit, alone in a cgroup, in",
        "the VM; median of alternating rounds. Kang & Yu (2024) saw 45 times at 10m and 18 times at 25m.",
        "",
        "| quota | cpu.max | seconds | times as long | rounds |",
        "|---|---|---|---|---|",
    ]
    for quota in slowdown["quotas"]:
        name = "none" if quota["quota_m"] is None else f"{quota['quota_m']}m"
        lines.append(_row((name, f"`{quota['cpu_max']}`", quota["seconds"], quota["times"], quota["rounds"])))
    return lines


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw a tick's cost by number of pods into a PNG; do nothing if no run has ticks near the limit."""
    runs = [run for run in results["runs"] if all("near_us" in tick for tick in run["tick"])]
    if not runs:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 - of the extra `plots`; to render the text does without

    from lab.pages.picture import save  # noqa: PLC0415 - the same

    figure = Figure(figsize=(6 * len(runs), 4.5), layout="tight")
    axes = figure.subplots(1, len(runs), squeeze=False)
    series = {"near_us": "cgpause, near the limit", "python_us": "cgpause, far from it", "c_us": "C loop, reads only"}
    for axis, run in zip(axes[0], runs, strict=True):
        pods = [tick["pods"] for tick in run["tick"]]
        for key, label in series.items():
            axis.plot(pods, [tick[key] / 1000 for tick in run["tick"]], marker="o", label=label)
        axis.set(title=f"{_WHERE[run['tree']]}\nLinux {run['kernel']}, {run['date']}", xlabel="pods")
        axis.set(ylabel="one tick, ms", xlim=(0, None), ylim=(0, None))
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    save(figure, path)


def combine(commit: str, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of performance.json: the printed results, each placed by its `kind`."""
    results: dict[str, Any] = {"commit": commit, "runs": []}
    for part in parts:
        if part["kind"] == "slowdown":
            results["slowdown"] = part
        elif part["kind"] == "bench":
            results["runs"].append(part)
        elif part["kind"] == "top":
            results.setdefault("tops", []).append(part)
        elif part["kind"] in ("trace", "start"):
            results[part["kind"]] = part
        else:
            raise LabError(f"a result of unknown kind: {part['kind']!r}")
    return results


def with_tops(results: dict[str, Any], commit: str, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return `results` with the dashboard's replaced by `parts`; only these get the commit."""
    return {**results, "tops": [{**part, "commit": commit} for part in parts]}


def with_part(results: dict[str, Any], commit: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return `results` with those of the part's kind replaced by it; only these get the commit."""
    return {**results, part["kind"]: {**part, "commit": commit}}


def _row(values: Iterable[object]) -> str:
    return f"| {' | '.join(str(value) for value in values)} |"


def main() -> int:
    """Publish the JSON files on the command line.

    Dashboards, a recording or the start of commands alone update the published file.
    """
    parts = [json.loads(Path(path).read_text()) for path in sys.argv[1:]]
    if parts and all(part["kind"] == "top" for part in parts):
        results = with_tops(json.loads(RESULTS.read_text()), commit_of(), parts)
    elif [part["kind"] for part in parts] in (["trace"], ["start"]):
        results = with_part(json.loads(RESULTS.read_text()), commit_of(), parts[0])
    else:
        results = combine(commit_of(), parts)
    RESULTS.write_text(f"{json.dumps(results, indent=2)}\n")
    REPORT.write_text(render(results))
    plot(results, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
