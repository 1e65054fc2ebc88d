"""Generic reading of options, each described once, on a field of a frozen dataclass.

A field with a dataclass as its type is a section (`[watermark]`); a tuple of dataclasses is an array of sections
(`[[pods]]`). Every other field is an option: bool, int, float, str, a string enum, or a tuple of these; `X | None` with
the default None may stay unset. A field with a name that Python reserves ends in an underscore (`class_`). The types
must be real when read, so a module with such dataclasses does without `from __future__ import annotations`.

This module knows no option of cgpause (`settings` has them) and opens no file. `render` writes options as text.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar, get_args, get_origin

from cgpause.core.errors import ConfigProblem

P = ParamSpec("P")
T = TypeVar("T")

Path = tuple[str | int, ...]
"""Keys from the root down to a value; an int is a place in an array."""

Type = Any
"""A type as a value: `bool`, a StrEnum, a dataclass, `tuple[str, ...]`. mypy has nothing narrower for all of these."""

_BAD: Final = object()
"""Mark of a refused value; never leaves this module."""


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option or section, beyond its field's type."""

    doc: str
    _: KW_ONLY
    unit: str = ""
    low: float | None = None
    above: float | None = None
    """Like `low`, but this value itself is not allowed."""
    high: float | None = None
    limit: str = ""
    """A limit that depends on another option, in words; `conflicts()` of the dataclass enforces it."""
    paper: str = ""
    """Its name in Kang & Yu 2024."""
    pattern: Callable[[str], bool] | None = None
    """For strings: the test of a value; `allowed` describes it in words."""
    allowed: str = ""
    empty: str = ""
    """Meaning of an empty list, in words."""


def _as_metadata(make: Callable[P, Option]) -> Callable[P, dict[str, Option]]:
    return lambda *args, **kwargs: {"option": make(*args, **kwargs)}


option = _as_metadata(Option)
"""Makes the metadata of a field, as in `name: type = field(metadata=option("What it does.", low=1, high=9))`."""


