"""Metrics as Prometheus' own parser reads them."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cgpause.telemetry import published
from cgpause.telemetry.published import PublishedError

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: bytes) -> Samples:
    """Return every sample by name and sorted labels; assert that no two have the same."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def published_samples(path: str | Path) -> Samples:
    """Return what the daemon has published; an empty dict if there is nothing."""
    try:
        return parsed(published.read(str(path))[1])
    except PublishedError:
        return {}
