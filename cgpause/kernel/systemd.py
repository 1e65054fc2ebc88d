"""systemd's value for a pod's cpu.max: the second source if the record on the cgroup is damaged."""

from __future__ import annotations

import os

from cgpause.core.errors import MalformedError
from cgpause.core.model import CpuMax
from cgpause.core.parse import parse_timespan

_SYSTEMD_PERIOD_US = 100_000
"""systemd's period if CPUQuotaPeriodSec= is not set."""
_PATIENCE_S = 3.0
"""Longest wait for systemd: the daemon's loop waits too, and answers systemd's watchdog (15 s) only after it."""


def original_from_systemd(cgroup_path: str) -> CpuMax | None:
    """Return a pod's cpu.max by systemd's unit; None if systemd does not know it, or does not answer."""
    unit = os.path.basename(cgroup_path)
    if not unit.endswith(".slice"):
        return None
    import subprocess  # noqa: PLC0415 - 0.7 MiB of the daemon, for what hardly ever happens

    # Every *.slice is "loaded" and without a quota, even one that never started; only an active one has the value.
    properties = "ActiveState,CPUQuotaPerSecUSec,CPUQuotaPeriodUSec"
    try:
        shown = subprocess.run(
            ["systemctl", "show", f"--property={properties}", "--", unit],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
        ).stdout
        values = dict(line.partition("=")[::2] for line in shown.splitlines())
        if values["ActiveState"] != "active":
            return None
        per_second_us = parse_timespan(values["CPUQuotaPerSecUSec"])
        period_us = parse_timespan(values["CPUQuotaPeriodUSec"]) or _SYSTEMD_PERIOD_US
    except (OSError, subprocess.SubprocessError, KeyError, MalformedError):
        return None
    return CpuMax(None if per_second_us is None else per_second_us * period_us // 1_000_000, period_us)
