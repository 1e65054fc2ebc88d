"""Style and files of the pictures of `lab simulate` and `lab replay`, drawn by matplotlib (the extra `plots`).

With one version of matplotlib, the same values make the same bytes: the file has no date, and matplotlibrc is ignored.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cgpause.core.errors import CgpauseError, HostError, UsageError, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: Final = {"none": "#8a8a8a", "watermark": "#E69F00", "reserve": "#0072B2"}
"""Colours of the policies, distinct for colour-blind readers, too (Okabe & Ito)."""
_DPI = 110
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a $ in a name is a $
}
_INSTALL: Final = "pip install 'cgpause[plots]', or beside the Debian package: apt-get install python3-matplotlib"


def check(path: str) -> None:
    """Check that a picture can be drawn and written, before a run that can take hours; leave no file.

    Raises:
        UsageError: the name does not end in .png.
        HostError: matplotlib is not installed.
        CgpauseError: the file exists, or cannot be made.
    """
    if not path.endswith(".png"):
        raise UsageError(f"--picture {printable(path)}: the picture is a PNG; name a file *.png")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != "matplotlib":
            raise
        raise HostError(f"no picture, for matplotlib is not installed here: {_INSTALL}") from e
    write(path, b"")
    os.unlink(path)


def write(path: str, picture: bytes) -> None:
    """Write a new file; after an error there is none.

    Raises:
        CgpauseError: the file exists, or cannot be written.
    """
    try:
        file = open(path, "xb")  # noqa: SIM115 - a file that was there must not be removed below
        try:
            with file:
                file.write(picture)
        except BaseException:
            os.unlink(path)
            raise
    except OSError as e:
        raise CgpauseError(f"--picture {printable(path)}: {e.strerror}; name another file") from e


@contextmanager
def drawing() -> Iterator[None]:
    """Use the style of cgpause in the body, regardless of any configuration."""
    import matplotlib.style  # noqa: PLC0415 - an extra

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
