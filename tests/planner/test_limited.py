"""Limits on live encodes are kept, and what is impossible is said with the smallest that is not."""

import re

import pytest
from fill_cases import check_filling, held, random_problem

from hyperparallel.errors import ScheduleError
from hyperparallel.planner import LimitError, fill
from hyperparallel.planner.grid import Case


@pytest.mark.parametrize(
    ("case", "limit"),
    [
        (Case(4, 8, 12.0), 1),
        (Case(4, 8, 12.0), 3),
        (Case(4, 8, 12.0, True), 2),
        (Case(4, 8, 12.0, True), 4),
        (Case(3, 6, 12.0, True, 1, True), 3),
        (Case(4, 8, 12.0, True, 2, True), 6),
    ],
)
def test_limit_is_kept(case, limit):
    problem = case.problem(live_limit=limit)
    filling = fill(problem, work_limit=0.3)
    check_filling(problem, filling)
    assert held(problem, filling) <= limit


def test_a_loose_limit_costs_nothing():
    free, limited = (fill(Case(4, 8, 12.0).problem(live_limit=limit), work_limit=0.3) for limit in (None, 8))
    assert limited.step_time == free.step_time


def test_a_tight_limit_costs_time():
    free, limited = (fill(Case(4, 8, 12.0).problem(live_limit=limit), work_limit=0.3) for limit in (None, 1))
    assert limited.step_time > free.step_time


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_impossible_limit_names_the_smallest(limit):
    """A task needs its four pieces at once, so its rank holds four."""
    with pytest.raises(LimitError, match=f"memory limit of {limit} encode.* smallest feasible") as error:
        fill(Case(4, 8, 12.0, pieces=4).problem(live_limit=limit))
    assert isinstance(error.value, ScheduleError)
    smallest = int(re.search(r"raise the limit to (\d+)", str(error.value)).group(1))
    assert smallest == 4
    problem = Case(4, 8, 12.0, pieces=4).problem(live_limit=smallest)
    filling = fill(problem, engine="list")
    check_filling(problem, filling)
    assert held(problem, filling) <= smallest


@pytest.mark.parametrize("seed", range(6))
def test_any_order(seed):
    problem = random_problem(seed)
    limited = type(problem)(problem.tasks, problem.rows, problem.encodes, live_limit=4)
    filling = fill(limited, engine="search", work_limit=0.2)
    check_filling(limited, filling)
    assert held(limited, filling) <= 4
