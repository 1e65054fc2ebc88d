"""Committed files that the code generates."""

from __future__ import annotations

import os
from pathlib import Path


def current(path: Path, expected: str) -> bool:
    """Return True if the file has the expected text; under CGPAUSE_REGENERATE=1, write it first."""
    if os.environ.get("CGPAUSE_REGENERATE") == "1":
        path.write_text(expected, encoding="utf-8")
    return expected == path.read_text(encoding="utf-8")
