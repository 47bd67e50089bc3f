"""Settling keeps the step time and lets features wait less."""

import pytest

from hyperparallel.planner.grid import Case
from hyperparallel.planner.list_plan import warmup
from hyperparallel.planner.live import most_waiting, peak_live
from hyperparallel.planner.play import Graph, play
from hyperparallel.planner.settle import settle


@pytest.mark.parametrize("trained", [False, True])
def test_settled_warmup_waits_less_and_takes_no_longer(trained):
    graph = Graph(Case(4, 16, 4.0, trained).problem())
    plan = warmup(graph)
    rows = settle(graph, plan.rows, plan.owners)
    before, after = (play(r, graph.links(plan.owners), graph.duration) for r in (plan.rows, rows))
    assert after.step_time <= before.step_time
    assert most_waiting(graph, plan.owners, after) < most_waiting(graph, plan.owners, before)
    if trained:
        assert sum(peak_live(graph, plan.owners, after)) < sum(peak_live(graph, plan.owners, before))
