"""Time turned around twice is time; the optimum is the same both ways."""

from fill_cases import best_time

from hyperparallel.planner.grid import one_f_one_b
from hyperparallel.planner.mirror import mirrored


def test_twice_is_the_same():
    problem = one_f_one_b(3, [5.0, 1.0, 2.0], [7.0, 0.0, 3.0], message=1.0)
    assert mirrored(mirrored(problem)) == problem


def test_optimum_is_the_same():
    problem = one_f_one_b(2, [9.0, 2.0], [5.0, 3.0], message=1.0)
    assert best_time(mirrored(problem)) == best_time(problem)
