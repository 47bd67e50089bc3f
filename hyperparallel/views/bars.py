"""Rows of the text timeline: bars for actions where they fit, one letter per column where they do not.

Backbone forward `[6F3   ]`, backward `<6B3===>`, its two parts `<6I3--->` and `/6W3+++/`; replicated regions (the
encoder) `(2F3~~~)`, `{2B3###}`. A rank has one row, or one per lane: a lane is the stages that share a row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hyperparallel.algebra import Action
from hyperparallel.cost import Span

IDLE = "."
ELSEWHERE = " "
MIXED = "*"
_MOSTLY = 0.75  # share of a column's work from which one kind names the column


class Style(NamedTuple):
    """How bars of one kind look: border signs and fill."""

    left: str
    fill: str
    right: str


SHARDED = {"F": Style("[", " ", "]"), "B": Style("<", "=", ">"), "I": Style("<", "-", ">"), "W": Style("/", "+", "/")}
REPLICATED = {"F": Style("(", "~", ")"), **dict.fromkeys("BIW", Style("{", "#", "}"))}


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
    left, fill, right = (REPLICATED if replicated else SHARDED)[action.kind]
    sign = letter(action.kind, replicated)
    labels = [str(action), f"{action.kind}{action.mb}"]
    whole = action.kind in "FB"
    if whole:  # I has the border of B, so a bare number would not tell which
        labels.append(str(action.mb))
    for label in labels:
        if len(label) + 2 <= (width if room is None else room):
            return left + label.ljust(width - 2, fill) + right
    if len(f"{sign}{action.mb}") <= width:
        return f"{sign}{action.mb}".ljust(width, fill)
    if whole and width > 1:
        return left + sign * (width - 2) + right
    return sign.ljust(width, fill)


def column(time: float, scale: float) -> int:
    """Return the column border nearest to a time; neighbours in time share a border, so rows stay aligned."""
    return int(time * scale + 0.5)


def bar_rows(
    row: Sequence[Span], scale: float, columns: int, replicated: Collection[int], lanes: Sequence[Collection[int]]
) -> tuple[list[str], list[Span]]:
    """Draw a rank's actions as bars.

    Args:
        row: the rank's actions in time.
        scale: columns per unit of time.
        columns: length of a row.
        replicated: stages of Replicated regions.
        lanes: the stages of each row; every stage of the rank is in one of them.

    Returns:
        A row per lane, and the actions that are in none because they are too short for a column.
    """
    texts = [[IDLE] * columns for _ in lanes]
    hidden: list[Span] = []
    for span in row:
        action, start, end = span
        first, last = column(start, scale), column(end, scale)
        if first == last:
            hidden.append(span)
            continue
        # Equal times may differ by a column once rounded; their labels must not, so all take the smaller room.
        room = min(last - first, int((end - start) * scale + 1e-6))
        for text, stages in zip(texts, lanes, strict=True):
            own = action.stage in stages
            text[first:last] = (
                bar(action, last - first, action.stage in replicated, room) if own else ELSEWHERE * (last - first)
            )
    return ["".join(text) for text in texts], hidden


def coarse_rows(
    row: Sequence[Span], scale: float, columns: int, replicated: Collection[int], lanes: Sequence[Collection[int]]
) -> list[str]:
    """Draw a rank's time with one sign per column: what takes most of it.

    Args:
        row, scale, columns, replicated, lanes: see `bar_rows`.

    Returns:
        A row per lane. Per column `.` when at least half of it is idle; else, in the lane that has most of it, a
        letter when one kind has three quarters of the lane's work, and `*` when none has.
    """
    lane_of = {stage: lane for lane, stages in enumerate(lanes) for stage in stages}
    work: list[list[dict[str, float]]] = [[{} for _ in lanes] for _ in range(columns)]
    for action, start, end in row:
        sign, lane = letter(action.kind, action.stage in replicated), lane_of[action.stage]
        for index in range(int(start * scale), min(columns, int(end * scale) + 1)):
            part = min(end * scale, index + 1) - max(start * scale, index)
            work[index][lane][sign] = work[index][lane].get(sign, 0.0) + max(0.0, part)
    return ["".join(signs) for signs in zip(*map(_coarse_signs, work), strict=True)]


def _coarse_signs(work: list[dict[str, float]]) -> list[str]:
    """Choose one column's sign in every lane."""
    totals = [sum(kinds.values()) for kinds in work]
    if sum(totals) <= 0.5:
        return [IDLE] * len(work)
    signs, most = [ELSEWHERE] * len(work), max(range(len(work)), key=totals.__getitem__)
    sign = max(work[most], key=work[most].__getitem__)
    signs[most] = sign if work[most][sign] >= _MOSTLY * totals[most] else MIXED
    return signs
