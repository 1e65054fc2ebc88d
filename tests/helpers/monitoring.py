"""The shipped rules and dashboard of docs/monitoring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MONITORING = Path(__file__).parents[2] / "docs/monitoring"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def expressions() -> list[str]:
    """Return all PromQL expressions of the dashboard."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def alerts() -> str:
    return (MONITORING / "alerts.yml").read_text()
