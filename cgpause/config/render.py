"""A configuration as text: a commented TOML file; `options` describes the options themselves.

The daemon writes no such text, so neither it nor `load` imports this module.
"""

import dataclasses
import textwrap
from collections.abc import Iterator
from enum import StrEnum

from cgpause.config.load import MAX_LINE_CHARACTERS
from cgpause.config.options import Entry, Path, Type, entries, header, quoted
from cgpause.config.settings import Config

_WIDTH = 100
_PREAMBLE = (
    "Configuration of cgpause: every option, with what it means, its unit, what is allowed and its default.\n"
    "Whatever is left out has its default. `cgpause config --check` reports all mistakes at once."
)


def render_config(config: Config) -> str:
    """Return the text of a complete, commented file for a configuration; `parse_config` reads the same back."""
    lines = [*_comment(_PREAMBLE), "", *_section(Config, config, Config(), ())]
    return "\n".join(lines) + "\n"


def _section(kind: Type, value: object, defaults: object, path: Path) -> Iterator[str]:
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
            yield header(where, Config)
            yield from _section(entry.section, inner, entry.default, where)
        else:
            yield from _array(entry, inner, where)


def _array(entry: Entry, rules: tuple[object, ...], path: Path) -> Iterator[str]:
    """Yield the lines for an array of sections: the options of one in comments, then each section."""
    for inner in entries(entry.section):
        yield from _comment(f"{inner.name}: {describe(inner)}", indent="  ")
    for rule in rules:
        yield ""
        yield header(path, Config)
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
        line = f"[{', '.join(map(toml, value))}]"
        # `load` refuses longer lines.
        return line if len(line) + _WIDTH < MAX_LINE_CHARACTERS else "[\n  " + ",\n  ".join(map(toml, value)) + ",\n]"
    return quoted(str(value)) if isinstance(value, str | StrEnum) else repr(value)
