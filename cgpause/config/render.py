"""Options as text: a commented TOML file, or a Markdown table; `options` describes the options themselves.

The daemon writes no such text, so callers import this module only when they write one.
"""

import dataclasses
import textwrap
from collections.abc import Iterator
from enum import StrEnum

from cgpause.config.options import Entry, Path, Type, all_entries, entries, header, quoted

_WIDTH = 100


def render(value: object, defaults: object, preamble: str) -> str:
    """Return `value` as TOML that reads back as `value`, with a comment on each option and section."""
    lines = [*_comment(preamble), "", *_section(type(value), value, defaults, (), type(value))]
    return "\n".join(lines) + "\n"


def table(defaults: object) -> str:
    """Return a Markdown table of all options."""
    rows = [
        ("Option", "Default", "Allowed", "Paper", "Meaning"),
        ("---", "---", "---", "---", "---"),
    ]
    for path, entry in all_entries(type(defaults), defaults):
        if entry.section is None:
            where = header(path[:-1], type(defaults)) if path[:-1] else ""
            default = "(required)" if entry.default is dataclasses.MISSING else f"`{_toml(entry.default)}`"
            default = "(unset)" if entry.default is None else default
            paper = f"`{entry.option.paper}`" if entry.option.paper else ""
            name = f"`{where} {entry.name}`" if where else f"`{entry.name}`"
            rows.append((name, default, _with_unit(entry), paper, _full_doc(entry)))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def _section(kind: Type, value: object, defaults: object, path: Path, root: Type) -> Iterator[str]:
    """Yield the lines for the options of a section, then for the sections in it."""
    described = entries(kind, defaults)
    for entry in described:
        if entry.section is None:
            yield from _comment(describe(entry))
            yield f"{entry.name} = {_toml(getattr(value, entry.field))}"
            yield ""
    for entry in described:
        if entry.section is None:
            continue
        where = (*path, entry.name)
        inner = getattr(value, entry.field)
        yield from _comment(entry.option.doc)
        if entry.item is None:
            yield header(where, root)
            yield from _section(entry.section, inner, entry.default, where, root)
        else:
            yield from _array(entry, inner, where, root)


def _array(entry: Entry, rules: tuple[object, ...], path: Path, root: Type) -> Iterator[str]:
    """Yield the lines for an array of sections: the options of one in comments, then each section."""
    for inner in entries(entry.section):
        yield from _comment(f"{inner.name}: {describe(inner)}", indent="  ")
    for rule in rules:
        yield ""
        yield header(path, root)
        for inner in entries(entry.section):
            value = getattr(rule, inner.field)
            if value != inner.default:
                yield f"{inner.name} = {_toml(value)}"


def _comment(text: str, indent: str = "") -> Iterator[str]:
    for paragraph in text.split("\n"):
        if paragraph.startswith("    "):
            yield f"# {paragraph}"
        else:
            wrapped = textwrap.wrap(
                paragraph, _WIDTH, initial_indent=f"# {indent}", subsequent_indent=f"# {indent}{indent}"
            )
            yield from wrapped or ["#"]


def describe(entry: Entry) -> str:
    """Return two lines: the meaning of an option, and its allowed values and default."""
    paper = f" In the paper: {entry.option.paper}." if entry.option.paper else ""
    return f"{_full_doc(entry)}\nAllowed: {_with_unit(entry)}. {_default(entry)}.{paper}"


def _default(entry: Entry) -> str:
    if entry.default is dataclasses.MISSING:
        return "Required"
    return "Unset by default" if entry.default is None else f"Default: {_toml(entry.default)}"


def _full_doc(entry: Entry) -> str:
    return f"{entry.option.doc} {entry.option.empty}".rstrip()


def _with_unit(entry: Entry) -> str:
    return f"{entry.allowed()} ({entry.option.unit})" if entry.option.unit else entry.allowed()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return quoted(str(value)) if isinstance(value, str | StrEnum) else repr(value)
