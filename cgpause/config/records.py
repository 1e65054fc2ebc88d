"""Options of the history, the published figures and the trace."""

from dataclasses import dataclass, field

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

    publish: bool = field(
        default=False,
        metadata=option("Whether the daemon publishes metrics in /run/cgpause, where `cgpause metrics` reads them."),
    )


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Options of the trace, a recording of the node."""

    record: bool = field(
        default=False,
        metadata=option("Whether the daemon records the memory of the node and its pods, for `cgpause lab replay`."),
    )
    hash_names: bool = field(
        default=False,
        metadata=option("Whether hashes replace names and UIDs in it; the hashes differ after each start."),
    )
