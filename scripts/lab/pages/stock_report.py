"""The page about the stock configuration on a kernel, from the results of `lab.measure.stock`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.measure.experiment_results import percent
from lab.measure.stock import NONE, STOCK
from lab.measure.stock_loads import CACHED_MIB, IDLE_PODS
from lab.pages.report import COUNTED_MACHINE, Report, Run, Runs, dated, group_by, table, total
from lab.vm.host import LabError

SLOWER: Final = 1.02
"""Ratio of times above which a load counts as slower."""

LOADS: Final = {
    "idle": (
        f"{IDLE_PODS} pods print a line, fork, read a file and touch up to 512 KiB once a second; a service with "
        "liveness probes answers; three large jobs need 38 % to 40 % of kubepods once, with a limit 10 % above that"
    ),
    "waiting": (
        "the paper's jobs, which sleep for 2 s after each step instead of computing, and fill a page in 2 µs: a new "
        "pod takes 4 % to 8 % of kubepods at once, within a single sample; a node of more than a few GiB cannot be "
        "filled so fast ([policy-bed.md](policy-bed.md))"
    ),
    "waiting-paced": (
        "`waiting`, but a page takes 40 µs as in `paper2`: a node with a hundredth of the memory must not be full a "
        "hundred times as soon"
    ),
    "waiting-backoff": "`waiting-paced` with kubelet's own waits, unscaled",
    "paper2": "the paper's jobs: 36 with a limit of 32 MiB on 384 MiB, which compute after each step",
    "cached": (
        f"`paper2` beside two pods, each of which reads a file of {CACHED_MIB} MiB over and over; one has no limit, "
        "the other one a third of kubepods"
    ),
    "nolimit": (
        "two workloads without a request or limit, each a series of pods; each pod needs about 75 % of kubepods once"
    ),
    "nolimit-half": "`nolimit`, but each pod needs about 56 % of kubepods",
    "nolimit-long": "`nolimit-half` with six times the work for each pod, and with kubelet's own waits, unscaled",
    "nolimit-beside": (
        f"one such workload (56 %, a request of 64 MiB), 12 of the paper's jobs of 48 MiB, and {IDLE_PODS} idle pods"
    ),
    "programs": "real programs from Debian packages, each twice, with a limit 15 % above the peak measured alone",
}

_HEAD = """\
# The stock configuration on a kernel

Written by `scripts/bench stock`, which measures it again; do not edit.

{answer}

{worse}

Each row adds up the runs of one load, one run for each seed; the longest pause is the longest of all its runs.
*Restarts* counts containers that were killed and started again, *by kernel* the OOM killer's part of them. *Worst run*
is the run that lost most time, or gained least, beside the run without a daemon. Pauses are pauses of jobs. *Daemon* is
its CPU time as a share of one CPU.
"""

_COUNTED = f"""\
## On a CPU that counts instructions

An emulated CPU is many times slower than a real one. The jobs' steps are scaled to it, but the daemon is not: above it
runs some 50 ms late, and takes up to an eighth of both CPUs from the jobs. Here the same loads run on
{COUNTED_MACHINE}, a few times slower than a real one. Jobs that
compute share it, so a pause costs them nothing while another one runs: the cost of pauses on idle CPUs shows in the
jobs that mostly wait, and on the two CPUs above.
"""

_HOW = """\
## How it was measured

Each load runs without a daemon (`none`) and with the daemon under the shipped `systemd/config.toml` (`stock`): no rule,
and no option that differs from its default. Both arms run in the same boot with the same seeds; a seed decides sizes,
order and start times. Every pod has a name, log folders and a network namespace of its own, and is Burstable or
BestEffort. A pod is made in kubelet's steps: first its cgroup, 0.3 s later its log folder and sandbox, and 0.5 s after
that its container. A container starts again as by kubelet: 1 s after its first kill, then after a back-off of 10 s,
20 s and so on. All these times are scaled by {scale:g} because the jobs run for seconds; the daemon weighs a restart
with 10 s. The services' probes have Kubernetes' default times. A run that takes more than {timeout:g} s is given up.

