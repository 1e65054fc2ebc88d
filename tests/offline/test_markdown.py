"""Texts and tables in Markdown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.core.errors import printable
from cgpause.offline.markdown import plain, table


@given(st.text())
def test_a_plain_text_is_itself_without_its_backslashes(text: str) -> None:
    shown = plain(text)
    assert re.sub(r"\\(.)", r"\1", shown) == printable(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]<>#|!&$~]", shown), "all that means something has one before it"


@pytest.mark.parametrize(
    ("texts", "line"), [(0, "|--:|--:|--:|"), (1, "|---|--:|--:|"), (3, "|---|---|---|")], ids=["none", "one", "all"]
)
def test_numbers_stand_on_the_right(texts: int, line: str) -> None:
    found = table(("a", "b", "c"), [("1", "2", "3"), ["4", "5", "6"]], texts=texts)
    assert found == ["| a | b | c |", line, "| 1 | 2 | 3 |", "| 4 | 5 | 6 |"]