def _as_field(make: Callable[P, dict[str, Option]]) -> Callable[Concatenate[T, P], T]:
    def make_field(default: T, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return dataclasses.field(default=default, metadata=make(*args, **kwargs))

    return make_field


setting = _as_field(option)
"""Makes the field of an option with a default, as in `name: int = setting(5, "What it does.", low=1, high=9)`."""


class Conflict(NamedTuple):
    """Values that are each allowed, but not together; the method `conflicts` of a dataclass of options yields them."""

    names: tuple[str, ...]
    """Names as written in a file."""
    message: str


class Entry(NamedTuple):
    """A field of a dataclass of options; `default` is dataclasses.MISSING if a file must set it, None if unset."""

    name: str
    """Name as written in a file."""
    field: str
    """Name in the dataclass."""
    kind: Type
    option: Option
    default: Any

    @property
    def item(self) -> Type:
        """The type of a list's items; None if the field is no list."""
        origin: object = get_origin(self.kind)
        return get_args(self.kind)[0] if origin is tuple else None

    @property
    def section(self) -> Type:
        """The dataclass of a section or an array of sections; None for an option."""
        return next((kind for kind in (self.kind, self.item) if dataclasses.is_dataclass(kind)), None)

    def allowed(self) -> str:
        """Return the allowed values in words, as the end of a sentence."""
        if self.section is not None:
            return f"[[{self.name}]] sections" if self.item else "a section with options in it"
        if self.item is not None:
            return f"a list of {_allowed(self.item, self.option, plural=True)}"
        return _allowed(self.kind, self.option)


def entries(kind: Type, base: object = None) -> tuple[Entry, ...]:
    """Return the fields of a dataclass of options; the defaults come from `base` if it is given."""
    return tuple(
        Entry(
            f.name.removesuffix("_"),
            f.name,
            _set_kind(f.type),
            f.metadata["option"],
            f.default if base is None else getattr(base, f.name),
        )
        for f in dataclasses.fields(kind)
    )


def _set_kind(kind: Type) -> Type:
    """Return the type of an option once it is set: `int` for `int | None`."""
    if not isinstance(kind, UnionType):
        return kind
    (set_kind,) = (part for part in get_args(kind) if part is not NoneType)
    return set_kind


def all_entries(kind: Type, base: object = None, path: Path = ()) -> Iterator[tuple[Path, Entry]]:
    """Yield every option and section with its path (without indexes); a section comes before its contents."""
    # Sections come last, as in a TOML file: there, all lines after a header belong to it.
    for entry in sorted(entries(kind, base), key=lambda e: e.section is not None):
        yield (*path, entry.name), entry
        if entry.section is not None:
            yield from all_entries(entry.section, None if entry.item else entry.default, (*path, entry.name))


def read(base: T, table: Mapping[str, object]) -> tuple[T, list[ConfigProblem]]:
    """Return `base` with the values of a table from tomllib, and the mistakes.

    Where a value is wrong, that of `base` stays.
    """
    reader = _Reader(type(base))
    result: T = reader.section(type(base), base, table, ())
    return result, reader.mistakes


class _Reader:
    """A reader that collects mistakes instead of stopping at the first."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.places = tuple(all_entries(root))
        self.mistakes: list[ConfigProblem] = []

    def section(self, kind: Type, base: object, table: Mapping[str, object], path: Path) -> Any:  # noqa: ANN401 - a dataclass of `kind`, or _BAD
        """Return one section; _BAD if a value is wrong and `base` has no value for it."""
        known = entries(kind, base)
        values: dict[str, object] = {}
        doubtful = set()
        names = {entry.name for entry in known}
        for key in [key for key in table if key not in names]:
            gone = getattr(self.root, "GONE", {}).get(dotted((*path, key)))
            self._add((*path, key), gone or self._unknown(key, table[key], known, path))
        for entry in known:
            before = len(self.mistakes)
            where = (*path, entry.name)
            if entry.name in table:
                values[entry.field] = self._value(entry, table[entry.name], where)
            elif entry.default is dataclasses.MISSING:
                values[entry.field] = self._add(where, f"missing; allowed: {entry.allowed()}")
            else:
                values[entry.field] = entry.default
            if len(self.mistakes) > before:
                doubtful.add(entry.name)
        if any(value is _BAD for value in values.values()):
            return _BAD
        result = kind(**values)
        for conflict in getattr(result, "conflicts", tuple)():
            if doubtful.isdisjoint(conflict.names):
                self._conflict(conflict, table, path)
        return result

    def _add(self, path: Path, message: str) -> object:
        self.mistakes.append(ConfigProblem(None, dotted(path), message))
        return _BAD

    def _conflict(self, conflict: Conflict, table: Mapping[str, object], path: Path) -> None:
        given = [name for name in conflict.names if name in table]
        # If no name is given, the message itself says so.
        absent = "".join(f"; {name} is not set here" for name in conflict.names if given and name not in table)
        self._add((*path, *(given or conflict.names)[:1]), conflict.message + absent)

    def _value(self, entry: Entry, value: object, path: Path) -> object:
        """Return the value of an option or section; that of the base, or _BAD without one, if it is wrong."""
        fallback = _BAD if entry.default is dataclasses.MISSING else entry.default
        if entry.item is None:
            result = self._one(entry, entry.kind, fallback, value, path)
        elif isinstance(value, list):
            items = [self._one(entry, entry.item, None, item, (*path, index)) for index, item in enumerate(value)]
            result = _BAD if any(item is _BAD for item in items) else tuple(items)
        else:
            result = self._add(path, f"found {shown(value)}; allowed: {entry.allowed()}")
        return fallback if result is _BAD else result

    def _one(self, entry: Entry, kind: Type, base: object, value: object, path: Path) -> object:
        """Return a value, or an item of a list, of this kind; _BAD if it is wrong."""
        if entry.section is not None:
            if isinstance(value, Mapping):
                return self.section(kind, base, value, path)
            return self._add(path, f"found {shown(value)}; allowed: {entry.allowed()}")
        converted = _scalar(kind, entry.option, value)
        if converted is not _BAD:
            return converted
        hint = _nearest(value, list(kind)) if isinstance(value, str) and issubclass(kind, StrEnum) else ""
        return self._add(path, f"found {shown(value)}; allowed: {_allowed(kind, entry.option)}{hint}")

    def _unknown(self, key: str, value: object, known: Iterable[Entry], path: Path) -> str:
        is_section = isinstance(value, Mapping) or (
            isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
        )
        what = "section" if is_section else "option"
        here = tuple(part for part in path if isinstance(part, str))
        homes = [
            header(p[:-1], self.root)
            for p, entry in self.places
            if p[-1] == key and p[:-1] != here and (entry.section is not None) == is_section
        ]
        if homes:
            return f"unknown {what} here; it belongs in {' or '.join(homes)}"
        names = [entry.name for entry in known]
        return f"unknown {what}{_nearest(key, names)}; known here: {', '.join(names)}"


def _scalar(kind: Type, option: Option, value: object) -> object:
    """Return a value, neither list nor section, converted to `kind`; _BAD if it is not allowed."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if _in_range(option, value) else _BAD
    if type(value) is not (str if issubclass(kind, str) else kind):  # not isinstance: a bool is an int
        return _BAD
    if issubclass(kind, StrEnum):
        return kind(value) if value in list(kind) else _BAD
    if isinstance(value, str):
        return value if option.pattern is None or option.pattern(value) else _BAD
    return value if not isinstance(value, int | float) or _in_range(option, value) else _BAD


def _in_range(option: Option, value: int | float) -> bool:
    # Every comparison with nan is false, so nan fails: each must be true to pass. Ints of any size compare.
    return (
        (option.low is None or option.low <= value)
        and (option.above is None or option.above < value)
        and (option.high is None or value <= option.high)
        and (isinstance(value, int) or math.isfinite(value))
    )


def _allowed(kind: Type, option: Option, *, plural: bool = False) -> str:
    if kind is bool:
        return "true or false"
    if issubclass(kind, StrEnum):
        return (", " if plural else " or ").join(quoted(choice) for choice in kind)
    if kind is str:
        return option.allowed or "a string"
    text = "a whole number" if kind is int else "a number"
    if option.low is not None:
        text += f" from {option.low:.12g}"
    if option.above is not None:
        text += f" above {option.above:.12g}"
    if option.high is not None:
        text += f" to {option.high:.12g}" if option.low is not None else f" up to {option.high:.12g}"
    return text + (f", {option.limit}" if option.limit else "")


def shown(value: object) -> str:
    """Return a value from a file as text: on one line, short, without control characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value) if len(value) <= 60 else f"{quoted(value[:57])}..."
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"  # Python refuses to print the really long ones
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "a section"
    return "a list" if isinstance(value, list | tuple) else f"a date or time ({value})"


def _nearest(word: str, known: list[str]) -> str:
    import difflib  # noqa: PLC0415 - only a mistake needs it

    # Only short, lower-case words are compared: the time grows with the product of the lengths.
    spellings = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word[:60].lower().replace("-", "_"), spellings, n=1)
    return f'; did you mean "{spellings[near[0]]}"?' if near else ""


def header(path: Path, root: Type) -> str:
    """Return the header of a section as it stands in a file."""
    if not path:
        return "the part above all sections"
    is_array = any(p == path and entry.item is not None for p, entry in all_entries(root))
    return f"[[{dotted(path)}]]" if is_array else f"[{dotted(path)}]"


def quoted(text: str) -> str:
    """Return a string quoted as in TOML; any character is allowed in it."""
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


def dotted(path: Path) -> str:
    """Return a path as text for people: `reserve.sacrifice`, and `pods[2].match` in the second of [[pods]]."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            is_bare = part.isascii() and part.replace("_", "").replace("-", "").isalnum()
            name = part if is_bare and len(part) <= 60 else shown(part)
            text += f".{name}" if text else name
    return text
