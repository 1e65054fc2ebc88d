"""What a terminal sends → keys; pure. A key is a character, or a name of several for those that have none.

Sequences: ECMA-48 (CSI), DEC's SS3 for arrows in application mode, as terminfo has them for xterm, screen and linux.
What is not known is passed over whole: Alt-p, a mouse report or a paste's brackets never look like a letter.
"""

from __future__ import annotations

import codecs
import re

ESC = "esc"
UP, DOWN, LEFT, RIGHT = "up", "down", "left", "right"
HOME, END, PAGE_UP, PAGE_DOWN = "home", "end", "page up", "page down"
ENTER, BACKSPACE, REDRAW = "enter", "backspace", "redraw"

LONE_ESC_S = 0.1
"""An ESC after which nothing came for so long was the key; the bytes of a sequence can arrive apart over ssh."""

_CSI = re.compile(r"\x1b\[[0-?]*[ -/]*([@-~])")
_CSI_PREFIX = re.compile(r"\x1b(?:\[[0-?]*[ -/]*)?")
_LONGEST = 64
_FINAL = {"A": UP, "B": DOWN, "C": RIGHT, "D": LEFT, "H": HOME, "F": END}
_TILDE = {"1": HOME, "7": HOME, "4": END, "8": END, "5": PAGE_UP, "6": PAGE_DOWN}
_CONTROLS = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x10": UP, "\x0e": DOWN, "\x0c": REDRAW}


class Decoder:
    """Takes bytes as they come and gives keys."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode
        self._text = ""

    @property
    def pending(self) -> bool:
        """Whether what came so far may be the beginning of a sequence, or an ESC by itself."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        """Take in bytes; returns the keys that are complete."""
        self._text += self._decode(data)
        keys: list[str] = []
        while self._text:
            taken = self._take(keys)
            if not taken:
                break
            self._text = self._text[taken:]
        return keys

    def flush(self) -> list[str]:
        """Nothing more came: an ESC alone is the key, the beginning of a sequence is nothing."""
        lone, self._text = self._text == "\x1b", ""
        return [ESC] if lone else []

    def _take(self, keys: list[str]) -> int:
        """Add the first key, if it is one; returns how many characters it took, 0 when it is not complete."""
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
            final = match[1]
            number = match[0][2:-1].partition(";")[0]
            key = _TILDE.get(number) if final == "~" else _FINAL.get(final)
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
        if text[1:2] == "\x1b":  # two ESC keys, or one and a sequence
            keys.append(ESC)
            return 1
        if _CSI_PREFIX.fullmatch(text) and len(text) <= _LONGEST:
            return 0
        return 1 if text[1:2] == "[" else 2  # not a sequence; or Alt and a key
