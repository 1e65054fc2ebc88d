"""The output of `cgpause explain` for all pods: a table, and values ready for JSON."""

from __future__ import annotations

import math
from typing import Any

from cgpause.cli import output
from cgpause.config.settings import Config
from cgpause.core.errors import printable
from cgpause.core.model import Policy, Sample
from cgpause.policy.explain import Verdict
from cgpause.policy.reserve import room_bytes
from cgpause.policy.serving import Place


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


def place_values(place: Place) -> dict[str, Any]:
    """Return one pod's place in a decision of the reserve policy, ready for JSON."""
    return {
        "claim_bytes": None if math.isinf(place.claim) else round(place.claim),
        "rate_bytes_per_s": round(place.rate),
        "need_bytes": round(place.need),
        "left_bytes": round(max(place.left, 0.0)),
        "based_on": place.basis,
        "pause_cost_s": round(place.cost_s, 1),
        "first": place.first,
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
        to.print(f"{state}, {output.memory(max(int(room_bytes(sample)), 0))} of it to give away")
    numbered = wide or to.width >= output.NARROW
    wide = wide or to.width >= output.WIDE
    with_places = any(verdict.place is not None for verdict in verdicts)
    numbers = ("CLAIM", "RATE/s", "NEED", "LEFT") if with_places and numbered else ()
    extra, right = ("QOS", "CLASS") if wide else (), ("RANK", "MEMORY", *numbers)
    table = output.table_of("RANK", "POD", *extra, "MEMORY", *numbers, "VERDICT", right=right, fold=("POD",))
    for verdict in verdicts:
        current, pod = verdict.usage
        rank = "-" if verdict.rank is None else str(verdict.rank)
        cells = [rank, printable(pod.label), *((pod.qos, pod.workload) if wide else ()), output.memory(current)]
        place = verdict.place
        if place is not None and numbers:
            claim = "no limit" if math.isinf(place.claim) else output.memory(round(place.claim))
            cells += [claim, *(output.memory(round(amount)) for amount in (place.rate, place.need, place.left))]
        else:
            cells += ["-"] * len(numbers)
        text = verdict.text if place is None else verdict.what
        table.add_row(*cells, printable(text))
    to.print(output.Trimmed(table))
