"""Every metric's name and labels follow Prometheus' conventions."""

from __future__ import annotations

import re

import pytest

from cgpause.telemetry.metrics import FAMILIES, Family, MetricType


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_name_follows_the_conventions(family: Family) -> None:
    """Conventions promtool does not check (https://prometheus.io/docs/practices/naming); tests/vm runs promtool."""
    assert re.fullmatch(r"cgpause_[a-z]+(_[a-z]+)*", family.name)
    assert family.name.endswith("_total") == (family.kind is MetricType.COUNTER)
    assert bool(family.buckets) == (family.kind is MetricType.HISTOGRAM)
    assert family.kind is not MetricType.HISTOGRAM or family.name.endswith("_seconds")
    assert not re.search(r"_(ms|us|ns|kib|mib|percent|pct|count|sum|bucket)\b", family.name)
    for label in family.labels:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", label)
        assert label not in ("le", "quantile", "job", "instance")
    assert family.help.endswith((".", "; 1."))
    assert list(family.buckets) == sorted(set(family.buckets))
