"""Settle a plan: every encoder forward as late, every encoder backward as early as the step time allows.

Features then wait on the home rank no longer than they must, and owners hold what they keep for the backward for a
shorter time. The step time stays.
"""

from __future__ import annotations

from hyperparallel.planner.play import Graph, Played, play, tails

_ROUNDING = 1e-9


def settle(graph: Graph, rows: list[list[int]], owners: list[int], most: int | None = None) -> list[list[int]]:
    """Move encodes inside their rows.

    Args:
        graph: the numbered problem.
        rows: per rank, numbered actions in order.
        owners: per encode, its rank.
        most: how many moves are made at most, None for any number.

    Returns:
        The new rows; their step time is no longer.
    """
    mover = _Mover(graph, [list(row) for row in rows], owners)
    encodes = graph.problem.encodes
    due = sorted(range(len(encodes)), key=lambda index: (-mover.played.start[encodes[index].feeds], index))
    moves = 0
    for index in due:
        if encodes[index].forward and (most is None or moves < most):
            moves += mover.later(index)
    for index in reversed(due):
        if encodes[index].backward and (most is None or moves < most):
            moves += mover.earlier(index)
    return mover.rows


class _Mover:
    def __init__(self, graph: Graph, rows: list[list[int]], owners: list[int]) -> None:
        self.graph, self.rows, self.owners = graph, rows, owners
        self.links = graph.links(owners)
        self.measure(play(rows, self.links, graph.duration))
        self.limit = self.played.step_time * (1 + _ROUNDING)

    def measure(self, played: Played) -> None:
        self.played = played
        self.tail = tails(self.rows, self.links, self.graph.duration, played.order)

    def later(self, index: int) -> bool:
        """Move a forward to the last place where the longest path through it is no longer than the step.

        Paths are measured with the forward still in its old place, so they are rather too long than too short.
        """
        encode, action = self.graph.problem.encodes[index], self.graph.forward(index)
        start, duration, tail = self.played.start, self.graph.duration, self.tail
        owner = self.owners[index]
        row = self.rows[owner]
        place = row.index(action)
        away = owner != self.graph.problem.homes[index]
        due = tail[encode.feeds] + (encode.send if away else 0.0)
        clock = start[row[place - 1]] + duration[row[place - 1]] if place else 0.0
        best = place
        for new in range(place + 1, len(row)):
            passed = row[new]
            if start[passed] >= start[encode.feeds]:
                break
            ready = max((start[need] + duration[need] + delay for need, delay in self.links[passed]), default=0.0)
            clock = max(clock, ready) + duration[passed]
            after = tail[row[new + 1]] if new + 1 < len(row) else 0.0
            if clock + encode.forward + max(after, due) <= self.limit:
                best = new
        return self.move(owner, place, best)

    def earlier(self, index: int) -> bool:
        """Move a backward to the first place where the longest path through it is no longer than the step."""
        encode, action = self.graph.problem.encodes[index], self.graph.backward(index)
        start, duration, tail = self.played.start, self.graph.duration, self.tail
        owner = self.owners[index]
        row = self.rows[owner]
        place = row.index(action)
        ((need, delay),) = self.links[action]
        ready = start[need] + duration[need] + delay
        best = place
        for new in range(place - 1, -1, -1):
            if start[row[new]] + duration[row[new]] <= ready:
                break
            end = start[row[new - 1]] + duration[row[new - 1]] if new else 0.0
            if max(end, ready) + encode.backward + tail[row[new]] <= self.limit:
                best = new
        return self.move(owner, place, best)

    def move(self, owner: int, place: int, best: int) -> bool:
        if best == place:
            return False
        row = self.rows[owner]
        row.insert(best, row.pop(place))
        played = play(self.rows, self.links, self.graph.duration)
        if played is None or played.step_time > self.limit:
            row.insert(place, row.pop(best))
            return False
        self.measure(played)
        return True
