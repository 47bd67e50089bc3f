"""Settle a plan: every encoder forward as late, every encoder backward as early as the step time allows.

Features then wait on the home rank no longer than they must, and owners hold what they keep for the backward for a
shorter time. The step time stays.
"""

from __future__ import annotations

from hyperparallel.planner.play import Graph, play, tails

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
        self.played = play(rows, self.links, graph.duration)
        self.limit = self.played.step_time * (1 + _ROUNDING)

    def later(self, index: int) -> bool:
        """Move a forward to the last place where the longest path through it is no longer than the step."""
        encode, action = self.graph.problem.encodes[index], self.graph.forward(index)
        owner, duration = self.owners[index], self.graph.duration
        row = self.rows[owner]
        place = row.index(action)
        if place + 1 == len(row) or self.played.start[row[place + 1]] >= self.played.start[encode.feeds]:
            return False
        away = owner != self.graph.problem.homes[index]
        links, kept = self.links, self.links[encode.feeds]
        links[encode.feeds] = tuple(link for link in kept if link[0] != action)
        del row[place]
        played = play(self.rows, links, duration)
        tail = tails(self.rows, links, duration, played.order)
        links[encode.feeds] = kept
        start, best = played.start, place
        due = tail[encode.feeds] + (encode.send if away else 0.0)
        for new in range(place + 1, len(row) + 1):
            if start[row[new - 1]] >= start[encode.feeds]:
                break
            end = start[row[new - 1]] + duration[row[new - 1]]
            after = tail[row[new]] if new < len(row) else 0.0
            if end + encode.forward + max(after, due) <= self.limit:
                best = new
        return self.move(row, place, best, action)

    def earlier(self, index: int) -> bool:
        """Move a backward to the first place where the longest path through it is no longer than the step."""
        encode, action = self.graph.problem.encodes[index], self.graph.backward(index)
        duration = self.graph.duration
        row = self.rows[self.owners[index]]
        place = row.index(action)
        ((need, delay),) = self.links[action]
        if not place or self.ends(row[place - 1]) <= self.ends(need) + delay:
            return False
        del row[place]
        played = play(self.rows, self.links, duration)
        tail = tails(self.rows, self.links, duration, played.order)
        start, best = played.start, place
        ready = start[need] + duration[need] + delay
        for new in range(place - 1, -1, -1):
            if start[row[new]] + duration[row[new]] <= ready:
                break
            end = start[row[new - 1]] + duration[row[new - 1]] if new else 0.0
            if max(end, ready) + encode.backward + tail[row[new]] <= self.limit:
                best = new
        return self.move(row, place, best, action)

    def ends(self, action: int) -> float:
        return self.played.start[action] + self.graph.duration[action]

    def move(self, row: list[int], place: int, best: int, action: int) -> bool:
        """Put an action that was taken out of a row to its new place, or back."""
        row.insert(best, action)
        if best == place:
            return False
        played = play(self.rows, self.links, self.graph.duration)
        if played is None or played.step_time > self.limit:
            row.remove(action)
            row.insert(place, action)
            return False
        self.played = played
        return True
