"""Options as text: a commented TOML file; `options` describes the options themselves.

The daemon writes no such text, so callers import this module only when they write one.
"""

import dataclasses
import textwrap
from collections.abc import Iterator
from enum import StrEnum

from cgpause.config.options import Entry, Path, Type, entries, header, quoted

_WIDTH = 100


def render(value: object, defaults: object, preamble: str) -> str:
    """Return `value` as TOML that reads back as `value`, with a comment on each option and section."""
    lines = [*_comment(preamble), "", *_section(type(value), value, defaults, (), type(value))]
    return "\n".join(lines) + "\n"


def _section(kind: Type, value: object, defaults: object, path: Path, root: Type) -> Iterator[str]:
    """Yield the lines for the options of a section, then for the sections in it."""
    described = entries(kind, defaults)
    for entry in described:
        if entry.section is None:
            yield from _comment(describe(entry))
            yield f"{entry.name} = {toml(getattr(value, entry.field))}"
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
                yield f"{inner.name} = {toml(value)}"


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
    option = entry.option
    unit = f" ({option.unit})" if option.unit else ""
    paper = f" In the paper: {option.paper}." if option.paper else ""
    return f"{option.doc} {option.empty}".rstrip() + f"\nAllowed: {entry.allowed()}{unit}. {_default(entry)}.{paper}"


def _default(entry: Entry) -> str:
    if entry.default is dataclasses.MISSING:
        return "Required"
    return "Unset by default" if entry.default is None else f"Default: {toml(entry.default)}"


def toml(value: object) -> str:
    """Return the value of an option as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return quoted(str(value)) if isinstance(value, str | StrEnum) else repr(value)
