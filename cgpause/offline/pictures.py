"""Style and saving of the pictures of `simulate` and `replay`; needs matplotlib (the extra `plots`).

The same values make the same bytes, with the same matplotlib: no date is in the file, and nobody's matplotlibrc counts.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib.style
from matplotlib.figure import Figure

from cgpause.core.errors import printable

COLOURS: Final = {"none": "#8a8a8a", "watermark": "#E69F00", "reserve": "#0072B2"}
"""Of each policy; told apart by those who see no red or green, too (Okabe & Ito)."""
_DPI = 110
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a $ in a name is a $
}


@contextmanager
def drawing() -> Iterator[None]:
    """For the body: our style, whatever else is configured."""
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # A name may have letters that the font has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def png(figure: Figure) -> bytes:
    """A figure as PNG; to be called while it is drawn."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
    return image.getvalue()


def short(name: str, most: int) -> str:
    """The end of a name of unknown origin, in so many letters: files differ there."""
    shown = printable(name)
    return shown if len(shown) <= most else f"…{shown[1 - most :]}"
