"""The largest sizes and numbers that are taken, wherever they are written: in a file or on a command line.

They are far above what a job needs. A larger one is a slip, which would fill the memory before a word is said.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_RANKS = 4096
"""Slabs of one pipeline: ranks, times the count of an interleaved region."""

MAX_WORKERS = 4096
"""Workers of a job, P x D x T."""

MAX_CELLS = 500_000
"""Slabs x micro-batches of a plan or a table: about a minute and a gigabyte."""

MAX_PLANNING_S = 600
"""Seconds that the planner is expected to take at most, whatever limit it is given."""

MAX_BATCH = 65_536
"""Samples of a step over all replicas."""

MAX_STEPS = 1_000_000_000
"""Steps of a job, and samples that are read after it."""

MAX_SEED = 2**63 - 1
"""Seed of anything: a whole number of 64 bits."""

MAX_LAYERS = 10_000
"""Layers of a part of a model."""

MAX_WIDTH = 2**20
"""Features of a row, of an MLP inside, heads, and experts."""

MAX_VOCABULARY = 2**24
"""Ids of tokens."""

MAX_PARAMETERS = 10**13
"""Parameters of a part of a model."""

MAX_TOKENS = 2**22
"""Tokens of a text, and patches of an image."""

MAX_IMAGES = 10_000
"""Images of a sample."""

MAX_SIDE = 2**14
"""Pixels of a side of an image."""

MAX_PIXELS = 2**31
"""Values of all images of a sample."""

MAX_TIME = 1e12
"""Time in any unit; sums over a plan then stay far from the end of the float range."""

MAX_WAIT = 1e7
"""Seconds of the clock that something may wait or work; some systems count no further."""

MAX_NUMBER = 1e38
"""Any other number, the largest power of ten that a float32 holds."""

Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Rate = Annotated[float, Field(ge=1e-9, le=1e12)]
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]
Wait = Annotated[float, Field(gt=0, le=MAX_WAIT)]
Number = Annotated[float, Field(ge=0, le=MAX_NUMBER)]


def check_sample(images: int, channels: int, side: int) -> None:
    """Refuse images of a sample that no memory holds.

    Args:
        images: the most of a sample.
        channels: of an image.
        side: of an image, pixels.

    Raises:
        ValueError: they are too large.
    """
    if images * channels * side**2 > MAX_PIXELS:
        raise ValueError(
            f"max_images {images} of {channels} x {side} x {side} are {images * channels * side**2} values a sample; "
            f"at most {MAX_PIXELS} are taken, so lower max_images or image_size"
        )


def check_parameters(count: int) -> None:
    """Refuse a part of a model that is larger than any.

    Args:
        count: its parameters, about.

    Raises:
        ValueError: they are too many.
    """
    if count > MAX_PARAMETERS:
        raise ValueError(f"these sizes make about {count:.1e} parameters; at most {MAX_PARAMETERS:.0e} are taken")


def size_problem(ranks: int, micro_batches: int, count: int, names: tuple[str, str]) -> str | None:
    """Say why a plan is too large, if it is.

    Args:
        ranks: P.
        micro_batches: M.
        count: n of the largest `*n` in the schedule.
        names: what the user calls P and M.
    """
    slabs = f"{names[0]} {ranks}{f' x {count} (of *{count})' if count > 1 else ''}"
    if ranks * count > MAX_RANKS:
        return f"{slabs} makes {ranks * count} slabs; at most {MAX_RANKS} are supported"
    cells = ranks * count * micro_batches
    if cells > MAX_CELLS:
        return (
            f"{slabs} x {names[1]} {micro_batches} makes {cells} cells; at most {MAX_CELLS} are supported, so use "
            "fewer micro-batches"
        )
    return None
