"""What runners and files agree on about tensors: the names of moments, and how T workers of a stage share a parameter.

Numpy alone, so that files are read and joined without MindSpore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyperparallel.errors import ModelError

FIRST, SECOND = "optimizer.first.", "optimizer.second."
"""What stands before a weight's name in the names of its two moments."""

MOMENTS = (FIRST, SECOND)


@dataclass(frozen=True)
class Shard:
    """How a parameter is cut: along one axis, each of its blocks into T equal parts.

    Args:
        axis: the axis that is cut.
        blocks: full sizes of the blocks that make up this axis, in order; most parameters have one. The fused rows of
            queries, keys and values are three, so that a shard gets the rows of whole heads of each.
    """

    axis: int
    blocks: tuple[int, ...]


def slice_parameter(full: np.ndarray, shard: Shard, index: int, size: int) -> np.ndarray:
    """Take one worker's part of a parameter.

    Args:
        full: the whole parameter.
        shard: how it is cut.
        index: t, 0 .. size - 1.
        size: T.

    Raises:
        ModelError: the blocks are not those of this parameter, or T does not divide one.

    Returns:
        The part, as a copy; T parts put together by `join_parameter` give `full`.

    Example:
        >>> slice_parameter(np.arange(6), Shard(0, (4, 2)), index=1, size=2).tolist()
        [2, 3, 5]
    """
    if full.shape[shard.axis] != sum(shard.blocks) or any(block % size for block in shard.blocks):
        raise ModelError(
            f"a parameter of shape {full.shape} cannot be cut into {size} parts along axis {shard.axis} by blocks "
            f"{shard.blocks}; expected blocks that add up to the axis, each a multiple of {size}"
        )
    blocks = np.split(full, np.cumsum(shard.blocks)[:-1], shard.axis)
    return np.concatenate([np.split(block, size, shard.axis)[index] for block in blocks], shard.axis)


def join_parameter(parts: Sequence[np.ndarray], shard: Shard) -> np.ndarray:
    """Put a parameter together from the parts of all T workers, in order of t.

    Args:
        parts: T parts as `slice_parameter` gives them.
        shard: how it was cut.

    Raises:
        ModelError: the parts are not of the size that the blocks say.

    Returns:
        The whole parameter.
    """
    widths = [block // len(parts) for block in shard.blocks]
    if any(part.shape[shard.axis] != sum(widths) for part in parts):
        raise ModelError(
            f"parts of shapes {[part.shape for part in parts]} do not make up blocks {shard.blocks} along axis "
            f"{shard.axis}; expected {len(parts)} parts of {sum(widths)} each"
        )
    cut = [np.split(part, np.cumsum(widths)[:-1], shard.axis) for part in parts]
    return np.concatenate([piece for block in zip(*cut, strict=True) for piece in block], shard.axis)
