"""A limit in bytes, kept by limiting how many encodes a rank may hold at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.errors import ScheduleError
from hyperparallel.planner.line import Planned
from hyperparallel.planner.problem import LimitError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class MemoryLimit(NamedTuple):
    """A limit for every rank: live encodes or bytes; the other one is None."""

    encodes: int | None
    bytes: int | None


def parse_limit(text: str) -> MemoryLimit:
    """Read `6 encodes` or `8 GiB`.

    Raises:
        ScheduleError: neither.

    Example:
        >>> parse_limit("6 encodes"), parse_limit("8 GiB")
        (MemoryLimit(encodes=6, bytes=None), MemoryLimit(encodes=None, bytes=8589934592))
    """
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)\s*", text, re.ASCII)
    if match is not None:
        number, unit = match.groups()
        if unit in ("encodes", "encode") and "." not in number and int(number) > 0:
            return MemoryLimit(int(number), None)
        if unit in _UNITS and float(number) > 0:
            return MemoryLimit(None, int(float(number) * _UNITS[unit]))
    raise ScheduleError(
        f"memory limit {text!r}: expected a number of live encodes such as '6 encodes', or of bytes per rank such as "
        f"'8 GiB' ({', '.join(_UNITS)})"
    )


def plan_within(
    limit: int, most: int, plan_at: Callable[[int | None], Planned], peaks_of: Callable[[Plan], Sequence[int]]
) -> Planned:
    """Find the fastest plan whose ranks stay within a number of bytes.

    Args:
        limit: bytes, for every rank.
        most: encodes that there are (pieces of all micro-batches): a higher limit stops nothing.
        plan_at: plans with a limit on live encodes.
        peaks_of: predicts the most bytes of every rank.

    Raises:
        ScheduleError: no plan stays within; says the fewest bytes that one was found for.

    Returns:
        The plan with the loosest limit on encodes that stays within.
    """
    planned = plan_at(None)
    least = max(peaks_of(planned.plan))
    if least <= limit:
        return planned
    best, low, high = None, 1, most
    while low <= high:
        encodes = (low + high) // 2
        try:
            planned = plan_at(encodes)
        except LimitError:
            low = encodes + 1
            continue
        peak = max(peaks_of(planned.plan))
        least = min(least, peak)
        if peak <= limit:
            best, low = planned, encodes + 1
        else:
            high = encodes - 1
    if best is None:
        raise ScheduleError(
            f"no plan was found whose ranks stay within {limit:,} bytes; the smallest that a plan was found for is "
            f"{least:,} bytes"
        )
    return best
