"""Pieces of a micro-batch: cut the columns that an encoder reads, join what the pieces hand on, cut its gradient.

Everything is cut along the first axis, which must count images (or whatever the encoder takes one by one): in each
column that the layers of the region read, and in each tensor that the region hands on. On the host, where messages are
anyway: an operator of MindSpore takes milliseconds for what numpy does in one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from hyperparallel.cells.dropout import RANDOM, random_from


def bounds(rows: int, pieces: int) -> list[int]:
    """Say where pieces begin and end: as equal as it goes, longer ones first, so that empty ones come last.

    Example:
        >>> bounds(5, 4), bounds(2, 4)
        ([0, 2, 3, 4, 5], [0, 1, 2, 2, 2])
    """
    base, more = divmod(rows, pieces)
    return [0, *np.cumsum([base + (index < more) for index in range(pieces)]).tolist()]


def cut_column(column: np.ndarray, index: int, pieces: int) -> np.ndarray:
    """Take a piece of a column; an empty one is a row of zeros, as encoders do not take nothing.

    Nobody reads the features of such a row: they follow those of all images.

    Example:
        >>> cut_column(np.array([[7], [8], [9]]), 0, 2).tolist(), cut_column(np.array([[7]]), 1, 2).tolist()
        ([[7], [8]], [[0]])
    """
    at = bounds(len(column), pieces)
    rows = column[at[index] : at[index + 1]]
    return rows if len(rows) else np.zeros((1, *column.shape[1:]), column.dtype)


def piece_of(column: str, array: np.ndarray, rows: int, index: int, pieces: int) -> np.ndarray:
    """Take what a piece gets of a column: its rows, or of `RANDOM` the key with the number of its first row.

    Args:
        column: its name.
        array: of the whole micro-batch.
        rows: of the micro-batch, all pieces together.
        index: which piece.
        pieces: how many there are.
    """
    if column == RANDOM:
        return random_from(array, bounds(rows, pieces)[index])
    return cut_column(array, index, pieces)


def join(carries: Sequence[Tensor | tuple[Tensor, ...]]) -> Tensor | tuple[Tensor, ...]:
    """Put what the pieces hand on one after the other, tensor by tensor."""
    if isinstance(carries[0], tuple):
        return tuple(map(join, zip(*carries, strict=True)))
    return Tensor(np.concatenate([carry.asnumpy() for carry in carries]))


def part(joined: Tensor | tuple[Tensor, ...], rows: Sequence[int], index: int) -> Tensor | tuple[Tensor, ...]:
    """Take the rows of one piece out of what was joined, or out of its gradient.

    Args:
        joined: all pieces together.
        rows: of every piece.
        index: which piece.
    """
    if isinstance(joined, tuple):
        return tuple(part(tensor, rows, index) for tensor in joined)
    first = sum(rows[:index])
    return Tensor(joined.asnumpy()[first : first + rows[index]])
