"""Playing an order agrees with relaxation; tails with what is left after every action."""

import pytest
from fill_cases import random_problem, times

from hyperparallel.planner.grid import one_f_one_b
from hyperparallel.planner.list_plan import list_plan
from hyperparallel.planner.play import Graph, play, tails


@pytest.mark.parametrize("seed", range(6))
def test_play_and_tails(seed):
    problem = random_problem(seed)
    graph = Graph(problem)
    step_time, rows, owners = list_plan(graph)
    links = graph.links(owners)
    played = play(rows, links, graph.duration)
    expected = times(problem, graph.name(rows), owners)
    assert max(end for _, end in expected.values()) == played.step_time == step_time
    tail = tails(rows, links, graph.duration, played.order)
    for row, named in zip(rows, graph.name(rows), strict=True):
        for action, name in zip(row, named, strict=True):
            assert played.start[action] == expected[name][0]
            assert played.start[action] + tail[action] <= step_time + 1e-9
    assert any(abs(played.start[a] + tail[a] - step_time) < 1e-9 for row in rows for a in row)


def test_names_and_numbers():
    graph = Graph(one_f_one_b(1, [3.0], [5.0]))
    rows = ((("F", 0), ("T", 0), ("T", 1), ("B", 0)),)
    assert graph.number(rows) == [[2, 0, 1, 3]]
    assert graph.name(graph.number(rows)) == rows
    assert graph.owners(graph.number(rows)) == [0]


def test_a_circle_does_not_play():
    graph = Graph(one_f_one_b(1, [3.0], [None]))
    assert play([[0, 1, 2]], graph.links([0]), graph.duration) is None
