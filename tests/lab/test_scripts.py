"""The modules that the shell scripts run, and the pages that they write."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from lab.measure.experiment_results import RESULTS, load
from lab.pages.report import Report, find_report

SCRIPTS = Path(__file__).parents[2] / "scripts"
PAGES = SCRIPTS / "lab/pages"
TEXT = "".join(path.read_text() for path in sorted(SCRIPTS.iterdir()) if path.is_file())


def test_every_module_that_a_script_runs_exists() -> None:
    modules = set(re.findall(r"-m ((?:lab|release)\.[a-z_.]+[a-z_])\b", TEXT))
    modules |= {f"lab.measure.{name}" for name in re.findall(r"measure(?:_in_vm .* --| [\w-]+) ([a-z_]+)", TEXT)}
    assert len(modules) > 20
    assert [name for name in modules if find_spec(name) is None] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"write_page ([a-z]+)", TEXT))))
def test_every_page_that_the_bench_writes_has_a_report(name: str) -> None:
    assert isinstance(find_report(name), Report)


def test_the_bench_takes_the_arguments_that_its_usage_shows() -> None:
    bench = (SCRIPTS / "bench").read_text()
    shown = set(re.findall(r"^  ([a-z]+) +\[(?:--|[A-Z])", bench, re.MULTILINE)) | {"experiment"}
    taken = re.findall(r"^if .* =~ \^\(([a-z|]+)\)\$ \]\]", bench, re.MULTILINE)
    assert [set(one.split("|")) for one in taken] == [shown]


@pytest.mark.parametrize("path", sorted(PAGES.glob("*_report.py")), ids=lambda path: path.stem)
def test_every_page_is_what_its_results_say(path: Path) -> None:
    module = import_module(f"lab.pages.{path.stem}")
    if isinstance(module.REPORT, Report):
        assert module.REPORT.is_current()
    else:
        assert module.render(load(RESULTS)) == (RESULTS.parent / module.REPORT).read_text()
