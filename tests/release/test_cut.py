"""`scripts/cut` on a repository of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/cut"
CHANGELOG = "# Changelog\n\n## [1.2.3] - unreleased\n\n- A change.\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "cgpause").mkdir()
    (tmp_path / "cgpause/__init__.py").write_text('"""The package."""\n\n__version__ = "0.0.1"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "docs/deploy").mkdir(parents=True)
    (tmp_path / "docs/deploy/pods.yaml").write_text("image: x/cgpause:0.0.1\nport: 10.0.0.1\nbase: 0.0.10\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.name", "x")
    git(tmp_path, "config", "user.email", "x@example.org")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def git(repo: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repo, check=True, capture_output=True, text=True).stdout


def cut(repo: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUT_REPO": str(repo)}
    return subprocess.run([SCRIPT, *words], env=environment, capture_output=True, text=True, check=False)


def test_it_sets_version_and_date_and_tags_the_commit(repo: Path) -> None:
    done = cut(repo, "1.2.3")
    assert (done.returncode, "git push origin HEAD v1.2.3" in done.stderr) == (0, True)
    assert '__version__ = "1.2.3"' in (repo / "cgpause/__init__.py").read_text()
    assert "unreleased" not in (repo / "CHANGELOG.md").read_text()
    assert (repo / "docs/deploy/pods.yaml").read_text() == "image: x/cgpause:1.2.3\nport: 10.0.0.1\nbase: 0.0.10\n"
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "rev-parse", "v1.2.3^{commit}") == git(repo, "rev-parse", "HEAD")
    assert git(repo, "log", "-1", "--format=%s") == "release: 1.2.3\n"

    again = cut(repo, "1.2.3")
    assert (again.returncode, "exists already" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "found: nothing"),
        (["1.2"], 2, "found: 1.2"),
        (["1.2.3", "now"], 2, "found: 1.2.3 now"),
        (["v1.2.3"], 2, "found: v1.2.3"),
        (["1.2.4"], 1, "no line '## [1.2.4] - unreleased'"),
    ],
)
def test_what_cannot_be_cut_changes_nothing(repo: Path, words: list[str], code: int, said: str) -> None:
    done = cut(repo, *words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert git(repo, "status", "--porcelain") == git(repo, "tag") == ""


def test_uncommitted_changes_are_refused(repo: Path) -> None:
    (repo / "CHANGELOG.md").write_text(CHANGELOG + "more\n")
    done = cut(repo, "1.2.3")
    assert (done.returncode, "not committed" in done.stderr) == (1, True)
