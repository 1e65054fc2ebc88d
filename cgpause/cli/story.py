"""`cgpause explain REF`: the facts of one pod, its place in a decision, and its past pauses, as text or as JSON.

The dashboard's description of a pod has some of the same facts, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from cgpause.cli.context import Globals
from cgpause.cli.decision import place_values, rule
from cgpause.cli.history import past_pauses
from cgpause.cli.output import Trimmed, console, cpu_limit, memory, throttled
from cgpause.cli.status import SCHEMA, pod_values
from cgpause.config.settings import Config
from cgpause.core import durations
from cgpause.core.errors import CgpauseError, CgroupGoneError, printable
from cgpause.core.model import Owner, OwnWord, Sample
from cgpause.pods.tracked import TrackedPod
from cgpause.policy.explain import Verdict
from cgpause.telemetry.events import iso, moment
from cgpause.telemetry.pauses import totals


def read_story(
    tracked: TrackedPod, sample: Sample, verdicts: tuple[Verdict, ...], config: Config, given: Globals
) -> dict[str, Any]:
    """Return everything about one pod, ready for JSON; `sample` and `verdicts` belong to one decision.

    Raises:
        CgroupGoneError: the pod has ended.
    """
    if not tracked.cgroup.exists():
        raise CgroupGoneError(tracked.cgroup.path)
    verdict = next((verdict for verdict in verdicts if verdict.usage.pod.cgroup == tracked.pod.cgroup), None)
    candidates = sum(verdict.rank is not None for verdict in verdicts)
    return {
        "schema": SCHEMA,
        "policy": config.policy,
        "used_pct": round(sample.headroom.used_pct, 2),
        "headroom_bytes": sample.headroom.available_bytes,
        "pod": pod_values(tracked),
        "decision": None
        if verdict is None
        else {
            "verdict": verdict.text,
            "what": verdict.what,
            "acts": verdict.acts,
            "rule": rule(verdict, sample.headroom, config),
            "rank": verdict.rank,
            "candidates": candidates,
            "reserve": None if verdict.place is None else place_values(verdict.place),
        },
        "history": _history_values(tracked.pod.uid, given),
    }


def _history_values(uid: str, given: Globals) -> dict[str, Any] | None:
    """Return number, durations and times of a pod's pauses; None if the tree has no history."""
    path = given.history_path
    if path is None:
        return None
    known: dict[str, Any] = {"file": path, "error": None, "pauses": 0, "paused_s": 0.0, "longest_s": 0.0, "unknown": 0}
    known |= {"first": None, "last": None}
    try:
        found = past_pauses(given, path, uid)
    except CgpauseError as e:
        return known | {"error": str(e)}
    for total in totals(found):  # at most one total, as all pauses are of one pod
        known |= {"pauses": total.pauses, "paused_s": total.paused_s, "longest_s": total.longest_s}
        known["unknown"] = total.unknown
    starts = [pause.start for pause in found if pause.start is not None]
    if starts:
        known |= {"first": iso(min(starts)), "last": iso(max(starts))}
    return known


Fact = tuple[str, str, str]
"""Topic, text and style of one line; a topic is printed only on the first of its lines."""


def rows(facts: Iterable[Fact]) -> Iterator[tuple[str, Text]]:
    """Yield topic and text of each line, as a table shows them."""
    before = ""
    for topic, text, style in facts:
        yield "" if topic == before else topic, Text(printable(text), style)
        before = topic


