"""The line of each key in a TOML text, because tomllib does not report it.

This is a scanner, not a second parser: it relies on tomllib having accepted the text. It follows headers, keys (bare,
quoted, dotted), strings (all four kinds), arrays and inline tables, and skips all other values. On text that tomllib
would refuse it still ends, with some lines or none. Only error messages need the lines.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

Path = tuple[str | int, ...]
"""Keys from the root down to a value; an int is a place in an array."""

# No option lies deeper than 4. Deeper values are skipped without recursion, so nesting cannot exhaust the stack.
_DEPTH = 8

_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line (from 1) where each table, key and array item of a TOML text first appears."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """Return the line of `path`, or of the nearest path around it that has one; None without any."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


class _Scanner:
    """One pass over a text; each step moves `pos` forward, so it ends on any input."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.lines: dict[Path, int] = {}
        self._last_item: dict[Path, int] = {}  # of each array of tables, for the headers below it
        self._line = 1
        self._counted_to = 0

    def document(self) -> None:
        table: Path = ()
        while self._skip(_GAP):
            if self._peek() == "[":
                table = self._header()
            else:
                self._assignment(table)

    def _peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Skip a match of `pattern` here, if there is one; return the next character, "" at the end."""
        if found := pattern.match(self.text, self.pos):
            self.pos = found.end()
        return self._peek()

    def _note(self, path: Path) -> None:
        self._line += self.text.count("\n", self._counted_to, self.pos)
        self._counted_to = self.pos
        self.lines.setdefault(path, self._line)

    def _header(self) -> Path:
        is_array = self.text.startswith("[[", self.pos)
        self.pos += 2 if is_array else 1
        keys = self._keys()
        path: Path = ()
        for depth, key in enumerate(keys, start=1):
            path += (key,)
            self._note(path)
            if is_array and depth == len(keys):
                self._last_item[path] = self._last_item.get(path, -1) + 1
            if path in self._last_item:
                path += (self._last_item[path],)
                self._note(path)
        self.pos += 2 if is_array else 1
        return path

    def _assignment(self, table: Path) -> None:
        path = table
        for key in self._keys():
            path += (key,)
            self._note(path)
        self.pos += 1  # =
        self._skip(_BLANK)
        self._value(path)

    def _keys(self) -> list[str]:
        """Read a key, dotted or not, and the blanks around it; return its first _DEPTH parts."""
        keys: list[str] = []
        while True:
            quoted = self._skip(_BLANK) in ("'", '"')
            start = self.pos
            if quoted:
                self._string()
            else:
                self._skip(_BARE_KEY)
            key = self.text[start : self.pos]
            if len(keys) < _DEPTH:
                keys.append(_unquoted(key) if quoted else key)
            if self._skip(_BLANK) != ".":
                return keys
            self.pos += 1

    def _value(self, path: Path) -> None:
        character = self._peek()
        if character in ("[", "{") and len(path) > _DEPTH:
            self._brackets()
        elif character == "[":
            self._array(path)
        elif character == "{":
            self._inline_table(path)
        elif character in ("'", '"'):
            self._string()
        elif self._skip(_PLAIN_VALUE) == character:
            self.pos += 1  # nothing valid here; go on all the same

    def _array(self, path: Path) -> None:
        self.pos += 1
        index = 0
        while self._skip(_GAP) not in ("", "]"):
            if self._peek() == ",":
                self.pos += 1
                continue
            self._note((*path, index))
            self._value((*path, index))
            index += 1
        self.pos += 1

    def _inline_table(self, path: Path) -> None:
        self.pos += 1
        while self._skip(_GAP) not in ("", "}"):
            if self._peek() == ",":
                self.pos += 1
                continue
            self._assignment(path)
        self.pos += 1

    def _brackets(self) -> None:
        """Skip an array or inline table with its contents."""
        depth = 0
        while character := self._skip(_GAP):
            if character in ("'", '"'):
                self._string()
                continue
            self.pos += 1
            if character in ("[", "{"):
                depth += 1
            elif character in ("]", "}"):
                depth -= 1
                if depth == 0:
                    return

    def _string(self) -> None:
        quote = self._peek()
        end = quote * 3 if self.text.startswith(quote * 3, self.pos) else quote
        self.pos += len(end)
        while self.pos < len(self.text) and not self.text.startswith(end, self.pos):
            self.pos += 2 if quote == '"' and self._peek() == "\\" else 1
        self.pos += len(end)
        # A multi-line string may end in up to two quotes of its own: """so "it" says "so"""""
        for _ in range(2 if len(end) == 3 else 0):
            self.pos += self._peek() == quote


def _unquoted(quoted: str) -> str:
    try:
        return str(tomllib.loads(f"key = {quoted}")["key"])
    except tomllib.TOMLDecodeError:
        return quoted
