"""The workflow and the templates for GitHub."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[2]
GITHUB = REPO / ".github"
SCHEMAS = {
    "workflows/test.yml": "github-workflows",
    "ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    "ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    "ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_github_takes_it(name: str) -> None:
    schema = ["--builtin-schema", f"vendor.{SCHEMAS[name]}"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(GITHUB / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_is_checked() -> None:
    assert {str(path.relative_to(GITHUB)) for path in GITHUB.rglob("*.yml")} == set(SCHEMAS)


def test_the_workflow_runs_the_scripts_of_the_checkout() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows/test.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    ours = [command.split() for command in commands if not command.startswith(("apt-get", "git config"))]

    assert [" ".join(words) for words in ours] == ["scripts/test --fast", ".ci/run", "scripts/package", "scripts/image"]
    assert all((REPO / words[0]).is_file() for words in ours)


def test_every_address_of_the_project_is_the_homepage_of_the_package() -> None:
    urls = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["urls"]
    [link] = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE/config.yml").read_text())["contact_links"]

    assert all(url.startswith(urls["Homepage"]) for url in (*urls.values(), link["url"]))
