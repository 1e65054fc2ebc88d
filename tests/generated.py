"""Committed files that the code writes."""

from __future__ import annotations

import os
from pathlib import Path


def current(path: Path, expected: str) -> bool:
    """Whether a file is as the code would write it; under CGPAUSE_REGENERATE=1 it is written first."""
    if os.environ.get("CGPAUSE_REGENERATE") == "1":
        path.write_text(expected, encoding="utf-8")
    return expected == path.read_text(encoding="utf-8")
