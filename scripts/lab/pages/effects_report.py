"""The page about the effects of a pause on a lease, a database and connections, from `lab.measure.pause_effects`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import COUNTED_MACHINE, Report, row_of


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of effects.json."""
    (run,) = results["runs"]
    lines = [
        "# Effects of a pause on a lease, a database and connections",
        "",
        "Written by `scripts/bench effects`, which measures it again; do not edit. Observers outside one pod test it",
        "while it is paused. No daemon runs; the pauses are like the daemon's pauses of a service and of a batch pod.",
        "A throttled pod (1 % of a CPU) has a second process that uses all the CPU time that the pod gets.",
        "Each pause begins while the pod has a transaction open.",
        "",
        f"- **Lease**: the pod renews it every {run['renew_s']:g} s, and it lasts {run['lease_s']:g} s.",
        "- **Requests**: a client asks the pod every second over one connection and waits",
        f"  {run['client_timeout_s']:g} s.",
        "- **Writes**: another process writes to the same SQLite database every second and waits as long.",
        f"- **Pings**: a peer pings the pod every {run['ping_s']:g} s and waits {run['ping_timeout_s']:g} s, as gRPC's",
        "  keep-alive does.",
        "- **TCP keep-alive** is the kernel's own, which gives a silent peer up after 20 s.",
        "",
        "| pod | without a renewal | lease | requests failed | writes failed | pings failed | TCP keep-alive |",
        "|---|--:|---|--:|--:|--:|---|",
    ]
    for row in run["effects"]:
        cells = [
            row["arm"],
            f"{row['lease_gap_s']:g} s",
            "lost" if row["lease_lost"] else "kept",
            *(_cell(row[name]) for name in ("requests", "writes", "pings")),
            "connection stays" if row["tcp_kept"] else "connection ends",
        ]
        lines.append(row_of(cells))
    lines += [
        "",
        "In brackets: the longest time of one attempt. The consequences for a pod:",
        "[what-a-pause-does.md](../what-a-pause-does.md).",
        "",
        f"Commit {results['commit']}, {results['date']}: Linux {run['kernel']}, {COUNTED_MACHINE}.",
    ]
    return "\n".join([*lines, ""])


def _cell(waits: dict[str, Any]) -> str:
    return f"{waits['failed']} of {waits['count']} ({waits['longest_s']:g} s)"


REPORT = Report("effects", render)
