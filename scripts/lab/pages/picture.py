"""Saving of docs/ pictures that matplotlib draws (the extra `plots`)."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from cgpause.offline.pictures import png

_COLOURS = 96
"""Number of colours in a saved picture: it shrinks the file to a third without a visible difference."""


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG.

    Raises:
        OSError: the file cannot be written.
    """
    with Image.open(io.BytesIO(png(figure))) as drawn:
        few = drawn.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(path, format="png", optimize=True)
