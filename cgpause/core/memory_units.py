"""Memory in the terms of Kubernetes; pure."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30


def mib(amount: float) -> str:
    """Return bytes as text for operators, in MiB."""
    return f"{amount / MIB:.1f}Mi"


def shown(amount: float) -> str:
    """Return bytes as text for operators, in GiB where it is one or more, else in MiB."""
    return f"{amount / GIB:.2f}Gi" if abs(amount) >= GIB - MIB / 20 else mib(amount)
