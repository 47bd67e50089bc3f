"""Play an order: when every action of a plan starts, by longest path.

Actions are numbered: tasks 0..N-1, then the encoder forwards, N+e, then the encoder backwards, N+E+e.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hyperparallel.planner.problem import Action, Problem, Rows


class Graph:
    """A problem with numbered actions, ready to be played many times.

    Args:
        problem: what to number.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count, self.encodes = len(problem.tasks), len(problem.encodes)
        self.size = self.count + 2 * self.encodes
        self.actions = self.count + sum(1 if encode.backward is None else 2 for encode in problem.encodes)
        self.duration = [task.duration for task in problem.tasks]
        self.duration += [encode.forward for encode in problem.encodes]
        self.duration += [encode.backward or 0.0 for encode in problem.encodes]
        self.needs: list[tuple[tuple[int, float], ...]] = [task.needs for task in problem.tasks]
        self.feeders: list[list[int]] = [[] for _ in problem.tasks]
        self.followers: list[list[int]] = [[] for _ in problem.tasks]
        for index, encode in enumerate(problem.encodes):
            self.feeders[encode.feeds].append(index)
            if encode.backward is not None:
                self.followers[encode.follows].append(index)

    @cached_property
    def task_order(self) -> list[int]:
        """The tasks, each after what it needs and after the task before it on its rank."""
        played = play(self.problem.rows, self.needs, self.duration[: self.count])
        assert played is not None, "the LLM's own order waits in a circle"
        return played.order

    def forward(self, encode: int) -> int:
        """Return the number of an encode's forward."""
        return self.count + encode

    def backward(self, encode: int) -> int:
        """Return the number of an encode's backward."""
        return self.count + self.encodes + encode

    def number(self, rows: Rows) -> list[list[int]]:
        """Turn actions into numbers."""
        base = {"T": 0, "F": self.count, "B": self.count + self.encodes}
        return [[base[kind] + index for kind, index in row] for row in rows]

    def owners(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Find the owner of every encode: the rank of its forward."""
        owners = [-1] * self.encodes
        for rank, row in enumerate(rows):
            for action in row:
                if self.count <= action < self.count + self.encodes:
                    owners[action - self.count] = rank
        return owners

    def name(self, rows: Sequence[Sequence[int]]) -> Rows:
        """Turn numbers into actions."""
        return tuple(tuple(map(self._name, row)) for row in rows)

    def _name(self, number: int) -> Action:
        if number < self.count:
            return "T", number
        kind, base = ("F", self.count) if number < self.count + self.encodes else ("B", self.count + self.encodes)
        return kind, number - base

    def links(self, owners: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
        """List what every action waits for, for these owners: (action, delay), the order of its rank aside."""
        links = self.needs + [()] * (2 * self.encodes)
        homes, first = self.problem.homes, self.count + self.encodes
        for index, encode in enumerate(self.problem.encodes):
            away = owners[index] != homes[index]
            links[encode.feeds] = (*links[encode.feeds], (self.count + index, encode.send if away else 0.0))
            if encode.backward is not None:
                # Its own forward comes first on its rank; the gradient is later anyway, since it follows from it.
                links[first + index] = ((encode.follows, encode.receive if away else 0.0),)
        return links


class Played:
    """An order in time.

    Args:
        start: per action, its start; -1 for actions that are not in the rows.
        order: the actions, each after all it waits for.
        step_time: end of the last action.
    """

    __slots__ = ("start", "order", "step_time")

    def __init__(self, start: list[float], order: list[int], step_time: float) -> None:
        self.start, self.order, self.step_time = start, order, step_time


def play(rows: Sequence[Sequence[int]], links: Sequence, duration: Sequence[float]) -> Played | None:
    """Start every action as early as the order allows.

    Args:
        rows: per rank, numbered actions in order.
        links: per action, what it waits for (`Graph.links`).
        duration: per action.

    Returns:
        The times; None when actions wait for each other in a circle.
    """
    size = len(duration)
    start, end = [-1.0] * size, [-1.0] * size
    waiting: dict[int, list[int]] = {}  # action -> ranks that wait for it
    order: list[int] = []
    place, lengths, clock = [0] * len(rows), [len(row) for row in rows], [0.0] * len(rows)
    awake = list(range(len(rows)))
    while awake:
        rank = awake.pop()
        row, index, length, now = rows[rank], place[rank], lengths[rank], clock[rank]
        while index < length:
            action = row[index]
            for need, delay in links[action]:
                ready = end[need]
                if ready < 0.0:
                    waiting.setdefault(need, []).append(rank)
                    break
                if ready + delay > now:
                    now = ready + delay
            else:
                start[action] = now
                now += duration[action]
                end[action] = now
                order.append(action)
                index += 1
                clock[rank] = now
                if action in waiting:
                    awake.extend(waiting.pop(action))
                continue
            break
        place[rank] = index
    if place != lengths:
        return None
    return Played(start, order, max(clock, default=0.0))


def tails(rows: Sequence[Sequence[int]], links: Sequence, duration: Sequence[float], order: list[int]) -> list[float]:
    """Measure the longest path from the start of every action to the end of the step.

    Args:
        rows: per rank, numbered actions in order.
        links: per action, what it waits for.
        duration: per action.
        order: of `play` on the same rows.

    Returns:
        Per action, the time, its own duration included.
    """
    before = [-1] * len(duration)
    for row in rows:
        for left, right in zip(row, row[1:], strict=False):
            before[right] = left
    tail = [0.0] * len(duration)  # until an action is reached: the longest path from its end
    for action in reversed(order):
        length = tail[action] = tail[action] + duration[action]
        left = before[action]
        if left >= 0 and tail[left] < length:
            tail[left] = length
        for need, delay in links[action]:
            if tail[need] < length + delay:
                tail[need] = length + delay
    return tail
