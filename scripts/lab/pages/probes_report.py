"""The page about liveness probes under pressure, from the results of `lab.measure.probe`."""

from __future__ import annotations

from typing import Any

from lab.pages.report import Report, row_of

_ROWS = (
    ("seconds of pressure", "seconds"),
    ("kubepods used on average, %", "mean_use_pct"),
    ("probes sent to services", "probes_sent"),
    ("missed", "probes_missed"),
    ("missed in a row at most", "longest_run_missed"),
    ("slowest answer, ms", "slowest_answer_ms"),
    ("containers killed by their probe", "liveness_kills"),
    ("probes of the control missed", "control_missed"),
    ("pauses of services", "service_pauses"),
    ("longest, s", "service_longest_s"),
    ("pauses of batch", "batch_pauses"),
    ("longest, s", "batch_longest_s"),
    ("OOM kills (batch has no end here, and needs more than there is)", "oom_kills"),
)


def render(results: dict[str, Any]) -> str:
    """Return the report as Markdown; `results` is the content of probes.json."""
    runs = results["runs"]
    lines = [
        "# Liveness probes under pressure",
        "",
        "Written by `scripts/bench probes`, which measures it again; do not edit. Real services answer HTTP in network",
        "namespaces of their own beside batch jobs that never end and that together need more memory than there is,",
        "under the daemon with its default configuration. Each service is probed as kubelet does it, by Kubernetes'",
        "default liveness probe. A control outside of kubepods is probed as well: if it misses a probe, the machine",
        "was too slow. In the second run batch pods are protected, so the daemon pauses services; it freezes them.",
        "",
        "| " + row_of(map(_title, runs)),
        "|---|" + "---|" * len(runs),
        row_of(["probe", *map(_probe, runs)]),
        *(row_of([name, *(f"{run[key]:g}" for run in runs)]) for name, key in _ROWS),
    ]
    where = dict.fromkeys(f"Linux {run['kernel']}, {run['cpus']} CPUs" for run in runs)
    lines += ["", f"Commit {results['commit']}, {results['date']}, in a VM: {'; '.join(where)}."]
    return "\n".join([*lines, ""])


def _title(run: dict[str, Any]) -> str:
    return "services have to be paused" if run["pause_services"] else "default"


def _probe(run: dict[str, Any]) -> str:
    return f"every {run['period_s']:g} s, {run['timeout_s']:g} s, {run['failures']} failures"


REPORT = Report("probes", render)
