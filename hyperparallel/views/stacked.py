"""Rows of the figure with more bars than points: columns that show what share of their time goes to what."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

Look = tuple[str, str]
"""(part, kind): what gives a bar its colour."""


def stack(pieces: Iterable[tuple[Look, float, float]], longest: float, columns: int) -> dict[Look, list[float]]:
    """Add up the time of every look in every column.

    Args:
        pieces: (look, start, duration); they do not overlap.
        longest: time at the right end of the last column.
        columns: number of columns.

    Returns:
        Look -> by column, the share of its time, 0 to 1.

    Example:
        >>> stack([(("llm", "F"), 0.0, 3.0), (("llm", "B"), 3.0, 1.0)], 8.0, 4)
        {('llm', 'F'): [1.0, 0.5, 0.0, 0.0], ('llm', 'B'): [0.0, 0.5, 0.0, 0.0]}
    """
    scale = columns / longest
    found: dict[Look, list[float]] = defaultdict(lambda: [0.0] * columns)
    for look, start, lasts in pieces:
        first, last = start * scale, (start + lasts) * scale
        for index in range(int(first), min(columns, int(last) + 1)):
            found[look][index] += max(0.0, min(last, index + 1) - max(first, index))
    return dict(found)


def highest(curve: Sequence[tuple[float, int]], longest: float, columns: int) -> list[int]:
    """Return the highest value of a step curve in every column.

    Args:
        curve: (time, value from then on), by time.
        longest, columns: see `stack`.
    """
    tops, scale = [0] * columns, columns / longest
    for (start, value), (end, _) in itertools.pairwise([*curve, (curve[-1][0], 0)]):
        for index in range(int(start * scale), min(columns, int(end * scale) + 1)):
            if index + 1 > start * scale and index < end * scale:
                tops[index] = max(tops[index], value)
    return tops
