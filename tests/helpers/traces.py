"""Traces for tests: moments, and their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cgpause.core.model import CgroupId, Headroom, Pod, PodUsage, QosClass, Sample
from cgpause.telemetry.trace.decode import Decoder
from cgpause.telemetry.trace.encode import Encoder
from cgpause.telemetry.trace.values import TracedSample

S = 1_000_000_000
MIB = 1 << 20
ROOM = Headroom(8 << 30, 6 << 30, 4 << 30, 1 << 30, 100 * MIB)


def make_pod(number: int, **changes: object) -> Pod:
    pod = Pod(
        CgroupId(f"kubepods/pod{number}", number + 1), f"uid-{number}", QosClass.BURSTABLE, "default", "x", None, None
    )
    return replace(pod, **changes)  # type: ignore[arg-type]


def make_moment(at_ns: int, amounts: Mapping[Pod, int], headroom: Headroom = ROOM) -> TracedSample:
    return TracedSample(Sample(at_ns, headroom, tuple(PodUsage(amount, pod) for pod, amount in amounts.items())))


def moment(at_s: float, amounts: Mapping[Pod, float], **more: object) -> TracedSample:
    """Return a moment of a node where kubepods have 1000 MiB; amounts are in MiB."""
    headroom = Headroom(64 << 30, 60 << 30, 1000 * MIB, int(sum(amounts.values()) * MIB))
    made = make_moment(int(at_s * S), {pod: int(mib * MIB) for pod, mib in amounts.items()}, headroom)
    return replace(made, **more)  # type: ignore[arg-type]


def written(moments: Sequence[TracedSample], quantum_bytes: int = 1) -> list[str]:
    encoder = Encoder(1.0, None, quantum_bytes)
    lines = [encoder.begin(moments[0].sample.at_ns, 1e9)]
    for moment in moments:
        lines += encoder.add(moment)
    return lines


def decoded(lines: Sequence[str]) -> list[TracedSample]:
    decoder = Decoder()
    return [moment for line in lines if (moment := decoder.feed(line.encode())) is not None]
