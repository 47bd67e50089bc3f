"""Bounds by counting: encodes cannot be cut, so a rank holds a whole number of them beside its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hyperparallel.planner.problem import Problem

ROUNDING = 1e-9


def slot_ends(
    problem: Problem, row: Sequence[int], heads: Sequence[float], latest: Sequence[float], size: float
) -> list[float]:
    """For n = 1, 2, ...: when the n-th encode of this size can end on a rank at the earliest."""
    slack = max(latest, default=0.0) * ROUNDING
    clock, ends = [0.0], []  # clock[n]: least time after the tasks so far and n encodes
    for task in row:
        count = 0
        while count < len(clock):
            end = clock[count] + size
            if end <= latest[task] + slack:
                if count + 1 == len(clock):
                    clock.append(end)
                    ends.append(end)
                elif end < clock[count + 1]:
                    clock[count + 1] = end
                    ends[count] = min(ends[count], end)
            count += 1
        duration = problem.tasks[task].duration
        begin = heads[task]
        clock = [max(time, begin) + duration if time <= latest[task] + slack else inf for time in clock]
    return ends


class PairCount:
    """Encodes of one size whose forward and backward run on one rank: how many pairs each rank can hold."""

    def __init__(self, problem: Problem, forward: float, backward: float, count: int) -> None:
        self.problem, self.forward, self.backward, self.count = problem, forward, backward, count

    @classmethod
    def of(cls, problem: Problem) -> PairCount | None:
        """Make it if the encodes are alike, trained, free to choose, and few."""
        kinds = {(e.forward, e.backward, e.owner) for e in problem.encodes if e.forward or e.backward}
        if len(kinds) != 1:
            return None
        forward, backward, owner = kinds.pop()
        count = sum(bool(e.forward or e.backward) for e in problem.encodes)
        if not backward or not forward or owner is not None or len(problem.tasks) * count * count > 3_000_000:
            return None
        return cls(problem, forward, backward, count)

    def refutes(self, heads: Sequence[float], tails: Sequence[float], target: float) -> bool:
        """Say whether the ranks together hold fewer pairs than there are encodes."""
        problem = self.problem
        latest = [target - tail - task.duration for tail, task in zip(tails, problem.tasks, strict=True)]
        due = max(latest[e.feeds] for e in problem.encodes)
        release = min(heads[e.follows] + problem.tasks[e.follows].duration for e in problem.encodes)
        held = 0
        for row in problem.rows:
            held += self._most(row, heads, latest, target, due, release)
            if held >= self.count:
                return False
        return True

    def _most(self, row, heads, latest, target: float, due: float, release: float) -> int:
        slack = target * ROUNDING
        clock = [[0.0]]  # clock[n][k]: least time after the tasks so far, n forwards and k <= n backwards
        for task in (*row, None):
            limit = target if task is None else latest[task]
            self._insert(clock, limit + slack, due + slack, release - slack)
            if task is None:
                break
            begin, duration = heads[task], self.problem.tasks[task].duration
            clock = [[max(time, begin) + duration if time <= limit + slack else inf for time in line] for line in clock]
        return max((n for n, line in enumerate(clock) if len(line) > n and line[n] <= target + slack), default=0)

    def _insert(self, clock: list[list[float]], limit: float, due: float, release: float) -> None:
        n = 0
        while n < len(clock):
            line = clock[n]
            k = 0
            while k < len(line):
                time = line[k]
                end = time + self.forward
                if end <= limit and end <= due:
                    if n + 1 == len(clock):
                        clock.append([])
                    above = clock[n + 1]
                    above.extend([inf] * (k + 1 - len(above)))
                    above[k] = min(above[k], end)
                end = max(time, release) + self.backward
                if k < n and end <= limit:
                    if k + 1 == len(line):
                        line.append(inf)
                    line[k + 1] = min(line[k + 1], end)
                k += 1
            n += 1
