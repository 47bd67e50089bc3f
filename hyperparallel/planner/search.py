"""Local search: take a few encodes out of a plan and put them back where they hurt least.

Where an encode hurts is known exactly: with the longest path from the start to every action (`play`) and from every
action to the end (`tails`), the longest path through a new place is the sum of both and its duration. A plan is only
better when its critical path changes, so one of the encodes taken out is always on it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from hyperparallel.planner.play import Graph, play, tails

_ROUNDING = 1e-9


def improve(
    graph: Graph,
    rows: Sequence[Sequence[int]],
    owners: Sequence[int],
    bound: float,
    *,
    moves: int,
    until: float | None = None,
    seed: int = 0,
    allowed: Callable[[list[list[int]], list[int]], bool] | None = None,
) -> tuple[list[list[int]], list[int], float]:
    """Improve a plan by local search.

    Args:
        graph: the numbered problem.
        rows: a plan, numbered actions per rank.
        owners: of that plan.
        bound: stop when this step time is reached.
        moves: most moves tried; with `until` None the result depends on nothing else.
        until: `time.monotonic()` at which to stop, None for never.
        seed: of the random choices.
        allowed: what a plan must satisfy besides (memory); None for nothing.

    Returns:
        The best plan seen: rows, owners, step time; never worse than the given one.
    """
    draw = random.Random(seed)
    now = _State(graph, [list(row) for row in rows], list(owners))
    first = best = near = now.copy()
    stale = moved = 0  # moves since the best plan near here was found, in all and since going back to it
    for _ in range(moves):
        if best.step_time <= bound * (1 + _ROUNDING) or (until is not None and time.monotonic() > until):
            break
        critical = now.critical()
        if not critical:
            break
        trial, stale, moved = now.copy(), stale + 1, moved + 1
        if not trial.rebuild(_choose(now, critical, draw), draw) or (allowed and not allowed(trial.rows, trial.owners)):
            continue
        slack = _TEMPERATURE * bound * draw.random() ** 3
        if trial.step_time <= now.step_time + slack:
            now = trial
        if trial.step_time < near.step_time * (1 - _ROUNDING):
            near, stale, moved = trial.copy(), 0, 0
            if near.step_time < best.step_time:
                best = near
        if stale > _ROUND:
            now, near, stale, moved = first.copy(), first, 0, 0
        elif moved > _PATIENCE:
            now, moved = near.copy(), 0
    return best.rows, best.owners, best.step_time


_TEMPERATURE = 0.01  # a plan may become worse by this part of the bound, seldom by all of it
_PATIENCE = 200  # moves without a better plan before going back to the best one near here
_ROUND = 800  # before starting again from the first plan


def _choose(state: _State, critical: list[int], draw: random.Random) -> list[int]:
    """Choose encodes to take out: one on the critical path, some that are due at about its time."""
    first = draw.choice(critical)
    count = draw.choice((1, 1, 2, 2, 3, 4, 6))
    encodes = state.graph.problem.encodes
    if count == 1:
        return [first]
    group = encodes[first].group
    near = [e for e in range(len(encodes)) if e != first and abs(encodes[e].group - group) <= 3]
    others = draw.sample(near, min(count - 1, len(near)))
    return [first, *others]


class _State:
    """A plan that is changed in place."""

    def __init__(self, graph: Graph, rows: list[list[int]], owners: list[int], played=None) -> None:
        self.graph, self.rows, self.owners = graph, rows, owners
        self.links = graph.links(owners)
        self.played = played or play(rows, self.links, graph.duration)
        self.step_time = self.played.step_time

    def copy(self) -> _State:
        return _State(self.graph, [list(row) for row in self.rows], list(self.owners), self.played)

    def critical(self) -> list[int]:
        """Return the encodes with an action on a longest path."""
        graph, start = self.graph, self.played.start
        tail = tails(self.rows, self.links, graph.duration, self.played.order)
        limit = self.step_time * (1 - _ROUNDING)
        found = []
        for encode in range(graph.encodes):
            for action in (graph.forward(encode), graph.backward(encode)):
                if start[action] >= 0 and graph.duration[action] and start[action] + tail[action] >= limit:
                    found.append(encode)
        return found

    def rebuild(self, out: list[int], draw: random.Random) -> bool:
        """Take encodes out and put them back one by one, the first due first or in any order."""
        graph, encodes = self.graph, self.graph.problem.encodes
        gone = {graph.forward(e) for e in out} | {graph.backward(e) for e in out}
        self.rows = [[action for action in row if action not in gone] for row in self.rows]
        if draw.random() < 0.7:
            out = sorted(out, key=lambda e: (encodes[e].group, e))
        # What is out takes no time and stands nowhere: others wait for nothing from it.
        links = self.links = graph.links(self.owners)
        for encode in out:
            feeds, forward = encodes[encode].feeds, graph.forward(encode)
            links[feeds] = tuple(link for link in links[feeds] if link[0] != forward)
        for encode in out:
            self.played = play(self.rows, self.links, graph.duration)
            if self.played is None or not self.insert(encode, draw):
                return False
        self.played = play(self.rows, self.links, graph.duration)
        if self.played is None:
            return False
        self.step_time = self.played.step_time
        return True

    def insert(self, encode: int, draw: random.Random) -> bool:
        """Put an encode where the longest path through it is shortest; ties are drawn."""
        graph, fields = self.graph, self.graph.problem.encodes[encode]
        start, duration = self.played.start, graph.duration
        tail = tails(self.rows, self.links, duration, self.played.order)
        home = graph.problem.homes[encode]
        best, length, floor = [], float("inf"), self.played.step_time
        for rank in range(graph.problem.ranks) if fields.owner is None else (fields.owner,):
            row, away = self.rows[rank], rank != home
            due = (fields.send if away else 0.0) + tail[fields.feeds]
            forward = _places_before(row, start, duration, tail, fields.forward, due, start[fields.feeds], floor)
            if not forward[1]:
                continue
            value, backward = forward[0], (0.0, [-1])
            if fields.backward is not None:
                end = start[fields.follows] + duration[fields.follows] + (fields.receive if away else 0.0)
                backward = _places_after(row, start, duration, tail, fields.backward, end, floor)
                value = max(value, backward[0])
            if value < length - _ROUNDING * floor:
                best, length = [], value
            if value <= length + _ROUNDING * floor:
                best.append((rank, forward[1], backward[1]))
        if not best:
            return False
        rank, first, last = draw.choice(best)
        i, j = draw.choice(first), draw.choice(last)
        if j >= 0:
            self.rows[rank].insert(max(i, j), graph.backward(encode))
        self.rows[rank].insert(i, graph.forward(encode))
        self.owners[encode] = rank
        delay = fields.send if rank != home else 0.0
        self.links[fields.feeds] = (*self.links[fields.feeds], (graph.forward(encode), delay))
        if j >= 0:
            receive = fields.receive if rank != home else 0.0
            self.links[graph.backward(encode)] = ((fields.follows, receive),)
        return True


def _places_before(row, start, duration, tail, size, due, feeds, floor) -> tuple[float, list[int]]:
    """Find the places for a forward in a row: the length of the path through them, and where."""
    best, places, end = float("inf"), [], 0.0
    for index in range(len(row) + 1):
        after = tail[row[index]] if index < len(row) else 0.0
        value = end + size + (after if after > due else due)
        if value < floor:
            value = floor  # it is on no longest path, all such places are equally good
        if value < best:
            best, places = value, [index]
        elif value == best:
            places.append(index)
        if index == len(row) or start[row[index]] > feeds:
            break
        end = start[row[index]] + duration[row[index]]
    return best, places


def _places_after(row, start, duration, tail, size, ready, floor) -> tuple[float, list[int]]:
    """Find the places for a backward in a row, from the end."""
    best, places, after = float("inf"), [], 0.0
    for index in range(len(row), -1, -1):
        end = start[row[index - 1]] + duration[row[index - 1]] if index else 0.0
        value = (end if end > ready else ready) + size + after
        if value < floor:
            value = floor
        if value < best:
            best, places = value, [index]
        elif value == best:
            places.append(index)
        if end <= ready and end + size < ready:
            break
        if index:
            after = tail[row[index - 1]]
    return best, places
