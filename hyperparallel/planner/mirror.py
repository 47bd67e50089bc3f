"""Time turned around: what a task needed needs it, an encoder backward is a forward."""

from __future__ import annotations

from hyperparallel.planner.play import Graph
from hyperparallel.planner.problem import Encode, Problem, Task


def mirrored(problem: Problem) -> Problem:
    """Return the problem with time running backwards; a plan of it, read from its end, is one of the problem.

    Args:
        problem: encodes without a backward are left out.

    Example:
        >>> from hyperparallel.planner.grid import one_f_one_b
        >>> mirrored(one_f_one_b(2, [3.0, 3.0, 3.0], [5.0] * 3)).rows
        ((5, 3, 4, 1, 2, 0), (11, 10, 9, 8, 7, 6))
    """
    needs: list[list[tuple[int, float]]] = [[] for _ in problem.tasks]
    for index, task in enumerate(problem.tasks):
        for need, delay in task.needs:
            needs[need].append((index, delay))
    tasks = tuple(Task(task.duration, tuple(need)) for task, need in zip(problem.tasks, needs, strict=True))
    rows = tuple(tuple(reversed(row)) for row in problem.rows)
    encodes = tuple(
        Encode(e.backward, e.forward, e.follows, e.feeds, e.receive, e.send, e.owner, e.group)
        for e in problem.encodes
        if e.backward is not None
    )
    return Problem(tasks, rows, encodes)


def turned(graph: Graph, rows: list[list[int]]) -> list[list[int]]:
    """Turn a plan of the mirrored problem around: its forwards are the backwards.

    Args:
        graph: of the problem itself, all of whose encodes have backwards.
        rows: of a plan of the mirrored one.
    """
    first, count = graph.count, graph.encodes
    other = [*range(first), *range(first + count, first + 2 * count), *range(first, first + count)]
    return [[other[action] for action in reversed(row)] for row in rows]
