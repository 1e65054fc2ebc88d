"""The file in which the daemon publishes its metrics, for `cgpause metrics` to serve: Prometheus' text format.

    # cgpause 1 at_ns=812… time=1795… interval_s=5.0
    # HELP cgpause_up 1 if the daemon runs and has published recently, else 0.
    # TYPE cgpause_up gauge
    cgpause_up 1
    …

The first line shows how old the file is. The file is replaced whole, and it is in a tmpfs, so it does not outlive the
boot that `at_ns` counts from. The format: https://prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from cgpause.core.errors import CgpauseError, printable
from cgpause.kernel import wholefile
from cgpause.telemetry.metrics import FAMILIES, Family, Figure, MetricType, Values

_MAX_BYTES = 16 << 20
"""Longest valid file; five series for each of 100 pods with the longest possible names are 0.4 MiB."""
_NUMBER = rb"[0-9]{1,19}(?:\.[0-9]{1,9})?"
_HEADER = re.compile(rb"# cgpause 1 at_ns=([0-9]{1,19}) time=(%b) interval_s=(%b)\n" % (_NUMBER, _NUMBER))
_SLACK_NS = 10_000_000_000
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class PublishedError(CgpauseError):
    """The daemon's published metrics are missing or not readable."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Time of a publication."""

    at_ns: int
    """Time of publication in nanoseconds on the boot clock."""
    time: float
    """Time of publication in Unix seconds."""
    interval_s: float
    """Seconds until the next publication is due."""

    def is_fresh(self, now_ns: int) -> bool:
        """Return True if the file is at most three intervals and 10 s old, so the daemon probably still runs.

        systemd ends a hanging daemon within 20 s (WatchdogSec= and TimeoutAbortSec=); the next one publishes at once.
        """
        return 0 <= now_ns - self.at_ns <= 3 * self.interval_s * 1e9 + _SLACK_NS


def encode(stamp: Stamp, values: Values) -> bytes:
    """Return the contents of the file; they include `cgpause_up` and the time of the publication."""
    header = f"# cgpause 1 at_ns={stamp.at_ns} time={stamp.time} interval_s={stamp.interval_s}\n"
    return header.encode() + exposition({**values, **stamp_values(stamp, up=True)})


def stamp_values(stamp: Stamp | None, *, up: bool) -> Values:
    """Return the metrics that show whether the daemon lives, and the time of its last publication if that is known."""
    values: Values = {"cgpause_up": [Figure((), int(up))]}
    return values if stamp is None else {**values, "cgpause_snapshot_timestamp_seconds": [Figure((), stamp.time)]}


def exposition(values: Values) -> bytes:
    """Return metrics in Prometheus' text format, in the order of FAMILIES."""
    lines = (line for family in FAMILIES if family.name in values for line in _lines(family, values[family.name]))
    # A lone surrogate has no UTF-8 form.
    return "".join(lines).encode(errors="replace")


def _lines(family: Family, figures: Iterable[Figure]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for figure in figures:
        labels = dict(zip(family.labels, figure.labels, strict=True))
        if family.kind is not MetricType.HISTOGRAM:
            yield _sample(family.name, labels, figure.value)
            continue
        bounds = [*map(str, family.buckets), "+Inf"]
        for bound, count in zip(bounds, accumulate(figure.counts), strict=True):
            yield _sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
        yield _sample(f"{family.name}_count", labels, sum(figure.counts))
        yield _sample(f"{family.name}_sum", labels, figure.value)


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {float(value)}\n" if shown else f"{name} {float(value)}\n"


def read(path: str) -> tuple[Stamp, bytes]:
    """Return the time of the last publication, and its text for Prometheus.

    Raises:
        PublishedError: the file is missing or not readable.
    """
    name = printable(path)
    try:
        data = wholefile.read(path, _MAX_BYTES)
    except FileNotFoundError:
        raise PublishedError(
            f"there is no {name}: no daemon runs here, or it publishes nothing ([metrics] publish = true, then "
            "systemctl reload cgpause)"
        ) from None
    except OSError as e:
        raise PublishedError(f"cannot read {name}: {e.strerror}") from e
    header = _HEADER.match(data)
    if header is None:
        raise PublishedError(f"{name} is damaged, or a daemon of another version wrote it: restart cgpause")
    return Stamp(int(header[1]), float(header[2]), float(header[3])), data[header.end() :]
