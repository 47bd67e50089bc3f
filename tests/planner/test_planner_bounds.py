"""Lower bounds never exceed the optimum, and reach what is known of them."""

import pytest
from fill_cases import best_time, random_problem

from hyperparallel.planner.bounds import lower_bound
from hyperparallel.planner.count import slot_ends
from hyperparallel.planner.fill import fill
from hyperparallel.planner.grid import Case, one_f_one_b
from hyperparallel.planner.unit import time_unit

TINY = {
    "frozen": one_f_one_b(2, [5.0, 3.0], [None, None]),
    "trained": one_f_one_b(2, [5.0, 5.0], [7.0, 7.0]),
    "uneven": one_f_one_b(2, [1.0, 30.0], [2.0, 60.0]),
    "split": one_f_one_b(2, [6.0, 6.0], [None, None], pieces=2),
    "messages": one_f_one_b(2, [5.0, 9.0], [3.0, 0.0], message=2.0),
}


@pytest.mark.parametrize("problem", TINY.values(), ids=TINY)
def test_no_plan_beats_the_bound(problem):
    best = best_time(problem)
    assert lower_bound(problem) <= best + 1e-9
    assert lower_bound(problem, best) <= best + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_of_any_order_beats_the_bound(seed):
    problem = random_problem(seed, ranks=2, micro_batches=2, given=seed % 4 == 3)
    best = best_time(problem)
    assert lower_bound(problem) <= best + 1e-9
    assert lower_bound(problem, best) <= best + 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_no_plan_that_is_found_beats_the_bound(seed):
    problem = random_problem(seed, given=seed % 4 == 3)
    found = fill(problem, engine="search", work_limit=0.2).step_time
    assert lower_bound(problem) <= found + 1e-9


@pytest.mark.parametrize(
    ("case", "bound"),
    [
        (Case(4, 4, 12.0), 96.0),
        (Case(4, 4, 12.0, pieces=4), 87.0),
        (Case(4, 8, 12.0, pieces=4), 139.0),
        (Case(4, 8, 12.0, True, 4), 172.0),
    ],
)
def test_bounds_that_are_reached(case, bound):
    assert lower_bound(case.problem()) == bound


def test_formula_of_the_design_is_never_missed():
    for ranks, micro_batches, encode, back in [(2, 4, 12.0, 24.0), (4, 8, 36.0, 0.0), (3, 9, 4.0, 8.0)]:
        problem = one_f_one_b(ranks, [encode] * micro_batches, [back or None] * micro_batches)
        length = encode + (micro_batches + ranks - 1) * 12.0 + back
        work = micro_batches * 12.0 + micro_batches * (encode + back) / ranks
        assert lower_bound(problem) >= max(length, work) - 1e-9


def test_unit_of_time():
    assert time_unit(one_f_one_b(2, [6.0, 3.0], [None, None])) == 1
    assert time_unit(one_f_one_b(2, [6.0, 2.5], [None, None], forward=5.0, backward=10.0)) == 0.5
    assert time_unit(one_f_one_b(2, [0.1234567, 2.5], [None, None])) is None


def test_encodes_that_take_next_to_no_time_are_bounded_at_once():
    """As many ends are looked at as there are encodes, not as would fit: here a hundred million million."""
    problem = one_f_one_b(2, [1e-9] * 8, [None] * 8, forward=3e4, backward=3e4)
    assert lower_bound(problem, 6e5) <= 6e5
    zeros, late = [0.0] * len(problem.tasks), [1e6] * len(problem.tasks)
    assert slot_ends(problem, problem.rows[0], zeros, late, 2**-30, 3) == [2**-30, 2**-29, 3 * 2**-30]
