"""How a picture of docs/ is saved, drawn by matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cgpause.offline.pictures import png

_COLOURS = 96
"""Of the palette the pictures are reduced to: a third of the size, and nothing to be seen of it."""


def save(figure: Figure, path: Path, says: str = "") -> None:
    """Write a figure as PNG; `says` is kept in the file, for `what_it_says`.

    Raises:
        OSError: it cannot be written.
    """
    info = PngInfo()
    if says:
        info.add_text("Description", says)
    with Image.open(io.BytesIO(png(figure))) as drawn:
        few = drawn.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        few.save(path, format="png", optimize=True, pnginfo=info)


def what_it_says(path: Path) -> str:
    """The text that a picture was saved with."""
    with Image.open(path) as drawn:
        return str(drawn.info.get("Description", ""))
