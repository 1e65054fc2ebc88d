"""`cgpause explain`: the policy's verdict on each pod, as a table or ready for JSON; `story` has one pod."""

from __future__ import annotations

import math
import time
from typing import Any

import typer

from cgpause.cli import output, story
from cgpause.cli.context import Globals
from cgpause.cli.decision import decide_now, place_values
from cgpause.cli.exits import exits, seconds
from cgpause.cli.usage import Format
from cgpause.config.settings import Config
from cgpause.core.errors import printable
from cgpause.core.lookup import find_pod
from cgpause.core.model import Policy, Sample
from cgpause.pods.sampler import Sampler
from cgpause.policy.explain import Verdict
from cgpause.policy.reserve import grantable_bytes


def show(given: Globals, ref: str | None, watch: str, form: Format | None) -> None:
    """Print the policy's verdict on each pod, or everything about the pod `ref`, after watching pods for `watch`."""
    watch_s = seconds(watch, "--for")
    with exits():
        config = given.config()
        known, problem = given.learned()
        with given.tree(config, known) as tree, Sampler(tree) as sampler:
            output.warn_of_unread_words(tree)
            pods = [tracked.pod for tracked in tree.pods.values()]
            one = None if ref is None else tree.pods[find_pod(ref, pods, tree.root, given.namespace).cgroup]
            sample, verdicts = decide_now(tree, sampler, config, watch_s, known.peaks)
            told = None if one is None else story.read_story(one, sample, verdicts, config, given)
    if problem is not None and config.policy is Policy.RESERVE:
        typer.echo(f"cgpause: {problem}", err=True)
    verdicts = tuple(one for one in verdicts if given.namespace in (None, one.usage.pod.namespace))
    if form is Format.JSON:
        output.print_json(told or explain_values(sample, verdicts, config))
    elif told is not None:
        story.print_story(told, time.time())
    else:
        print_explain(sample, verdicts, config, wide=form is Format.WIDE)


def explain_values(sample: Sample, verdicts: tuple[Verdict, ...], config: Config) -> dict[str, Any]:
    """Return one decision, ready for JSON."""
    return {
        "schema": 1,
        "policy": config.policy,
        "used_pct": round(sample.headroom.used_pct, 2),
        "headroom_bytes": sample.headroom.available_bytes,
        "pods": [
            {
                "rank": verdict.rank,
                "uid": verdict.usage.pod.uid,
                "namespace": verdict.usage.pod.namespace,
                "name": verdict.usage.pod.name,
                "qos": verdict.usage.pod.qos,
                "memory_current_bytes": verdict.usage.memory_current_bytes,
                "verdict": verdict.text,
                "reserve": None if verdict.place is None else place_values(verdict.place),
            }
            for verdict in verdicts
        ],
    }


def print_explain(sample: Sample, verdicts: tuple[Verdict, ...], config: Config, *, wide: bool) -> None:
    """Print one decision as a table, with all columns if `wide`."""
    to = output.console()
    headroom = sample.headroom
    available = output.memory(headroom.available_bytes)
    state = f"policy {config.policy}: memory {headroom.used_pct:.1f} % used, {available} of headroom"
    if config.policy is Policy.WATERMARK:
        rules = config.watermark
        to.print(f"{state}; pauses at {rules.upper_pct:g} %, resumes at {rules.lower_pct:g} %")
    else:
        to.print(f"{state}, {output.memory(max(int(grantable_bytes(sample)), 0))} of it to give away")
    numbered = wide or to.width >= output.NARROW
    wide = wide or to.width >= output.WIDE
    with_places = any(verdict.place is not None for verdict in verdicts)
    numbers = ("CLAIM", "RATE/s", "DEMAND", "AVAILABLE") if with_places and numbered else ()
    extra, right = ("QOS", "CLASS") if wide else (), ("RANK", "MEMORY", *numbers)
    table = output.table_of("RANK", "POD", *extra, "MEMORY", *numbers, "VERDICT", right=right, fold=("POD",))
    for verdict in verdicts:
        current, pod = verdict.usage
        rank = "-" if verdict.rank is None else str(verdict.rank)
        cells = [rank, printable(pod.label), *((pod.qos, pod.kind) if wide else ()), output.memory(current)]
        place = verdict.place
        if place is not None and numbers:
            cells.append("no limit" if math.isinf(place.claim) else output.memory(round(place.claim)))
            cells += [output.memory(round(amount)) for amount in (place.rate, place.needed, max(place.fits_in, 0))]
        else:
            cells += ["-"] * len(numbers)
        text = verdict.text if place is None or verdict.must_end else verdict.what  # the columns have the other reasons
        table.add_row(*cells, printable(text))
    to.print(output.Trimmed(table))
