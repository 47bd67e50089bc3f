"""Bounds by counting: encodes cannot be cut, so a rank holds a whole number of them beside its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hyperparallel.planner.problem import Problem

ROUNDING = 1e-9


def slot_ends(
    problem: Problem, row: Sequence[int], heads: Sequence[float], latest: Sequence[float], size: float, most: int
) -> list[float]:
    """For n = 1, 2, ... most: when the n-th encode of this size can end on a rank at the earliest.

    There are fewer where no more fit. Without a limit there would be millions of encodes that take next to no time.
    """
    slack = max(latest, default=0.0) * ROUNDING
    clock, ends = [0.0], []  # clock[n]: least time after the tasks so far and n encodes
    for task in row:
        count = 0
        while count < len(clock):
            end = clock[count] + size
            if end <= latest[task] + slack:
                if count == most:
                    break
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
    """Encodes of one size whose forward and backward run on one rank: how many pairs each rank can hold, and when.

    A rank's states are (n, k): n forwards and k <= n backwards done. `early` is the least time at which a state is
    reached before each task, `late` the latest from which enough pairs and the remaining tasks still fit. What every
    rank must hold follows from what the others can; it leaves its tasks less room than they have alone.

    Args:
        problem: the LLM's order and the encodes.
        forward: duration of every forward.
        backward: duration of every backward.
        count: number of encodes.
    """

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
        if not backward or not forward or owner is not None or len(problem.tasks) * count * count > _MOST:
            return None
        return cls(problem, forward, backward, count)

    def narrow(self, heads: list[float], tails: list[float], target: float) -> bool:
        """Raise heads and tails by what every rank must hold.

        Args:
            heads: least time before each task; changed in place.
            tails: least time behind each task; changed in place.
            target: the step time.

        Returns:
            False if no plan ends by the target.
        """
        self.slack = target * ROUNDING
        durations = [task.duration for task in self.problem.tasks]
        latest = [target - tail - duration for tail, duration in zip(tails, durations, strict=True)]
        self.heads, self.latest, self.target = heads, latest, target
        self.due = max(latest[e.feeds] for e in self.problem.encodes)
        self.release = min(heads[e.follows] + durations[e.follows] for e in self.problem.encodes)
        early = [self.early(row) for row in self.problem.rows]
        most = [
            max((n for n, line in enumerate(states[-1]) if line[n] <= target + self.slack), default=-1)
            for states in early
        ]
        if min(most) < 0 or sum(most) < self.count:
            return False
        for rank, row in enumerate(self.problem.rows):
            needed = max(0, self.count - sum(most) + most[rank])
            late = self.late(row, needed, most[rank])
            for place, task in enumerate(row):
                window = self.window(task, early[rank][place], late[place + 1])
                if window is None:
                    return False
                heads[task] = max(heads[task], window[0] - self.slack)
                tails[task] = max(tails[task], target - window[1] - durations[task] - self.slack)
        return True

    def early(self, row: Sequence[int]) -> list[list[list[float]]]:
        """Per place in a row, before its task: the least time of every state (n, k)."""
        most = min(self.count, int((self.target + self.slack) / (self.forward + self.backward)))
        states = [[inf] * (n + 1) for n in range(most + 1)]
        states[0][0] = 0.0
        all_states = []
        for task in (*row, None):
            limit = self.slack + (self.target if task is None else self.latest[task])
            for n in range(most + 1):
                for k in range(n + 1):
                    time = states[n][k]
                    end = time + self.forward
                    if n < most and end <= limit and end <= self.due + self.slack and end < states[n + 1][k]:
                        states[n + 1][k] = end
                    end = max(time, self.release) + self.backward
                    if k < n and end <= limit and end < states[n][k + 1]:
                        states[n][k + 1] = end
            all_states.append([line.copy() for line in states])
            if task is not None:
                begin, duration = self.heads[task], self.problem.tasks[task].duration
                states = [[max(time, begin) + duration if time <= limit else inf for time in line] for line in states]
        return all_states

    def late(self, row: Sequence[int], needed: int, most: int) -> list[list[list[float]]]:
        """Per place in a row, before its task: the latest time from which every state (n, k) still leads to the end."""
        states = [[-inf] * (n + 1) for n in range(most + 1)]
        for n in range(needed, most + 1):
            states[n][n] = self.target + self.slack
        all_states = []
        for task in (None, *reversed(row)):
            if task is not None:
                begin, duration = self.heads[task], self.problem.tasks[task].duration
                limit = self.latest[task] + self.slack
                states = [[min(limit, time - duration) for time in line] for line in states]
                states = [[time if time >= begin - self.slack else -inf for time in line] for line in states]
            for n in range(most, -1, -1):
                for k in range(n, -1, -1):
                    best = states[n][k]
                    if n < most:
                        best = max(best, min(states[n + 1][k], self.due + self.slack) - self.forward)
                    if k < n and states[n][k + 1] - self.backward >= self.release - self.slack:
                        best = max(best, states[n][k + 1] - self.backward)
                    states[n][k] = best
            all_states.append([line.copy() for line in states])
        return all_states[::-1]

    def window(self, task: int, early: list[list[float]], late: list[list[float]]) -> tuple[float, float] | None:
        """Find the earliest and the latest start of a task over all states that it can start in."""
        first, last = inf, -inf
        duration = self.problem.tasks[task].duration
        for before, after in zip(early, late, strict=False):
            for time, end in zip(before, after, strict=True):
                low = max(time, self.heads[task])
                high = min(self.latest[task], end - duration)
                if low <= high + self.slack:
                    first, last = min(first, low), max(last, high)
        return (first, last) if first < inf else None


_MOST = 300_000  # states times tasks that are worth the time
