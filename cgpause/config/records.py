"""Options of the history, the published figures and the trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from cgpause.config.options import option


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Options of the history."""

    max_mib: int = field(
        default=16,
        metadata=option(
            "Disk space for the history, in two files of half this size; 0: no history. A pause takes about 1 KiB.",
            unit="MiB",
            low=0,
            high=1024,
        ),
    )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Options of the figures that the daemon publishes for Prometheus."""

    GONE: ClassVar[Mapping[str, str]] = {"interval_s": "removed, the daemon publishes every 5 s: delete this line"}
    """Options of earlier versions, each with the message for a file that still sets it."""

    publish: bool = field(
        default=False,
        metadata=option("Whether the daemon publishes metrics in /run/cgpause, where `cgpause metrics` reads them."),
    )
    max_pods: int = field(
        default=100,
        metadata=option(
            "Number of pods with time series of their own, up to five each: the pods that were paused last. The totals "
            "of namespaces count all pods.",
            low=0,
            high=1000,
        ),
    )


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Options of the trace, a recording of the node."""

    GONE: ClassVar[Mapping[str, str]] = {
        "interval_s": "removed, the daemon records every second: delete this line, or use `cgpause record --interval`",
        "max_mib": "removed, the trace takes up to 64 MiB: delete this line, or use `cgpause record --max-size`",
    }
    """Options of earlier versions, each with the message for a file that still sets it."""

    record: bool = field(
        default=False,
        metadata=option("Whether the daemon records the memory of the node and its pods, for `cgpause replay`."),
    )
    hash_names: bool = field(
        default=False,
        metadata=option("Whether hashes replace names and UIDs in it; the hashes differ after each start."),
    )
