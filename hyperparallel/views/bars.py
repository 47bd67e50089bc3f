"""One row of the text timeline: bars for actions where they fit, one letter per column where they do not.

Backbone forward `[6F3   ]`, backward `<6B3===>`; replicated regions (the encoder) `(2F3~~~)`, `{2B3###}`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hyperparallel.algebra import Action
from hyperparallel.cost import Span

IDLE = "."
MIXED = "*"
_MOSTLY = 0.75  # share of a column's work from which one kind names the column


class Style(NamedTuple):
    """How bars of one kind look: border signs and fill."""

    left: str
    fill: str
    right: str


FORWARD, BACKWARD = Style("[", " ", "]"), Style("<", "=", ">")
ENCODE, ENCODE_BACKWARD = Style("(", "~", ")"), Style("{", "#", "}")


def style(kind: str, replicated: bool) -> Style:
    """Return the look of a kind (F, or the backward kinds B, I, W) in a Sharded or Replicated region."""
    if kind == "F":
        return ENCODE if replicated else FORWARD
    return ENCODE_BACKWARD if replicated else BACKWARD


def letter(kind: str, replicated: bool) -> str:
    """Return the one-column sign of a kind: the kind itself, in lower case for Replicated regions."""
    return kind.lower() if replicated else kind


def bar(action: Action, width: int, replicated: bool, room: int | None = None) -> str:
    """Draw one action as exactly `width` characters, with the longest label that fits.

    Args:
        action: a compute action.
        width: columns, >= 1.
        replicated: whether its region is Replicated.
        room: columns that the label and its borders may take, if fewer than `width`.

    Example:
        >>> [bar(Action(6, "B", 3), width, False) for width in (8, 5, 4, 3, 2, 1)]
        ['<6B3===>', '<6B3>', '<B3>', '<3>', 'B3', 'B']
    """
    left, fill, right = style(action.kind, replicated)
    sign = letter(action.kind, replicated)
    labels = [str(action), f"{action.kind}{action.mb}"]
    if action.kind in "FB":  # I and W share the border of B, so a bare number would not tell which
        labels.append(str(action.mb))
    for label in labels:
        if len(label) + 2 <= (width if room is None else room):
            return left + label.ljust(width - 2, fill) + right
    if len(f"{sign}{action.mb}") <= width:
        return f"{sign}{action.mb}".ljust(width, fill)
    return left + sign * (width - 2) + right if width > 1 else sign


def column(time: float, scale: float) -> int:
    """Return the column border nearest to a time; neighbours in time share a border, so rows stay aligned."""
    return int(time * scale + 0.5)


def bar_row(row: Sequence[Span], scale: float, columns: int, replicated: Collection[int]) -> tuple[str, list[Span]]:
    """Draw a rank's actions as bars.

    Args:
        row: the rank's actions in time.
        scale: columns per unit of time.
        columns: length of the row.
        replicated: stages of Replicated regions.

    Returns:
        The row, and the actions that are not in it because they are too short for a column.
    """
    text: list[str] = []
    hidden: list[Span] = []
    at = 0
    for span in row:
        action, start, end = span
        first, last = column(start, scale), column(end, scale)
        if first == last:
            hidden.append(span)
            continue
        # Equal times may differ by a column once rounded; their labels must not, so all take the smaller room.
        room = min(last - first, int((end - start) * scale + 1e-6))
        text.append(IDLE * (first - at) + bar(action, last - first, action.stage in replicated, room))
        at = last
    return "".join(text) + IDLE * (columns - at), hidden


def coarse_row(row: Sequence[Span], scale: float, columns: int, replicated: Collection[int]) -> str:
    """Draw a rank's time with one sign per column: what takes most of it.

    Args:
        row, scale, columns, replicated: see `bar_row`.

    Returns:
        Per column `.` when at least half of it is idle, a letter when one kind has three quarters of the work
        in it, else `*`.
    """
    work: list[dict[str, float]] = [{} for _ in range(columns)]
    for action, start, end in row:
        sign = letter(action.kind, action.stage in replicated)
        for index in range(int(start * scale), min(columns, int(end * scale) + 1)):
            part = min(end * scale, index + 1) - max(start * scale, index)
            work[index][sign] = work[index].get(sign, 0.0) + max(0.0, part)
    return "".join(map(_coarse_sign, work))


def _coarse_sign(work: dict[str, float]) -> str:
    total = sum(work.values())
    if total <= 0.5:
        return IDLE
    sign = max(work, key=work.__getitem__)
    return sign if work[sign] >= _MOSTLY * total else MIXED
