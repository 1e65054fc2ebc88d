"""What `study.tune` found, as a configuration file with its evidence, and as Markdown. Text in, text out."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from cgpause import durations
from cgpause.errors import printable
from cgpause.simulate.recorded import AS_RECORDED, SHIFT_S, Recording
from cgpause.trace.report import never_paused
from cgpause.tune.study import RESERVE, TUNED, UNTUNED

_WIDTH = 110
_SHOWN = 0.005
"""What is less is shown as 0."""
_SIMULATED = (
    "All of this is simulated, in virtual time; docs/simulation.md of cgpause says how far that is from a real kernel."
)


def config_file(values: dict[str, Any]) -> str:
    """The tuned options alone, as TOML; comments say where they are from and what they gain."""
    policy, tuned, untuned = values["policy"], values["values"], values["untuned_values"]
    comments = [
        advice(values),
        "",
        *_origin(values),
        "",
        f"Means of the {_runs(values)} held-out runs:",
        *(f"  {arm:<15} {_means(values, arm)}" for arm in values["held_out"]),
        f"What tuning gains in the same runs, mean and {100 * values['confidence']:g} % confidence interval:",
        *(f"  to {arm:<15} {_gain(gained)}: {gained['verdict']}" for arm, gained in values["gains"].items()),
        "",
        _SIMULATED,
    ]
    lines = [wrapped for line in comments for wrapped in _comment(line)]
    lines += ["", f'policy = "{policy}"', "", f"[{policy}]"]
    lines += [f"{name} = {value!r}  # untuned: {untuned[name]!r}" for name, value in tuned.items()]
    return "\n".join([*lines, ""])


def markdown(values: dict[str, Any], picture: str | None) -> str:
    """The same for people; `picture` is what is shown on it."""
    tuned, untuned = values["values"], values["untuned_values"]
    confidence = f"{100 * values['confidence']:g} % confidence intervals"
    lines = [
        f"# {values['policy']} tuned on {_name(values)}",
        "",
        f"**{advice(values)}**",
        "",
        *_origin(values),
        "",
        f"| [{values['policy']}] | untuned | tuned |",
        "|---|---|---|",
        *(f"| `{name}` | {untuned[name]!r} | {value!r} |" for name, value in tuned.items()),
        "",
        f"Means of the {_runs(values)} held-out runs:",
        "",
        "| | jobs unfinished | restarts | total time |",
        "|---|---|---|---|",
        *(f"| {arm} | {_columns(means_of(values, arm))} |" for arm in values["held_out"]),
        "",
        f"What tuning gains in the same runs, with {confidence}; less than 0 is better:",
        "",
        "| to | jobs unfinished | restarts a run | total time | so it is |",
        "|---|---|---|---|---|",
        *(f"| {arm} | {_intervals(one)} | {one['verdict']} |" for arm, one in values["gains"].items()),
        "",
        *([f"![What was tried, and the held-out runs]({picture})", ""] if picture is not None else []),
        "Jobs left unfinished count first, then restarts, then time: the first whose interval leaves out zero decides,",
        "unless one before it seems worse. `open` means that it may be chance. Nor is it proof when n runs see no",
        "restart: one in every n/3 runs would be in keeping with that.",
        "",
        _SIMULATED,
    ]
    return "\n".join([*lines, ""])


def about(recording: Recording) -> dict[str, Any]:
    """What is to be said of a recording that was tuned on, JSON-ready."""
    return {
        "seconds": round(recording.length_s, 3),
        "pods": len(recording.lives),
        "oom_kills": recording.oom_kills,
        "pods_held": recording.held,
        "pods_protected": dict(Counter(life.protected for life in recording.lives if life.protected is not None)),
        "stretches": recording.stretches,
    }


def advice(values: dict[str, Any]) -> str:
    """What to do with it, in a sentence or two."""
    gained = values["gains"][UNTUNED]
    figures = [number for one in ("unfinished", "restarts", "time_pct") for number in gained[one].values()]
    unseen = f"on {'variations of the recording' if values['trace'] else 'jobs'} it was not tuned on"
    if gained["verdict"] == "better":
        said = f"Better than untuned {unseen}: {_gain(gained)}."
    elif gained["verdict"] == "worse":
        said = f"Keep what you have: tuned is worse {unseen}: {_gain(gained)}."
    elif any(abs(number) >= _SHOWN for number in figures):
        said = f"Keep what you have: {unseen} the difference may be chance: {_gain(gained)}."
    else:
        said = f"Keep what you have: {unseen} there is no difference."
    trace = values["trace"]
    if trace and sum(trace["pods_protected"].values()) == trace["pods"]:
        said += f" {never_paused(trace['pods_protected'], trace['pods'])}."
    beside = values["gains"].get(RESERVE)
    if beside is None:
        return said
    if beside["verdict"] == "better":
        return f"{said} It is better than the reserve policy untuned, too: {_gain(beside)}."
    if beside["verdict"] == "worse":
        return f"{said} The reserve policy untuned is better: to it, {_gain(beside)}."
    return f"{said} Whether it is better than the reserve policy untuned is open: to it, {_gain(beside)}."


def interval(one: dict[str, float], unit: str = "") -> str:
    """A mean and its interval; a minus is one, not a hyphen."""
    mean, low, high = (f"{round(one[key], 2) + 0.0:+.2f}" for key in ("mean", "low", "high"))
    return f"{mean}{unit} ({low} to {high})".replace("-", "\N{MINUS SIGN}")


def command_line(values: dict[str, Any]) -> str:
    """What gives the same again, for a shell."""
    given = ["cgpause", *(["--config", values["config"]] if values["config"] else []), "tune"]
    given += [values["workload"]] if not values["preset"] else ["--preset", values["workload"]]
    given += [f"--{name}={values[name]}" for name in ("policy", "trials", "seeds", "seed")]
    return printable(shlex.join(given))


def means_of(values: dict[str, Any], arm: str) -> tuple[float, float, float]:
    """Jobs unfinished, restarts and total time of an arm, a held-out run."""
    runs = values["held_out"][arm]
    unfinished, restarts, total_s = (fmean(run[key] for run in runs) for key in ("unfinished", "restarts", "total_s"))
    return unfinished, restarts, total_s


def _comment(line: str) -> list[str]:
    """Also of a path too long for a line of a configuration."""
    indent = "# " + " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line.strip(), _WIDTH, initial_indent=indent, subsequent_indent=indent) or ["#"]


def _origin(values: dict[str, Any]) -> Iterator[str]:
    yield f"Made by cgpause {values['version']}, with {values['optimiser']}:"
    yield f"    {command_line(values)}"
    first, last = values["training_seeds"]
    yield (
        f"Tuned on the seeds {first} to {last}. Held out, and never seen by the search: the seeds "
        + " to ".join(map(str, values["held_out_seeds"]))
        + "."
    )
    if values["trace"]:
        yield from _recorded(values["trace"])
    if values["configured"]:
        changed = ", ".join(f"{name} = {value}" for name, value in values["configured"].items())
        yield f"The configuration was not the default: {printable(changed)}."


def _recorded(trace: dict[str, Any]) -> Iterator[str]:
    """What a recording is, and what is assumed of it."""
    parts = f" (the longest of {trace['stretches']} without a gap)" if trace["stretches"] > 1 else ""
    yield (
        f"That is a recording of {durations.shown(trace['seconds'])}{parts}: {trace['pods']} pods, "
        f"{trace['oom_kills']} killed for want of room, {trace['pods_held']} held meanwhile."
        + (f" {never_paused(trace['pods_protected'], trace['pods'])}." if trace["pods_protected"] else "")
    )
    yield (
        f"A seed that {AS_RECORDED} divides is the recording as it was. In all others pods come up to {SHIFT_S:g} s "
        "earlier or later, each with the curve of a pod of its kind and limit."
    )
    yield (
        "Assumed: a pod that is held does later what it did, one that is killed begins anew at zero, and the others "
        "are no quicker for either. What pods did while they were held in the recording is taken out. Of a pod that "
        "was killed the longest life is known, and no more. Leaps quicker than a sample are smoothed, so margins found "
        "here are rather too thin. Other days, with other pods, are in no interval here. "
        "Total time is that of all pods, added up. More: docs/trace.md of cgpause."
    )


def _name(values: dict[str, Any]) -> str:
    return printable(values["workload"])


def _runs(values: dict[str, Any]) -> int:
    return len(values["held_out"][TUNED])


def _columns(means: tuple[float, float, float]) -> str:
    unfinished, restarts, total_s = means
    return f"{unfinished:.2f} | {restarts:.2f} | {total_s:.1f} s"


def _means(values: dict[str, Any], arm: str) -> str:
    unfinished, restarts, total_s = means_of(values, arm)
    left = f"{unfinished:.2f} jobs unfinished, " if unfinished else ""
    return f"{left}{restarts:.2f} restarts, total time {total_s:.1f} s"


def _intervals(gained: dict[str, Any]) -> str:
    unfinished, restarts, time = (gained[name] for name in ("unfinished", "restarts", "time_pct"))
    return f"{interval(unfinished)} | {interval(restarts)} | {interval(time, ' %')}"


def _gain(gained: dict[str, Any]) -> str:
    left = f"jobs unfinished {interval(gained['unfinished'])}, " if gained["unfinished"]["mean"] else ""
    return f"{left}restarts {interval(gained['restarts'])} a run, total time {interval(gained['time_pct'], ' %')}"
