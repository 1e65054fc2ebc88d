"""Builds cgpause's wheel, and calls pip for the other scripts."""

import importlib.util
import sys
from pathlib import Path

from lab.vm.host import run_tool


def pip() -> list[str]:
    """Return the beginning of pip's command line."""
    return [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


def build_wheel(folder: Path, repo: Path) -> Path:
    """Build a wheel of the working tree into a folder without wheels, and return its path.

    The build needs a network unless the build backend is installed.

    Raises:
        ToolError: the build failed.
    """
    backend = all(importlib.util.find_spec(name) for name in ("hatchling", "hatch_fancy_pypi_readme"))
    isolation = ["--no-build-isolation"] if backend else []
    run_tool([*pip(), "wheel", "--no-deps", *isolation, "-w", folder, repo])
    [wheel] = folder.glob("*.whl")
    return wheel
