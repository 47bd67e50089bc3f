"""`owner=balanced` with the paper's place: as good as trying all owners where these are few."""

from itertools import product

import pytest

from hyperparallel.planner.grid import one_f_one_b
from hyperparallel.planner.owners import balance, step_time_of
from hyperparallel.planner.play import Graph

UNEVEN = [9.0, 1.0, 0.0, 14.0, 3.0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("trained", [False, True])
def test_it_is_within_three_percent_of_the_best_owners(ranks, trained):
    problem = one_f_one_b(ranks, UNEVEN, [2 * time if trained else None for time in UNEVEN])
    graph = Graph(problem)
    best = min(step_time_of(graph, owners) for owners in product(range(ranks), repeat=len(UNEVEN)))
    found = balance(problem)
    assert best <= found.step_time <= 1.03 * best
    assert found.bound <= best
    assert found.step_time <= step_time_of(graph, [mb % ranks for mb in range(len(UNEVEN))])


def test_encodes_lie_around_the_backbone():
    problem = one_f_one_b(2, UNEVEN, UNEVEN)
    for row in balance(problem).rows:
        places = ["FTB".index(kind) for kind, _ in row]
        assert places == sorted(places)
