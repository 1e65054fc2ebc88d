"""The page about what cgpause costs, from the results of `lab.measure.bench`, `dashboard` and `slowdown`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lab.pages.report import Report, group_by, table

_KEYS = {"bench": "runs", "top": "tops", "slowdown": "slowdown"}
"""Key in performance.json of each kind of result."""
_WHERE = {"plain": "native, ordinary tree", "real": "VM, real cgroups"}


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of performance.json."""
    runs, tops, slowdown = (results[key] for key in _KEYS.values())
    named = [(_WHERE[run["tree"]], run) for run in runs]
    named.append(("VM, under a quota", slowdown))
    named += [(f"{_WHERE[top['tree']]}, the dashboard", top) for top in tops]
    ticks = [(where, tick | _ratios(tick)) for where, run in named[: len(runs)] for tick in run["tick"]]
    lines = [
        "# Cost of cgpause",
        "",
        "Written by `scripts/bench`, which measures all of this again; do not edit. An ordinary tree has the same",
        "layout in ordinary files: it shows cgpause natively where the host has no cgroup v2 controllers. The VM has a",
        "real kernel but is emulated where KVM does not work, so its times are upper bounds; compare within a row, not",
        "between rows. What the idle daemon costs: [peers.md](peers.md).",
        "",
        *_table(
            {"kernel": "kernel", "machine": "where", "Python": "python", "date": "date", "commit": "commit"},
            ((name, {"where": f"{run['machine']}, {run['cpus']} CPUs", **run}) for name, run in named),
        ),
        "",
        "## One sampling tick",
        "",
        "Reads the node's and kubepods' memory and every pod's `memory.current`, and decides. The C loop reads and",
        "parses the same files and decides nothing. Median of alternating rounds.",
        "",
        *_table(
            {
                "pods": "pods",
                "cgpause µs": "python_us",
                "C loop µs": "c_us",
                "ratio": "ratio",
                "µs a pod": "python_us_pod",
            },
            ticks,
        ),
        "",
        "## Near the limit",
        "",
        f"The same tick on a busy node: pods that fill {ticks[0][1]['near_used_pct']:g} % of 64 GiB, a quarter",
        "of them growing, each in proportion to its limit. The policy then weighs every pod. Details are read once",
        "a second: reclaimable memory, tmpfs, listening sockets.",
        "",
        *_table(
            {
                "pods": "pods",
                "far from the limit µs": "python_us",
                "near it µs": "near_us",
                "C loop µs": "c_us",
                "near it / C loop": "near_ratio",
                "near it, µs a pod": "near_us_pod",
                "details µs": "details_us",
            },
            ticks,
        ),
        "",
        "## Reaction",
        "",
        "From the start of the tick that sees the threshold crossed to the last `cpu.max` written (lock, record,",
        "write, read back and log line for each pod).",
        "",
        *_table(
            {"pods paused": "pods", "median µs": "median_us", "99th percentile µs": "p99_us", "samples": "samples"},
            ((_WHERE[run["tree"]], run["reaction"]) for run in runs),
        ),
        *_tops(tops),
        *_slowdown(slowdown),
    ]
    return "\n".join([*lines, ""])


def _ratios(tick: dict[str, Any]) -> dict[str, str]:
    each = {f"{key}_pod": f"{tick[key] / tick['pods']:.2f}" for key in ("python_us", "near_us")}
    return {**each, "near_ratio": f"{tick['near_us'] / tick['c_us']:.2f}"}


def _table(columns: dict[str, str], rows: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return a table with a row for each run; `columns` has the key of each title."""
    return table(("run", *columns), ([where, *(figures[key] for key in columns.values())] for where, figures in rows))


def _tops(tops: list[dict[str, Any]]) -> list[str]:
    return [
        "",
        "## The dashboard",
        "",
        "`cgpause top` in a terminal, once a second, after its start; CPU time is the whole process's. On the ordinary",
        "tree kubepods is nearly full and a quarter of the pods grow; the real cgroups are idle.",
        "",
        *_table(
            {
                "pods": "pods",
                "terminal": "terminal",
                "CPU % of one core": "cpu_pct",
                "sent, bytes per s": "sent_bytes_per_s",
                "resident MiB": "rss_mib",
                "seconds": "seconds",
            },
            (
                (_WHERE[top["tree"]], {"pods": top["pods"], "terminal": f"{size['columns']}x{size['lines']}", **size})
                for top in tops
                for size in top["sizes"]
            ),
        ),
    ]


def _slowdown(slowdown: dict[str, Any]) -> list[str]:
    rows = (
        (
            "none" if quota["quota_m"] is None else f"{quota['quota_m']}m",
            f"`{quota['cpu_max']}`",
            *(quota[key] for key in ("seconds", "times", "rounds")),
        )
        for quota in slowdown["quotas"]
    )
    return [
        "",
        "## A container under a quota",
        "",
        f"Time of the same work (about {slowdown['work_s']:g} s of CPU time) from start to exit, alone in a cgroup, in",
        "the VM; median of alternating rounds. Kang & Yu (2024) saw 45 times at 10m and 18 times at 25m.",
        "",
        *table(("quota", "cpu.max", "seconds", "times as long", "rounds"), rows),
    ]


def merge(results: dict[str, Any], commit: str, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return `results` with the new `parts` in place of the older results of the same kind; `parts` get the commit."""
    new = dict(results)
    for kind, found in group_by(parts, "kind").items():
        dated = [{**part, "commit": commit} for part in found]
        new[_KEYS[kind]] = dated if kind in ("bench", "top") else dated[0]
    return new


REPORT = Report("performance", render, merge)
