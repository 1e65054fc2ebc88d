"""Line numbers of TOML keys. Each number in these texts is its own line number, so tomllib is the oracle."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpause.config.tomllines import key_lines, line_of


def leaves(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], int]]:
    """Return all numbers in a document, with their paths."""
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, (*path, index))]
    return [(path, value)] if isinstance(value, int) else []


def assert_every_number_is_its_own_line(text: str) -> None:
    """Assert that each number in the text is the line number that `key_lines` finds for its key."""
    lines = key_lines(text)
    numbers = leaves(tomllib.loads(text))

    assert [(path, line) for path, line in numbers] == [(path, line_of(lines, path)) for path, _ in numbers]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a = 1\nb = 2\n\n# c = 9\nc = 5", id="plain"),
        pytest.param("[a]\nb = 2\n[c]\nb = 4\n[a.d]\nb = 6", id="sections"),
        pytest.param(
            "[[a]]\nb = 2\n[[a]]\nb = 4\n[a.c]\nb = 6\n[[a.d]]\nb = 8\n[[a.d]]\nb = 10", id="arrays-of-sections"
        ),
        pytest.param("[ a . 'b c' ]\n d . \"e\\u0041\" = 2\n\t'f.g' = 3", id="blanks-and-quotes-in-keys"),
        pytest.param("'' = 1\na.'' = 2", id="empty-keys"),
        pytest.param('s = """\na = 7\n[b]\n\\""" c = 8"""\nd = 5', id="multi-line-basic-string"),
        pytest.param("s = '''\na = 7\n[b]\n''\\'''\nd = 5", id="multi-line-literal-string"),
        pytest.param('s = """"quoted"""""\nd = 2', id="five-quotes-at-the-end"),
        pytest.param("s = ''''quoted'''''\nd = 2", id="five-apostrophes-at-the-end"),
        pytest.param('s = ""\nt = \'\'\nu = """"""\nd = 4', id="empty-strings"),
        pytest.param('s = "a = 7 # \\" ["\nd = 2', id="escaped-quote"),
        pytest.param("s = 'C:\\'\nd = 2", id="backslash-is-plain-in-literal-strings"),
        pytest.param('s = "\\\\"\nd = 2', id="escaped-backslash"),
        pytest.param('s = """\\\n   x"""\nd = 3', id="line-ending-backslash"),
        pytest.param("a = [1, 1,\n2, # ]\n# x = 9\n'x = [', [4,\n[5]], \"]\"]\nb = 6", id="nested-list"),
        pytest.param("a = {b = 1, c.d = 1, e = [1,\n2, {f = 2}]}\ng = 3", id="inline-table"),
        pytest.param("a = [{b = 1},\n{b = 2, c = '}'},\n]\nd = 4", id="list-of-inline-tables"),
        pytest.param("a = 1\r\n\r\nb = 3\r\n", id="carriage-returns"),
        pytest.param("a = 1979-05-27 07:32:00 # x\nb = 2\nc = 1e3\nd = inf\ne = 5", id="dates-and-floats"),
    ],
)
def test_lines_are_right_in(text: str) -> None:
    assert_every_number_is_its_own_line(text)


def test_a_path_without_a_line_of_its_own_takes_the_nearest_around_it() -> None:
    lines = key_lines("\n[a]\nb = 1\n")

    assert [line_of(lines, p) for p in [("a", "b", 0), ("a",), ("a", "x"), ("x",), ()]] == [3, 2, 2, None, None]


TRICKY = ["a = 1", "[x]", "[[x]]", "#", "'", '"', "''", '""', "\\", "\\\\", "{", "}", "]", ",", " ", "x", "é", "="]


@st.composite
def strings(draw: st.DrawFn, *, multi_line: bool = True) -> str:
    """Return a TOML string of any kind, full of text that looks like structure."""
    kind = draw(st.sampled_from(["'", '"', "'''", '"""'] if multi_line else ["'", '"']))
    body = "".join(draw(st.lists(st.sampled_from([*TRICKY, "\n", "\r\n"] if len(kind) == 3 else TRICKY))))
    if kind == '"':
        return f'"{body.replace(chr(92), chr(92) * 2).replace(kind, chr(92) + kind)}"'
    if kind == '"""':
        escaped = body.replace("\\", "\\\\").replace('""', '"\\"')
        return f'"""{escaped}"""'
    if kind == "'":
        return f"'{body.replace(kind, '')}'"
    while "'''" in body:
        body = body.replace("'''", "''")
    return f"'''{body}'''"


@st.composite
def keys(draw: st.DrawFn) -> str:
    """Return a bare or quoted key with a place for a number, which makes the key unique in the document."""
    return draw(st.sampled_from(["k%d", "'k.%d'", '"k [%d]"', '"\\u0041 = %d"', "k%d.x", 'k%d . "y z"', "'#'.k%d"]))


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return a valid TOML text; every number in it is its own line number."""
    text = ""

    def add(piece: str) -> None:
        nonlocal text
        text += piece

    def line() -> int:
        return text.count("\n") + 1

    def gap() -> str:
        return draw(st.sampled_from(["", " ", "\n", "\t", "\r\n", " # ] } = '\n", "\n\n"]))

    def value(depth: int, *, multi_line: bool = True) -> None:
        kind = draw(st.sampled_from(["number", "number", "string", "other", *(["list", "table"] if depth else [])]))
        if kind == "number":
            add(str(line()))
        elif kind == "string":
            add(draw(strings(multi_line=multi_line)))
        elif kind == "other":
            add(draw(st.sampled_from(["2.5", "inf", "1979-05-27 07:32:00", "-1e-3"])))
        elif kind == "list":
            add("[")
            for _ in range(draw(st.integers(0, 3))):
                add(gap())
                value(depth - 1)
                add(gap() + ",")
            add(gap() + "]")
        else:
            add("{")
            for index in range(draw(st.integers(0, 3))):
                add(f"{', ' if index else ''}{draw(keys()) % index} = ")
                value(depth - 1)
            add("}")

    for number in range(draw(st.integers(0, 12))):
        add(draw(st.sampled_from(["", "\n", "# k = 3\n", "  ", "\r\n"])))
        kind = draw(st.sampled_from(["key", "key", "key", "section", "array", "inner"]))
        if kind == "key":
            add(f"{draw(keys()) % (100 + number)} = ")
            value(2)
        elif kind == "section":
            add(f"[ s{number} . 'a b' ]")
        else:
            add("[[rules]]" if kind == "array" or "[[rules]]\n" not in text else f"[rules.i{number}]")
        add(draw(st.sampled_from(["\n", " # [x]\n", "\r\n"])))
    return text


@given(documents())
def test_lines_are_right_in_any_document(text: str) -> None:
    assert_every_number_is_its_own_line(text)
