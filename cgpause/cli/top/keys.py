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
            taken = self._take(keys)
            if not taken:
                break
            self._text = self._text[taken:]
        return keys

    def flush(self) -> list[str]:
        """End a pending sequence: return the ESC key for a lone ESC, and drop anything else."""
        lone, self._text = self._text == "\x1b", ""
        return [ESC] if lone else []

    def _take(self, keys: list[str]) -> int:
        """Append the first key to `keys`, if it is known; return its length in characters, or 0 if incomplete."""
        text = self._text
        if text[0] != "\x1b":
            char = text[0]
            if char in _CONTROLS:
                keys.append(_CONTROLS[char])
            elif char.isprintable():
                keys.append(char)
            return 1
        match = _CSI.match(text)
        if match is not None:
            sequence, final = match[0][2:-1], match[1]
            key = _TILDE.get(sequence.partition(";")[0]) if final == "~" else _FINAL.get(final)
            if key is not None:
                keys.append(key)
            return match.end()
        if text[1:2] == "O":
            if len(text) < 3:
                return 0
            key = ENTER if text[2] == "M" else _FINAL.get(text[2])
            if key is not None:
                keys.append(key)
            return 3
        if text[1:2] == "\x1b":  # an ESC key, then an ESC key or a sequence
            keys.append(ESC)
            return 1
        string = _STRING.match(text)
        if string is not None:
            return string.end()
        if (_CSI_PREFIX.fullmatch(text) or _STRING_PREFIX.fullmatch(text)) and len(text) <= _LONGEST:
            return 0
        # An invalid sequence, of which no byte is a key; or Alt and a key.
        return len(text) if text[1:2] == "[" or len(text) > _LONGEST else 2
