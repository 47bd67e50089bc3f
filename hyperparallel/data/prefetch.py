"""Make rows of arrays ahead of time, in MindSpore's own input pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mindspore.dataset as ds
import numpy as np

ROWS_AHEAD = 2
"""Rows that wait ready. MindSpore's default of 16 would hold 16 steps of pixels in memory."""


def prefetch(
    make_row: Callable[[int], tuple[np.ndarray, ...]], names: Sequence[str], numbers: Sequence[int]
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield `make_row(n)` for each n, in order, computed on a background thread a few rows ahead.

    Args:
        make_row: gives one array per name; shapes may differ from row to row. Runs on another thread.
        names: what the arrays are called, at least one.
        numbers: row numbers, e.g. a range of steps.

    Yields:
        The arrays of one row.

    Raises:
        Exception: whatever `make_row` raised, once the rows before it have been taken.
    """
    failures: list[Exception] = []

    def rows() -> Iterator[tuple[np.ndarray, ...]]:
        for number in numbers:
            try:
                row = make_row(number)
            except Exception as error:
                # MindSpore would turn it into a RuntimeError with its own text; end the rows, raise it below.
                failures.append(error)
                return
            yield row

    iterator = _iterator(rows, names)
    try:
        yield from map(tuple, iterator)
    finally:
        iterator.stop()
    if failures:
        raise failures[0]


def _iterator(rows: Callable[[], Iterator], names: Sequence[str]) -> ds.TupleIterator:
    # Rows of different shapes are fine as long as nothing batches them: collation was done by `make_row`.
    before = ds.config.get_prefetch_size()
    ds.config.set_prefetch_size(ROWS_AHEAD)
    try:
        dataset = ds.GeneratorDataset(
            rows, list(names), shuffle=False, num_parallel_workers=1, python_multiprocessing=False
        )
        return dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
    finally:
        ds.config.set_prefetch_size(before)
