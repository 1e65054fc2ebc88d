"""Memory in the terms of Kubernetes; pure."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20


def mib(amount: float) -> str:
    """Return bytes as text for operators."""
    return f"{amount / MIB:.1f}Mi"
