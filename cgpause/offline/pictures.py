"""Style and saving of the pictures of `simulate` and `replay`; needs matplotlib (the extra `plots`).

With one version of matplotlib, the same values make the same bytes: the file has no date, and matplotlibrc is ignored.
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
"""Colours of the policies, distinct for colour-blind readers, too (Okabe & Ito)."""
_DPI = 110
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a $ in a name is a $
}


@contextmanager
def drawing() -> Iterator[None]:
    """Use the style of cgpause in the body, regardless of any configuration."""
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        # The font may lack letters of a name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def png(figure: Figure) -> bytes:
    """Return a figure as PNG; the caller is still in the style."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI, metadata={"Software": None})
    return image.getvalue()


def short(name: str, most: int) -> str:
    """Return the last letters of a name of unknown origin: file names differ at their ends."""
    shown = printable(name)
    return shown if len(shown) <= most else f"…{shown[1 - most :]}"
