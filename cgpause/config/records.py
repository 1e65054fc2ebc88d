"""Options of the history and the published figures."""

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
