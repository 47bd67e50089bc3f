"""Local search improves the paper's placement, never makes a plan worse, repeats itself."""

import pytest

from hyperparallel.planner.grid import Case
from hyperparallel.planner.list_plan import warmup
from hyperparallel.planner.play import Graph, play
from hyperparallel.planner.search import improve


@pytest.mark.parametrize("case", [Case(4, 8, 12.0), Case(4, 8, 12.0, True), Case(3, 6, 36.0, False, 4, True)])
def test_improves_and_repeats(case):
    graph = Graph(case.problem())
    plan = warmup(graph)
    first, second = (improve(graph, plan.rows, plan.owners, 1.0, moves=400, seed=1) for _ in range(2))
    assert first == second
    rows, owners, step_time = first
    assert step_time < plan.step_time
    assert play(rows, graph.links(owners), graph.duration).step_time == step_time


def test_stops_at_the_bound():
    graph = Graph(Case(4, 8, 12.0).problem())
    plan = warmup(graph)
    rows, owners, step_time = improve(graph, plan.rows, plan.owners, plan.step_time, moves=400)
    assert (rows, owners, step_time) == (plan.rows, plan.owners, plan.step_time)
