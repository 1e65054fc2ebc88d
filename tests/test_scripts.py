"""The modules that the shell scripts run."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from lab.pages.report import Report, find_report

SCRIPTS = Path(__file__).parents[1] / "scripts"
TEXT = "".join(path.read_text() for path in sorted(SCRIPTS.iterdir()) if path.is_file())


def test_every_module_that_a_script_runs_exists() -> None:
    modules = set(re.findall(r"-m ((?:lab|release)\.[a-z_.]+)", TEXT))
    assert len(modules) > 20
    assert [name for name in modules if find_spec(name) is None] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"-m lab\.pages\.report ([a-z]+)", TEXT))))
def test_every_page_that_the_bench_writes_has_a_report(name: str) -> None:
    assert isinstance(find_report(name), Report)
    assert import_module(f"lab.pages.{name}_report").REPORT is find_report(name)
