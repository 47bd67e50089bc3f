"""Bounds by room: if the step ends at T, how much time the ranks have for encodes before each is due."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from hyperparallel.planner.count import ROUNDING, slot_ends
from hyperparallel.planner.problem import Encode, Problem

_LARGE = 1000  # tasks; of larger problems less is asked
_SIZES = 12  # so many sizes of encodes are counted one by one, the largest; of large problems two
_STEPS = 24


class Side:
    """The encoder forwards of a problem: how much time the ranks have for them before each is due."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem = problem
        groups: dict[int, list[Encode]] = {}
        for encode in problem.encodes:
            groups.setdefault(encode.feeds, []).append(encode)
        # Feeding tasks, in the order of the tasks; the encodes of those before on the same rank are due as well.
        self.feeds = [index for index in order if index in groups]
        self.work = {feeds: sum(encode.forward for encode in group) for feeds, group in groups.items()}
        self.release = {feeds: self._release(group) for feeds, group in groups.items()}
        self.sizes = sorted({e.forward for e in problem.encodes if e.forward > 0.0}, reverse=True)
        del self.sizes[_SIZES if len(problem.tasks) < _LARGE else 2 :]
        if any(encode.owner is not None for encode in problem.encodes):
            self.sizes = []
        self.counts = [
            {feeds: sum(e.forward >= size for e in group) for feeds, group in groups.items()} for size in self.sizes
        ]

    def _release(self, group: Sequence[Encode]) -> float:
        """Least time before a task that these encodes feed can start."""
        longest = max(encode.forward + (0.0 if encode.owner is None else self._sends(encode)) for encode in group)
        return max(longest, sum(encode.forward for encode in group) / self.problem.ranks)

    def _sends(self, encode: Encode) -> float:
        return encode.send if encode.owner != self.problem.rank_of[encode.feeds] else 0.0

    def raise_heads(self, heads: list[float], tails: list[float], target: float) -> dict[int, float] | None:
        """Find later starts of the feeding tasks; None when a task would start later than the target allows."""
        problem = self.problem
        latest = [target - tail - task.duration for tail, task in zip(tails, problem.tasks, strict=True)]
        rooms = [_Room(problem, row, latest) for row in problem.rows]
        due = sorted(self.feeds, key=lambda feeds: latest[feeds])
        slack = target * ROUNDING
        work = 0.0
        for feeds in due:
            work += self.work[feeds]
            moment = latest[feeds] + slack
            if sum(room.before(moment) for room in rooms) < work - slack:
                return None
        ends = []
        for size, counts in zip(self.sizes, self.counts, strict=True):
            most = sum(counts.values())
            slots = sorted(end for row in problem.rows for end in slot_ends(problem, row, heads, latest, size, most))
            number = 0
            for feeds in due:
                number += counts[feeds]
                if counts[feeds] and (number > len(slots) or slots[number - 1] > latest[feeds] + slack):
                    return None
            ends.append(slots)
        # A task cannot start before all encodes of the tasks up to it on its rank are done.
        raised: dict[int, float] = {}
        total = [0.0] * problem.ranks
        numbers = [[0] * problem.ranks for _ in self.sizes]
        for feeds in self.feeds:
            rank = problem.rank_of[feeds]
            total[rank] += self.work[feeds]
            start = _earliest(rooms, total[rank], heads[feeds], latest[feeds])
            for slots, counts, number in zip(ends, self.counts, numbers, strict=True):
                number[rank] += counts[feeds]
                if number[rank]:
                    start = max(start, slots[number[rank] - 1])
            if start > heads[feeds] + slack:
                raised[feeds] = start - slack
        return raised


def _earliest(rooms: Sequence[_Room], work: float, low: float, high: float) -> float:
    """Find the earliest moment before which the ranks have time for so much work."""
    if sum(room.before(low) for room in rooms) >= work:
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if sum(room.before(middle) for room in rooms) >= work:
            high = middle
        else:
            low = middle
    return low


class _Room:
    """Time that a rank has for encodes before a moment, when its tasks run as late as they may."""

    def __init__(self, problem: Problem, row: Sequence[int], latest: Sequence[float]) -> None:
        self.starts = [latest[task] for task in row]
        self.durations = [problem.tasks[task].duration for task in row]
        self.sums = [0.0]
        for duration in self.durations:
            self.sums.append(self.sums[-1] + duration)

    def before(self, moment: float) -> float:
        index = bisect_right(self.starts, moment)
        if not index:
            return moment
        last = min(self.durations[index - 1], moment - self.starts[index - 1])
        return moment - self.sums[index - 1] - last
