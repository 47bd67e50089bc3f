"""How many encodes some rank must hold at a time, whatever the plan.

When a task of a home rank starts, home holds all that it is fed with, and every graph whose backward comes behind
that task in home's row is open somewhere.
"""

from __future__ import annotations

from collections import Counter

from hyperparallel.planner.play import Graph


def least_held(graph: Graph) -> int:
    """Return a limit on live encodes below which there is certainly no plan.

    Take a task that is fed with s encodes and W graphs that are open over it. At limit n home holds at most n - s
    graphs besides the task's own, the other P - 1 ranks at most n each. Home's share of the task's own is at most s,
    and at most n - s' when it is still open at the next task, which is fed with s'. So W <= (P - 1) n + (n - s) +
    min(s, n - s').

    Args:
        graph: the numbered problem.

    Returns:
        The limit, at least 1; a plan that keeps it is not promised.

    Example:
        >>> from hyperparallel.planner.grid import Case
        >>> [least_held(Graph(Case(4, 8, 12.0, trained=True, pieces=pieces).problem())) for pieces in (1, 4)]
        [2, 5]
    """
    problem, least = graph.problem, 1
    for home in set(problem.homes):
        row = problem.rows[home]
        place = {task: index for index, task in enumerate(row)}
        fed = [index for index, task in enumerate(row) if _count(graph, task)]
        for number, index in enumerate(fed):
            later = fed[number + 1] if number + 1 < len(fed) else None
            least = max(least, _least_at(graph, home, place, index, later))
    return least


def _count(graph: Graph, task: int) -> int:
    return sum(graph.problem.encodes[e].forward > 0 for e in graph.feeders[task])


def _least_at(graph: Graph, home: int, place: dict[int, int], index: int, later: int | None) -> int:
    """Find the smallest limit that one task of home's row does not refute."""
    problem, row = graph.problem, graph.problem.rows[home]
    fed = _count(graph, row[index])
    spans = {}  # encode -> place of the task it follows, for the graphs that are open over the task
    for task in row[: index + 1]:
        for e in graph.feeders[task]:
            encode = problem.encodes[e]
            if encode.forward and encode.backward and place.get(encode.follows, -1) > index:
                spans[e] = place[encode.follows]
    own = {e for e in spans if problem.encodes[e].feeds == row[index]}
    still = later is not None and all(spans[e] > later for e in own)
    limit = fed
    given = Counter(problem.encodes[e].owner for e in spans)
    limit = max([limit, *(count for owner, count in given.items() if owner is not None)])
    limit = max(limit, fed + sum(problem.encodes[e].owner == home for e in spans if e not in own))
    while True:
        share = min(fed, limit - _count(graph, row[later])) if still else fed
        if len(spans) <= (problem.ranks - 1) * limit + (limit - fed) + share:
            return limit
        limit += 1
