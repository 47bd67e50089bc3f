"""What all figures share: fonts and lines, the suffixes, and how matplotlib is asked for the content of a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hyperparallel.errors import HyperParallelError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".svg", ".png")
_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a figure looks the same on every machine
    "font.size": 9,
    "svg.hashsalt": "hyperparallel",
    "hatch.linewidth": 0.6,
    "axes.linewidth": 0.6,
}


def picture(draw: Callable[[type[Figure]], Figure], path: str | Path) -> bytes:
    """Draw in the house style and return the content of the file; the same drawing gives the same bytes.

    Args:
        draw: makes the figure with the class that it is given.
        path: ends in .svg or .png; only the suffix counts.

    Raises:
        HyperParallelError: matplotlib is missing, or another suffix.
    """
    suffix = check_suffix(path)
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError:
        raise HyperParallelError("a figure needs matplotlib; pip install 'hyperparallel[figure]'") from None
    with matplotlib.style.context(["default", _STYLE]):
        content = io.BytesIO()
        metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
        draw(Figure).savefig(content, format=suffix[1:], dpi=144, metadata=metadata)
    return content.getvalue()


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a figure's path.

    Raises:
        HyperParallelError: it is neither .svg nor .png.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise HyperParallelError(f"{str(path)!r} ends in {suffix or 'no suffix'!r}; a figure ends in .svg or .png")
    return suffix