The limits of the jobs that run at once add up to 150 % of kubepods (`programs`: 200 %), except in `idle` and
where a pod has no limit.

| load | pods |
|---|---|
{loads}
"""

_MEASURED = """\
Measured with {commits}: Linux {kernel}, {machine}, {cpus} CPUs, in a VM, seeds {seeds}. Times of an
emulated VM depend on the other work of its host, unless it counts instructions: compare the two arms, nothing else.
"""


def where_worse(runs: Runs) -> list[str]:
    """Return a sentence for each figure of a load that is worse with the stock daemon than without a daemon."""
    found = []
    for load, mine in group_by(runs, "load").items():
        none, stock = (group_by(mine, "arm")[arm] for arm in (NONE, STOCK))
        for name, words in (
            ("restarts", "restarts of containers"),
            ("service_restarts", "restarts of services"),
            ("probe_restarts", "restarts by liveness probes"),
        ):
            before, after = total(none, name), total(stock, name)
            if after > before:
                found.append(f"`{load}`: {after:.0f} {words}, {before:.0f} without a daemon.")
        left = [sum(run["jobs"] - run["finished"] for run in arm) for arm in (none, stock)]
        if left[1] > left[0]:
            found.append(f"`{load}`: {left[1]} jobs had not finished when the run was given up, {left[0]} without.")
        before, after = total(none, "total_s"), total(stock, "total_s")
        if after > SLOWER * before:
            found.append(f"`{load}`: {percent(after / before - 1)} longer until all jobs were done.")
        found += [
            f"`{load}`, seed {without['seed']}: {run['restarts']} restarts of containers, 0 without a daemon."
            for without, run in zip(none, stock, strict=True)
            if run["restarts"] and not without["restarts"] and total(stock, "restarts") <= total(none, "restarts")
        ]
    return found


def _worst_run(none: Runs, stock: Runs) -> float:
    """Return the largest ratio of times, less 1, of two runs with the same seed."""
    pairs = zip(none, stock, strict=True)  # in the order of their seeds
    return max(float(run["total_s"] / without["total_s"]) for without, run in pairs) - 1


def answer(runs: Runs) -> str:
    """Return the result of all runs in two sentences."""
    arms, loads = group_by(runs, "arm"), len(group_by(runs, "load"))
    none, stock = arms[NONE], arms[STOCK]
    before_s, after_s = total(none, "total_s"), total(stock, "total_s")
    return (
        f"With the stock configuration, containers restarted {_restarts(stock):.0f} times on "
        f"{loads} loads ({len(stock)} runs); without a daemon, {_restarts(none):.0f} times. "
        f"All runs together took {after_s:.0f} s, and {before_s:.0f} s without "
        f"({percent(after_s / before_s - 1, sign=True)})."
    )


def _restarts(runs: Runs) -> float:
    return total(runs, "restarts") + total(runs, "service_restarts")


def _table(runs: Runs) -> list[str]:
    head = ("load", "arm", "runs", "jobs done", "restarts", "by kernel", "by probes", "total time, s", "worst run")
    rows = [
        (
            load,
            arm,
            len(own),
            f"{total(own, 'finished'):.0f} of {total(own, 'jobs'):.0f}",
            f"{_restarts(own):.0f}",
            f"{total(own, 'oom_kills'):.0f}",
            f"{total(own, 'probe_restarts'):.0f}",
            f"{total(own, 'total_s'):.0f}",
            *(("-",) * 4 if arm == NONE else _of_daemon(group_by(mine, "arm")[NONE], own)),
        )
        for load, mine in group_by(runs, "load").items()
        for arm, own in group_by(mine, "arm").items()
    ]
    return table([*head, "pauses", "longest, s", "daemon"], rows, texts=2)


def _of_daemon(none: Runs, stock: Runs) -> tuple[str, ...]:
    """Return the cells that only runs with a daemon have."""
    return (
        percent(_worst_run(none, stock), sign=True),
        f"{total(stock, 'pauses'):.0f}",
        f"{max(run['longest_pause_s'] for run in stock):.0f}",
        percent(total(stock, "daemon_cpu_s") / total(stock, "total_s"), 1),
    )


def _readers(runs: Runs) -> str:
    """Return what the pods beside the jobs read in `cached`: with less memory they read less."""
    arms = group_by([one for one in runs if one["load"] == "cached"], "arm")
    without, beside = (total(arms[arm], "lasting_read_mib") / total(arms[arm], "total_s") for arm in (NONE, STOCK))
    return (
        f"The two pods of `cached` that read files read {beside:.0f} MiB/s beside the daemon and {without:.0f} MiB/s "
        f"without it ({percent(beside / without - 1, sign=True)})."
    )


def render(results: dict[str, Any]) -> str:
    """Return the page as Markdown; `results` is the content of stock.json: a run on two CPUs, and a counted one."""
    run, on_counted = results["runs"]
    runs, counted = run["trials"], on_counted["trials"]
    peaks = ", ".join(f"{name} {peak:.0f} MiB" for name, peak in run["peaks_mib"].items())
    seeds = ", ".join(str(seed) for seed in sorted({one["seed"] for one in runs}))
    lines = [
        _HEAD.format(answer=answer(runs), worse=_worse(runs)),
        *_table(runs),
        "",
        _readers(runs),
        "",
        _COUNTED,
        answer(counted),
        "",
        _worse(counted),
        "",
        *_table(counted),
        "",
        _readers(counted),
        "",
        _HOW.format(
            scale=run["backoff_scale"],
            timeout=run["timeout_s"],
            loads="\n".join(f"| {load} | {LOADS[load]} |" for load in group_by(runs, "load")),
        ),
        f"Peaks of the programs alone: {peaks}.",
        "",
        _MEASURED.format(
            commits=_commits(results),
            kernel=run["kernel"],
            machine=run["machine"],
            cpus=run["cpus"],
            seeds=seeds,
        ),
    ]
    return "\n".join(lines)


def _worse(runs: Runs) -> str:
    """Return a list of what was worse with the daemon."""
    worse = where_worse(runs)
    if not worse:
        return "On no load was it worse than no daemon."
    head = f"It was worse than no daemon here; {percent(SLOWER - 1)} more time or less counts as the same:"
    return "\n".join([head, "", *(f"- {line}" for line in worse)])


def _commits(results: dict[str, Any]) -> str:
    """Return commit and date of the measurement, and those of loads that were measured again later."""
    words = [f"commit {results['commit']} on {results['date']}"]
    for run in results["runs"]:
        later: dict[str, list[str]] = {}
        for load, trials in group_by(run["trials"], "load").items():
            if "again" in trials[0]:
                later.setdefault(trials[0]["again"], []).append(f"`{load}`")
        machine = "two CPUs" if run["cpus"] > 1 else "the CPU that counts instructions"
        words += [f"{', '.join(loads)} on {machine} with {again}" for again, loads in later.items()]
    return "; ".join(words)


def merge(before: dict[str, Any], commit: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the new results; of a run of some loads only, put their trials in the place of the old ones."""
    results = dated(runs)
    if {trial["load"] for run in runs for trial in run["trials"]} == LOADS.keys():
        return results
    again = {"again": f"commit {commit} on {results['date']}"}
    return before | {"runs": [_merged(*pair, again) for pair in zip(before["runs"], runs, strict=True)]}


def _merged(old: Run, new: Run, again: dict[str, str]) -> Run:
    """Return the results of one machine with the new trials, marked with `again`, in the place of the old ones."""
    for fact in ("kernel", "machine", "cpus"):
        if new[fact] != old[fact]:
            raise LabError(f"measured with {fact} {new[fact]}, the other loads with {old[fact]}: measure all of them")
    trials = [trial | again for trial in new["trials"]]
    measured = {trial["load"] for trial in trials}
    trials += [trial for trial in old["trials"] if trial["load"] not in measured]
    order = list(LOADS)
    trials.sort(key=lambda trial: (order.index(trial["load"]), trial["seed"]))
    return {**old, "trials": trials, "peaks_mib": new["peaks_mib"] or old["peaks_mib"]}


REPORT = Report("stock", render, merge)
