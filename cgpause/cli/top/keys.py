"""Decoder of a terminal's bytes to keys; pure. A key is one character, or a name such as "page up".

Sequences: ECMA-48 (CSI), and DEC's SS3 for arrows in application mode, as terminfo has them for xterm, screen and
linux. An unknown sequence is skipped whole: Alt-p or the brackets of a paste never count as a letter.
"""

from __future__ import annotations

import codecs
import re

ESC = "esc"
UP, DOWN = "up", "down"
HOME, END, PAGE_UP, PAGE_DOWN = "home", "end", "page up", "page down"
ENTER, BACKSPACE, REDRAW = "enter", "backspace", "redraw"

LONE_ESC_S = 0.1
"""Time after which an ESC without further bytes is the key; over ssh, the bytes of a sequence can arrive apart."""

_CSI = re.compile(r"\x1b\[[0-?]*[ -/]*([@-~])")
_CSI_PREFIX = re.compile(r"\x1b(?:\[[0-?]*[ -/]*)?")
_STRING = re.compile(r"\x1b[P\]X^_].*?(?:\x07|\x1b\\)", re.DOTALL)
"""DCS, OSC, SOS, PM or APC with its text: a terminal answers questions of other programs so."""
_STRING_PREFIX = re.compile(r"\x1b[P\]X^_].*", re.DOTALL)
_LONGEST = 4096
_FINAL = {"A": UP, "B": DOWN, "H": HOME, "F": END}
_TILDE = {"1": HOME, "7": HOME, "4": END, "8": END, "5": PAGE_UP, "6": PAGE_DOWN}
_CONTROLS = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x10": UP, "\x0e": DOWN, "\x0c": REDRAW}


class KeyDecoder:
    """Incremental decoder from bytes to keys."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode
        self._text = ""

    @property
    def pending(self) -> bool:
        """Whether the bytes so far may be an incomplete sequence, or an ESC key."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; return the keys that are complete."""
        self._text += self._decode(data)
        keys: list[str] = []
        while self._text:
            length, key = self._first()
            if not length:
                break
            self._text = self._text[length:]
            if key is not None:
                keys.append(key)
        return keys

    def flush(self) -> list[str]:
        """End a pending sequence: return the ESC key for a lone ESC, and drop anything else."""
        lone, self._text = self._text == "\x1b", ""
        return [ESC] if lone else []

    def _first(self) -> tuple[int, str | None]:
        """Return the length in characters of the first key, 0 if it is incomplete, and the key, None if unknown."""
        text = self._text
        if text[0] != "\x1b":
            return 1, text[0] if text[0].isprintable() else _CONTROLS.get(text[0])
        match = _CSI.match(text)
        if match is not None:
            sequence, final = match[0][2:-1], match[1]
            key = _TILDE.get(sequence.partition(";")[0]) if final == "~" else _FINAL.get(final)
            return match.end(), key
        if text[1:2] == "O":
            if len(text) < 3:
                return 0, None
            return 3, ENTER if text[2] == "M" else _FINAL.get(text[2])
        if text[1:2] == "\x1b":  # an ESC key, then an ESC key or a sequence
            return 1, ESC
        string = _STRING.match(text)
        if string is not None:
            return string.end(), None
        if (_CSI_PREFIX.fullmatch(text) or _STRING_PREFIX.fullmatch(text)) and len(text) <= _LONGEST:
            return 0, None
        # An invalid sequence, of which no byte is a key; or Alt and a key.
        length = len(text) if text[1:2] == "[" or len(text) > _LONGEST else 2
        return length, None
