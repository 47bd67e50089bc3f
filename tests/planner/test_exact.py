"""The solver's optimum is that of trying everything."""

import pytest
from fill_cases import best_time

from hyperparallel.planner.exact import solve, solver_available
from hyperparallel.planner.grid import one_f_one_b
from hyperparallel.planner.list_plan import warmup
from hyperparallel.planner.play import Graph, play

pytestmark = pytest.mark.skipif(not solver_available(), reason="OR-Tools is not installed")

TINY = {
    "frozen": one_f_one_b(2, [13.0, 29.0, 3.0], [None] * 3),
    "trained": one_f_one_b(2, [13.0, 5.0], [17.0, 40.0]),
    "messages": one_f_one_b(2, [5.0, 19.0], [3.0, 11.0], message=2.0),
    "fractions": one_f_one_b(2, [5.1234, 19.777], [None, None], forward=3.3333333),
}


@pytest.mark.parametrize("problem", TINY.values(), ids=TINY)
def test_optimum(problem):
    graph = Graph(problem)
    _, rows, owners = warmup(graph)
    solved = solve(graph, rows, owners, 0.0, time_limit_s=None, work_limit=5.0)
    best = best_time(problem)
    found = play(solved.rows, graph.links(solved.owners), graph.duration).step_time
    assert found == pytest.approx(best, rel=1e-5)
    assert best * (1 - 1e-4) <= solved.bound <= best * (1 + 1e-9)
