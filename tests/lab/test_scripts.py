"""The modules that scripts run and mutate, and the pages that they write, with the commit that a page names."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from lab.measure.experiment_results import RESULTS, code_of, load
from lab.measure.mutants import TESTS
from lab.pages.report import Report, find_report
from lab.vm.host import REPO, commit_of

SCRIPTS = REPO / "scripts"
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


@pytest.mark.parametrize("path", sorted((SCRIPTS / "lab/pages").glob("*_report.py")), ids=lambda path: path.stem)
def test_every_page_is_what_its_results_say(path: Path) -> None:
    module = import_module(f"lab.pages.{path.stem}")
    report = module.REPORT
    if isinstance(report, Report):
        assert report.page.read_text() == report.render(report.load())
    else:
        assert module.render(load(RESULTS)) == (RESULTS.parent / module.REPORT).read_text()


def test_every_module_that_is_mutated_and_its_tests_exist() -> None:
    for name, tests in TESTS.items():
        assert (REPO / "cgpause" / f"{name}.py").is_file()
        assert all(any(REPO.glob(pattern)) for pattern in tests), name


def test_commit_and_code_say_when_the_tree_is_another(tmp_path: Path) -> None:
    for name in ("cgpause/core.py", "scripts/lab/bed/trial.py", "scripts/bench", "docs/page.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]

    def commit() -> tuple[str, str]:
        for words in (["add", "."], ["commit", "-q", "-m", "one"]):
            subprocess.run([*git, *words], check=True)
        return commit_of(tmp_path), code_of(tmp_path)

    assert (commit_of(tmp_path), code_of(tmp_path)) == ("unknown", "unknown")
    subprocess.run([*git, "init", "-q"], check=True)
    commit_1, code = commit()

    (tmp_path / "docs/page.md").write_text("results")
    assert (commit_of(tmp_path), code_of(tmp_path)) == (commit_1, code)
    (tmp_path / "scripts/bench").write_text("a part more")
    assert (commit_of(tmp_path), code_of(tmp_path)) == (f"{commit_1}+dirty", code)
    commit_2, same = commit()
    assert (commit_2 != commit_1, same) == (True, code)
    (tmp_path / "scripts/lab/bed/trial.py").write_text("x = 1")
    assert (commit_of(tmp_path), code_of(tmp_path)) == (f"{commit_2}+dirty", f"{code}+dirty")
    assert commit()[1] != code
