"""Saving of docs/ pictures that matplotlib draws (the extra `plots`)."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cgpause.offline.pictures import png

_COLOURS = 96
"""Number of colours in a saved picture: it shrinks the file to a third without a visible difference."""


def save(figure: Figure, path: Path, says: str = "") -> None:
    """Write a figure as PNG; the file also stores the text `says`, which `what_it_says` reads.

    Raises:
        OSError: the file cannot be written.
    """
    info = PngInfo()
    if says:
        info.add_text("Description", says)
    with Image.open(io.BytesIO(png(figure))) as drawn:
        few = drawn.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(path, format="png", optimize=True, pnginfo=info)


def what_it_says(path: Path) -> str:
    """Return the text that `save` stored in a picture; empty if there is none."""
    with Image.open(path) as drawn:
        return str(drawn.info.get("Description", ""))
