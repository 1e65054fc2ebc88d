"""Our own wheel, and pip as the scripts here call it."""

import importlib.util
import sys
from pathlib import Path

from lab.vm.host import LabError, run_tool


def pip() -> list[str]:
    """The beginning of a call of pip."""
    return [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


def build_wheel(folder: Path, repo: Path) -> Path:
    """Build a wheel of the working tree into a folder that has none; without a network where the build backend is here.

    Raises:
        ToolError: it does not build.
    """
    backend = all(importlib.util.find_spec(name) for name in ("hatchling", "hatch_fancy_pypi_readme"))
    isolation = ["--no-build-isolation"] if backend else []
    run_tool([*pip(), "wheel", "--no-deps", *isolation, "-w", folder, repo])
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise LabError(f"expected one wheel in {folder}")
    return wheels[0]
