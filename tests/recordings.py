"""Traces of simulated nodes, as the recorder would have written them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cgpause.model import PodUsage, Sample
from cgpause.simulate.node import SimNode
from cgpause.trace.encode import Encoder, Hide
from cgpause.trace.read import Trace, load_trace
from cgpause.trace.values import Header, Moment

S = 1_000_000_000
CLOSE_PCT = 25


def moment(node: SimNode) -> Moment:
    """What there is to be seen of a node now; page cache is read each time."""
    node.settle()
    usages, kills, own = [], {}, {}
    for pod in node.pods:
        assert pod.facts is not None
        facts = replace(pod.facts, reclaimable_bytes=int(pod.cache_bytes))
        usages.append(PodUsage(int(pod.held_bytes + pod.cache_bytes), facts))
        if pod.oom_kills or pod.own_oom_kills:
            kills[facts.cgroup] = pod.oom_kills + pod.own_oom_kills
            own[facts.cgroup] = pod.own_oom_kills
    at_ns = int(node.now_s * S)
    return Moment(Sample(at_ns, node.headroom, tuple(usages), at_ns), kills, own)


def record(node: SimNode, seconds: float, interval_s: float = 1.0) -> list[Moment]:
    """Let a node go on, and look as often as the recorder does."""
    found, end_s = [moment(node)], node.now_s + seconds
    while node.now_s < end_s:
        headroom = found[-1].sample.headroom
        close = headroom.available_bytes < headroom.capacity_bytes * CLOSE_PCT / 100
        node.pass_until(node.now_s + interval_s / (5 if close else 1))
        found.append(moment(node))
    return found


def write(path: Path, moments: list[Moment], quantum_bytes: int = 65536, hide: Hide | None = None) -> Trace:
    """Into a file; returns what is read of it."""
    encoder = Encoder(Header("boot", 0.0, 0, 1.0, "0.1.0", quantum_bytes=quantum_bytes), hide)
    lines = [encoder.begin(moments[0].sample.at_ns, 1.79e9)]
    for one in moments:
        lines += encoder.add(one)
    path.write_text("".join(lines))
    return load_trace(str(path))
