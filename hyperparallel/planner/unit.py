"""Times of a problem as whole multiples of one unit, and the longest step there can be."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm

from hyperparallel.planner.problem import Problem


def serial_time(problem: Problem) -> float:
    """Return the time of everything one after the other: no plan needs more."""
    encodes = sum(
        encode.forward + (encode.backward or 0.0) + encode.send + encode.receive for encode in problem.encodes
    )
    return encodes + sum(task.duration + sum(delay for _, delay in task.needs) for task in problem.tasks)


def time_unit(problem: Problem) -> Fraction | None:
    """Find the largest unit that every duration and delay is a whole multiple of; None when it is too fine."""
    values = {task.duration for task in problem.tasks}
    values.update(delay for task in problem.tasks for _, delay in task.needs)
    for encode in problem.encodes:
        values.update((encode.forward, encode.backward or 0.0, encode.send, encode.receive))
    parts = [Fraction(value).limit_denominator(64) for value in values if value]
    if any(abs(float(part) - value) > 1e-12 * value for part, value in zip(parts, filter(None, values), strict=True)):
        return None
    below = lcm(*(part.denominator for part in parts)) if parts else 1
    if below > 10_000:
        return None
    whole = [int(part * below) for part in parts]
    return Fraction(gcd(*whole), below) if whole else None
