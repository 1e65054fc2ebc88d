"""The file in which the daemon publishes its figures, for `cgpause metrics` to read: a JSON object, replaced whole.

    {"schema": 1, "at_ns": 812…, "time": 1795…, "interval_s": 5.0,
     "values": {"cgpause_headroom_bytes": [[[], 104857600]], "cgpause_pods": [[["running"], 12], …], …}}

The file is in a tmpfs, so it does not outlive the boot that `at_ns` counts from. A histogram's figure has a third item:
the counts of its buckets. A reader skips metrics that it does not know or that have another shape: daemon and reader
may differ in version for a while.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TypeGuard

from cgpause.core import wholefile
from cgpause.core.errors import CgpauseError, printable
from cgpause.telemetry.metrics import BY_NAME, Family, Figure, Kind, Values

_SCHEMA = 1
_MAX_BYTES = 16 << 20
"""Longest valid file; five series for each of 1000 pods with the longest possible names are 4 MiB."""
_MAX_INTERVAL_S = 3600
_SLACK_NS = 10_000_000_000


class PublishedError(CgpauseError):
    """The daemon's published figures are missing or not readable."""


@dataclass(frozen=True, slots=True)
class PublishedMetrics:
    """The figures that the daemon published at one time."""

    at_ns: int
    """Time of publication in nanoseconds on the boot clock."""
    time: float
    """Time of publication in Unix seconds."""
    interval_s: float
    """Seconds until the next publication is due."""
    values: Values

    def is_fresh(self, now_ns: int) -> bool:
        """Return True if the snapshot is at most three intervals and 10 s old, so the daemon probably still runs.

        The watchdog ends a daemon that hangs after 20 s, and the next daemon publishes at once.
        """
        return 0 <= now_ns - self.at_ns <= 3 * self.interval_s * 1e9 + _SLACK_NS


def encode(snapshot: PublishedMetrics) -> bytes:
    """Return a snapshot as the contents of the file."""
    values = {
        name: [[figure.labels, figure.value, *([figure.counts] if figure.counts else [])] for figure in figures]
        for name, figures in snapshot.values.items()
    }
    known = {"schema": _SCHEMA, "at_ns": snapshot.at_ns, "time": snapshot.time, "interval_s": snapshot.interval_s}
    return json.dumps({**known, "values": values}, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> PublishedMetrics:
    """Return the snapshot in the contents of the file.

    Raises:
        PublishedError: the contents are damaged or of another version.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise PublishedError(f"not JSON: {str(e)[:100]}") from e
    if not isinstance(found, dict) or found.get("schema") != _SCHEMA:
        raise PublishedError("not what this version of cgpause publishes: daemon and `cgpause metrics` are of two")
    at_ns, at, interval_s, values = (found.get(name) for name in ("at_ns", "time", "interval_s", "values"))
    if not (_is_number(at_ns) and _is_number(at) and _is_number(interval_s) and isinstance(values, dict)):
        raise PublishedError("its time or its values are missing or damaged")
    if not 0 < interval_s <= _MAX_INTERVAL_S:
        raise PublishedError(f"an interval of {interval_s} s is none of ours")
    return PublishedMetrics(
        int(at_ns),
        float(at),
        float(interval_s),
        {
            name: figures
            for name, listed in values.items()
            if name in BY_NAME and (figures := _figures(BY_NAME[name], listed)) is not None
        },
    )


def _figures(family: Family, listed: object) -> list[Figure] | None:
    """Return the figures of one metric, None if any is not valid. If two have the same labels, keep the first."""
    if not isinstance(listed, list):
        return None
    found: dict[tuple[str, ...], Figure] = {}
    for item in listed:
        figure = _figure(family, item)
        if figure is None:
            return None
        found.setdefault(figure.labels, figure)
    return list(found.values())


def _figure(family: Family, item: object) -> Figure | None:
    width = 3 if family.kind is Kind.HISTOGRAM else 2
    if not isinstance(item, list) or len(item) != width or not isinstance(item[0], list):
        return None
    labels, value = tuple(item[0]), item[1]
    if len(labels) != len(family.labels) or not all(isinstance(label, str) for label in labels):
        return None
    if not _is_number(value) or (family.kind is not Kind.GAUGE and value < 0):
        return None
    # A lone surrogate has no UTF-8 form; the daemon writes none.
    labels = tuple(label.encode(errors="replace").decode() for label in labels)
    if width == 2:
        return Figure(labels, value)
    counts = item[2]
    if not isinstance(counts, list) or len(counts) != len(family.buckets) + 1:
        return None
    if not all(_is_number(count) and isinstance(count, int) and count >= 0 for count in counts):
        return None
    return Figure(labels, value, tuple(counts))


def _is_number(value: object) -> TypeGuard[int | float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 1 << 63


# --- the file --------------------------------------------------------------------------------------------------------


def read(path: str) -> PublishedMetrics:
    """Return the last published snapshot.

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
    try:
        return decode(data)
    except PublishedError as e:
        raise PublishedError(f"{name}: {e}") from e
