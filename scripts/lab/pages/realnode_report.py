"""The page about a node with a real kubelet, from the results of `lab.measure.realnode`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import Report, table

Row = dict[str, Any]

_LOADS = {
    "idle": "three jobs with a limit of 44 % of kubepods that need 40 % once, beside seven idle pods; each round has "
    "jobs of other workloads",
    "unlimited": "two jobs without a limit that need 75 % of kubepods each",
    "probed": "three such jobs, of the same workload in each round, beside a service with Kubernetes' default HTTP "
    "liveness probe",
}
_CHECKS = {
    "reload": "`systemctl daemon-reload` and a new pod while pods are paused",
    "kubelet": "a restart of kubelet while pods are paused",
    "sigterm": "paused pods are deleted (SIGTERM)",
    "uninstall": "`scripts/install --uninstall` while pods are paused",
}

_INTRODUCTION = """\
# On a real node

Written by `scripts/bench realnode`, which measures it again; do not edit. kubelet, containerd, runc and systemd run the
pods, with a limit of the kubepods cgroup for all of them. cgpause is installed with `scripts/install --wheels` and
keeps its stock configuration.
"""

_NODE = """\
## How this node differs from others

- It is emulated, so it is slow. Compare the rows with each other, not with a node of yours.
- It has no API server: kubelet reads its pods from files. Each file names a UID in the API's form. So cgroups and logs
  are named as for any pod, and cgpause does not take the pod for a static one.
- kubelet still takes these pods for static ones and never evicts them. The OOM killer acts where kubelet could evict.
- kubelet 1.20.2 with systemd leaves a second, empty tree: `kubepods` beside `kubepods.slice`.
- The jobs grow by 50 MiB/s and end. kubelet restarts a killed job at once, after a second kill after 10 s.
"""


def _seconds(values: list[float | None]) -> str:
    return ", ".join("not done" if value is None else f"{value:.0f}" for value in values)


def _loads(rows: list[Row]) -> list[str]:
    titles = ("load", "cgpause", "done after, s", "restarts", "restarts of pods beside", "OOM kills", "run again")
    cells = [
        (
            row["case"],
            row["arm"],
            _seconds(row["done_s"]),
            ", ".join(map(str, row["restarts"])),
            row["restarts_beside"],
            row["oom_kills"],
            row.get("repeated", "-"),
            row.get("pauses", "-"),
            f"{row['longest_s']:.0f}" if "longest_s" in row else "-",
        )
        for row in rows
    ]
    return table([*titles, "pauses", "longest, s"], cells, texts=2)


def finding(row: Row) -> str:
    """Return the measurement of a check in words."""
    if row["case"] == "sigterm":
        times = (
            "was killed" if one is None else f"ended after {one:g} s" for one in (row["paused_s"], row["running_s"])
        )
        return "a paused pod {}, a running one {}; the grace period is {} s".format(*times, row["grace_s"])
    words = []
    if "times_undone" in row:
        undone = f"undone {row['times_undone']} times, for {row['longest_undone_s']:g} s at most"
        words += [
            undone if row["times_undone"] else "never undone",
            "" if row["paused_at_end"] else "not paused at the end",
        ]
    words += [
        "originals back" if row["originals_back"] else "originals **not** back",
        f"{row['records_left']} records left" if row["records_left"] else "no record left",
        f"{row['restarts']} restarts",
    ]
    return "; ".join(word for word in words if word)


def _checks(rows: list[Row]) -> list[str]:
    cells = [(_CHECKS[row["case"]], "yes" if row["ok"] else "**no**", finding(row)) for row in rows]
    return table(("while pods are paused by hand", "holds", "measured"), cells)


def tables(run: Row) -> list[str]:
    """Return the lines of a run's tables; a table without rows is left out."""
    loads = _loads(run["loads"]) if run["loads"] else []
    checks = _checks(run["checks"]) if run["checks"] else []
    return [*loads, *([""] if loads and checks else []), *checks]


def render(results: Row) -> str:
    """Return the page as Markdown; `results` is the content of realnode.json."""
    (run,) = results["runs"]
    facts = run["facts"]
    versions = ", ".join(f"{name} {facts[name]}" for name in ("kubelet", "containerd", "runc", "systemd"))
    lines = [
        _INTRODUCTION,
        *(f"- `{case}`: {words}." for case, words in _LOADS.items()),
        "",
        "Each load has a row without and one with cgpause, and one figure for each round. *Pods beside* are",
        "the idle pods or the service. *Run again* counts rounds in which kubelet lost a job while its container",
        "started; they are not in the other columns but kills and pauses (-: not recorded).",
        "",
        *tables(run),
        "",
        _NODE,
        f"Commit {results['commit']}, {results['date']}, in a VM: Linux {facts['kernel']}, {versions},",
        f"{facts['cpus']} CPUs, kubepods {facts['kubepods_mib']} MiB.",
    ]
    return "\n".join([*lines, ""])


REPORT = Report("realnode", render)