def print_story(story: dict[str, Any], now: float) -> None:
    """Print a story as `read_story` returns it; `now` is in Unix seconds."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows((*_pod(story, now), *_decision(story), *limits(story["pod"]), *_history(story))):
        grid.add_row(*row)
    console().print(Trimmed(grid))


def _pod(story: dict[str, Any], now: float) -> Iterator[Fact]:
    pod = story["pod"]
    label = f"{pod['namespace']}/{pod['name']}" if pod["name"] is not None else "name unknown"
    priority = f", priority {pod['priority']:+d}" if pod["priority"] else ""
    yield "pod", f"{label} ({pod['qos']}, {pod['class']}{priority})", ""
    yield "", f"uid {pod['uid']}", ""
    yield "cgroup", pod["cgroup"], ""
    if pod["error"] is not None:
        yield "state", f"error: {pod['error']}", "bold red"
    paused = pod["paused"]
    if paused is None:
        if pod["error"] is None:
            yield "state", "running", "green"
    else:
        since = moment(max(now - paused["since_s"], 0))
        how = "frozen" if paused["mechanism"] == "freeze" else "paused"
        yield "state", f"{how} since {since:%F %T}, for {durations.shown(paused['since_s'])}", "yellow"
        yield "state", f"{Owner(paused['owner']).by}: {paused['reason']}", "yellow"
        if not paused["in_force"]:
            broken = "not in force: another program has written since; cgpause resume, then pause it again"
            yield "state", broken, "bold red"
        left = paused["expires_in_s"]
        if left is not None:
            over = "its time is over: a daemon ends it"
            ends = f"until its time is over, in {durations.shown(left)}" if left > 0 else over
            yield "state", ends, "yellow"
        yield "state", written(paused), "yellow"
    if pod["protected"] is None:
        yield "protected", "no", ""
    else:
        yield "protected", f"yes, {pod['protected']}", "cyan"
    word = pod["own_word"]
    if word == OwnWord.UNKNOWN:
        yield "own word", "its CGPAUSE is none of protect, service and batch, and has no effect", "yellow"
    elif word is not None:
        first = "only own_word = false undoes it" if word == OwnWord.PROTECT else "a rule's class comes first"
        yield "own word", f"CGPAUSE={word} in its environment; {first}", ""


def written(paused: dict[str, Any]) -> str:
    """Return the values that a pause has written, and the original."""
    wrote = [] if paused["written_cpu_max"] is None else [f"cpu.max {_quota(paused['written_cpu_max'])}"]
    wrote += ["cgroup.freeze 1"] if paused["mechanism"] == "freeze" else []
    return f"{' and '.join(wrote)} written; the original is cpu.max {_quota(paused['original_cpu_max'])}"


def _quota(cpu_max: str) -> str:
    return f"{cpu_max} ({cpu_limit(cpu_max)})"


def _decision(story: dict[str, Any]) -> Iterator[Fact]:
    used, headroom = f"{story['used_pct']:.1f} % used", memory(story["headroom_bytes"])
    yield "now", f"policy {story['policy']}: memory {used}, {headroom} headroom", ""
    decision = story["decision"]
    if decision is None:
        yield "now", "it is not judged: its memory.current cannot be read", "bold red"
        return
    numbers = decision["reserve"]
    style = "yellow" if decision["acts"] else ""
    yield "now", decision["verdict"] if numbers is None else decision["what"], style
    yield "rule", decision["rule"], ""
    yield from place(decision["rank"], decision["candidates"], numbers, is_paused=story["pod"]["paused"] is not None)


def place(rank: int | None, candidates: int, numbers: dict[str, Any] | None, *, is_paused: bool) -> Iterator[Fact]:
    """Yield a pod's place in a decision; `numbers` are the `place_values` under the reserve policy."""
    if rank is not None:
        yield "numbers", f"rank {rank} of the {candidates} that may be paused", ""
    if numbers is not None:
        claim = "no limit" if numbers["claim_bytes"] is None else memory(numbers["claim_bytes"])
        rate = numbers["rate_bytes_per_s"]
        grew = f"grew by up to {memory(rate)}/s lately" if rate > 0 else "has not grown lately"
        yield "demand", f"{memory(numbers['demand_bytes'])}, {memory(numbers['available_bytes'])} left for it", ""
        yield "demand", f"based on {numbers['based_on']}", ""
        yield "demand", f"claim {claim}, {grew}", ""
        if is_paused:
            cost = durations.shown(numbers["pause_cost_s"], tenths=True)
            yield "cost", f"its pause has cost about {cost} of work, if CPUs were as idle all the time as now", ""


def limits(pod: dict[str, Any]) -> Iterator[Fact]:
    """Yield memory and CPU of a pod, as `pod_values` returns them."""
    current, limit = pod["memory_current_bytes"], pod["memory_max_bytes"]
    text = "?" if current is None else memory(current)
    if limit is None:
        yield "memory", f"{text} used, no limit", ""
    else:
        part = f" ({100 * current / limit:.0f} %)" if current is not None and limit else ""
        yield "memory", f"{text} of {memory(limit)}{part}", ""
    paused = pod["paused"]
    is_paused = paused is not None and paused["in_force"]
    cpu_max = paused["original_cpu_max"] if is_paused else pod["cpu_max"]
    if cpu_max is not None:
        own = ", while it runs" if is_paused else ""
        yield "cpu", f"limit {cpu_limit(cpu_max)}{own} (cpu.max {cpu_max})", ""
    stat = pod["cpu_stat"]
    if stat is not None and stat["nr_periods"]:
        part = throttled(stat).replace("-", "0%")
        total = durations.shown(stat["throttled_usec"] / 1e6)
        yield "cpu", f"throttled in {part} of its periods, {stat['nr_throttled']} times, {total} in all", ""


def _history(story: dict[str, Any]) -> Iterator[Fact]:
    known = story["history"]
    if known is None:
        yield "history", "none is kept for another tree without --state-dir", ""
    elif known["error"] is not None:
        yield "history", known["error"], "yellow"
    elif not known["pauses"] and story["pod"]["paused"] is not None:
        yield "history", f"{known['file']} has no pause of it, not even this one", "yellow"
    elif not known["pauses"]:
        yield "history", "it was never paused, as far as the history reaches", ""
    else:
        longest = f", {durations.shown(known['longest_s'], tenths=True)} the longest" if known["pauses"] > 1 else ""
        unknown = f" ({known['unknown']} of unknown length)" if known["unknown"] else ""
        length = f"{durations.shown(known['paused_s'], tenths=True)} in all"
        times = "once" if known["pauses"] == 1 else f"{known['pauses']} times"
        yield "history", f"paused {times}{unknown}: {length}{longest}", ""
        if known["first"] is not None:
            first, last = (f"{datetime.fromisoformat(known[name]).astimezone():%F %T}" for name in ("first", "last"))
            since = f"on {first}" if first == last else f"first {first}, last {last}"
            yield "history", f"{since} (cgpause history --pod {story['pod']['uid']})", ""
