"""Lower bounds on the step time, without a solver: no order and no owners of the encodes can beat them.

Three ideas, and both directions of time (an encoder backward is a forward when time runs backwards):

* path: a chain of tasks that wait for each other takes the sum of their durations;
* room: if the step ends at T, every task has a latest start, so before any moment D the ranks have only so much time
  left for the encodes that are due by then; too little of it refutes T;
* count: encodes of one size cannot be cut, so a rank holds only a whole number of them beside its tasks.

The bound is the largest T that is refuted, found by bisection. Source: design, section 4, whose
max(te + (M+P-1) x + tg, M x + M (te+tg) / P) is the path and the room of the whole step.
"""

from __future__ import annotations

from math import ceil

from hyperparallel.planner.count import ROUNDING, PairCount
from hyperparallel.planner.mirror import mirrored
from hyperparallel.planner.play import Graph
from hyperparallel.planner.problem import Problem
from hyperparallel.planner.room import Side
from hyperparallel.planner.unit import serial_time, time_unit

CLOSE = 1e-7  # a bound this close to a plan, as a part of it, is as good as equal
_ROUNDS = 12
_LARGE = 1000  # tasks; of larger problems less is asked


def lower_bound(problem: Problem, found: float | None = None) -> float:
    """Bound the step time of every plan from below.

    Args:
        problem: the LLM's order and the encodes.
        found: step time of a plan, if one is known; saves work when it is optimal.

    Returns:
        The bound, in the problem's unit of time.

    Example:
        >>> from hyperparallel.planner.grid import one_f_one_b
        >>> lower_bound(one_f_one_b(4, [12.0] * 4, [None] * 4, pieces=4))
        87.0
    """
    check = Refutation(problem)
    unit = time_unit(problem)
    low = check.simple
    high = max(low, found if found is not None else serial_time(problem))
    close = high * (1.0 - CLOSE)
    if low < close and check.refutes(close):
        low = close
    # Every step time is a sum of durations, so a multiple of their common unit: finer than that tells nothing.
    fine = max(float(unit or 0.0) / 2.0, high * (CLOSE if len(problem.tasks) < _LARGE else 1e-4))
    while high - low > fine:
        middle = (low + high) / 2.0
        if check.refutes(middle):
            low = middle
        else:
            high = middle
    return float(ceil(low / unit - CLOSE) * unit) if unit else low


class Refutation:
    """Tries to show that no plan ends by a given time.

    Args:
        problem: the LLM's order and the encodes.

    Attributes:
        simple: the longest path or the largest load, a bound by itself.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        back = mirrored(problem)
        self.order = Graph(problem).task_order
        self.sides = (Side(problem, self.order), Side(back, self.order[::-1]) if back.encodes else None)
        self.simple = max(self._longest(), self._loads())
        self.pairs = PairCount.of(problem)

    def refutes(self, target: float) -> bool:
        """Say whether it is certain that no plan ends by the target."""
        return self.windows(target) is None

    def windows(self, target: float) -> tuple[list[float], list[float]] | None:
        """Find the least times before and behind every task in plans that end by the target; None: there are none."""
        forward, backward = self.sides
        heads = _heads(self.problem, self.order, forward.release)
        tails = _tails(self.problem, self.order, backward.release if backward else None)
        for _ in range(_ROUNDS):
            before = sum(heads) + sum(tails)
            raised = forward.raise_heads(heads, tails, target)
            if raised is None:
                return None
            lowered = backward.raise_heads(tails, heads, target) if backward else {}
            if lowered is None:
                return None
            heads = _heads(self.problem, self.order, raised, heads)
            tails = _tails(self.problem, self.order, lowered, tails)
            if self._too_long(heads, tails, target):
                return None
            if self.pairs is not None:
                if not self.pairs.narrow(heads, tails, target):
                    return None
                heads = _heads(self.problem, self.order, {}, heads)
                tails = _tails(self.problem, self.order, {}, tails)
                if self._too_long(heads, tails, target):
                    return None
            if sum(heads) + sum(tails) <= before * (1 + 1e-6):
                break
        return heads, tails

    def _too_long(self, heads: list[float], tails: list[float], target: float) -> bool:
        spans = zip(heads, tails, self.problem.tasks, strict=True)
        return any(head + tail + task.duration > target * (1 + 4 * ROUNDING) for head, tail, task in spans)

    def _longest(self) -> float:
        forward, backward = self.sides
        heads = _heads(self.problem, self.order, forward.release)
        tails = _tails(self.problem, self.order, backward.release if backward else None)
        spans = zip(heads, tails, self.problem.tasks, strict=True)
        return max((head + tail + task.duration for head, tail, task in spans), default=0.0)

    def _loads(self) -> float:
        """All the work over all ranks, and the work of a rank with the encodes it is given."""
        problem = self.problem
        loads = [sum(problem.tasks[task].duration for task in row) for row in problem.rows]
        largest = max((e.forward + (e.backward or 0.0) for e in problem.encodes if e.owner is None), default=0.0)
        largest += min(loads)
        free = 0.0
        for encode in problem.encodes:
            time = encode.forward + (encode.backward or 0.0)
            if encode.owner is None:
                free += time
            else:
                loads[encode.owner] += time
        return max(*loads, largest, (sum(loads) + free) / problem.ranks)


def _heads(problem: Problem, order: list[int], release: dict[int, float], known: list[float] | None = None) -> list:
    """Least time from the start of the step to the start of every task."""
    heads = list(known) if known else [0.0] * len(problem.tasks)
    done = [0.0] * problem.ranks
    for index in order:
        duration, needs = problem.tasks[index]
        rank = problem.rank_of[index]
        head = max(heads[index], done[rank], release.get(index, 0.0))
        for need, delay in needs:
            head = max(head, heads[need] + problem.tasks[need].duration + delay)
        heads[index] = head
        done[rank] = head + duration
    return heads


def _tails(problem: Problem, order: list[int], release: dict[int, float] | None, known: list | None = None) -> list:
    """Least time from the end of every task to the end of the step."""
    tails = list(known) if known else [0.0] * len(problem.tasks)
    release = release or {}
    rest = [0.0] * problem.ranks
    for index in reversed(order):
        duration, needs = problem.tasks[index]
        rank = problem.rank_of[index]
        tail = tails[index] = max(tails[index], rest[rank], release.get(index, 0.0))
        rest[rank] = tail + duration
        for need, delay in needs:
            tails[need] = max(tails[need], tail + duration + delay)
    return tails
