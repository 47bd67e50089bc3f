"""`owner=balanced` with the paper's place: choose who encodes what, all encodes first, all encoder backwards last."""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.planner.bounds import lower_bound
from hyperparallel.planner.list_plan import around
from hyperparallel.planner.play import Graph, play
from hyperparallel.planner.problem import Filling, Problem

_PASSES = 4
_ROUNDING = 1e-6


def balance(problem: Problem) -> Filling:
    """Choose owners for the warmup order, so that the step is as short as can be found by moving one encode at a time.

    Args:
        problem: where owners are given, they stay.

    Returns:
        The plan. Its bound holds for every place of the encodes, not only for this one.

    Example:
        >>> from hyperparallel.planner.grid import one_f_one_b
        >>> balance(one_f_one_b(2, [9.0, 1.0, 9.0, 1.0], [None] * 4)).step_time
        69.0
    """
    graph = Graph(problem)
    homes = problem.homes
    owners = [homes[index] if encode.owner is None else encode.owner for index, encode in enumerate(problem.encodes)]
    open_ = [index for index, encode in enumerate(problem.encodes) if encode.owner is None]
    step_time = step_time_of(graph, owners)
    spread = list(owners)
    for place, index in enumerate(open_):
        spread[index] = place % problem.ranks
    if step_time_of(graph, spread) <= step_time:
        owners, step_time = spread, step_time_of(graph, spread)
    for _ in range(_PASSES):
        before = step_time
        for index in open_:
            for rank in range(problem.ranks):
                moved = [*owners[:index], rank, *owners[index + 1 :]]
                time = step_time_of(graph, moved)
                if time < step_time:
                    owners, step_time = moved, time
        if step_time == before:
            break
    rows = around(graph, owners)
    bound = min(lower_bound(problem, step_time), step_time)
    proven = step_time <= bound * (1 + _ROUNDING)
    return Filling(graph.name(rows), tuple(owners), step_time, bound, proven, "local search")


def step_time_of(graph: Graph, owners: Sequence[int]) -> float:
    """Return the step time of the warmup order with these owners."""
    played = play(around(graph, owners), graph.links(owners), graph.duration)
    assert played is not None, "encodes around everything else cannot wait in a circle"
    return played.step_time
