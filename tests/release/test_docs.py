"""Links between the pages have existing targets, and so have the tests that docs/reliability.md names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGES = [*REPO.glob("*.md"), *REPO.glob("docs/*.md")]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer makes from the page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_what_is_there(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_the_tests_of_each_promise_exist() -> None:
    found = re.findall(r"(?:tests|scripts)/[\w/.]*\w", (REPO / "docs/reliability.md").read_text())
    assert found
    for path in found:
        assert (REPO / path).exists(), path
