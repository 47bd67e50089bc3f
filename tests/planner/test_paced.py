"""Paced plans: tight limits are kept for any number of micro-batches, and what is held does not grow with them."""

import pytest
from fill_cases import best_time, check_filling, held, plans, random_problem

from hyperparallel.planner import Encode, LimitError, Problem, fill
from hyperparallel.planner.grid import Case, one_f_one_b
from hyperparallel.planner.least_held import least_held
from hyperparallel.planner.list_plan import warmup
from hyperparallel.planner.live import most_waiting, peak_live
from hyperparallel.planner.pace_plans import paced_plan, tightened
from hyperparallel.planner.play import Graph, play

RANKS = 4


@pytest.mark.parametrize("count", [16, 64])
@pytest.mark.parametrize(("pieces", "least"), [(1, 2), (4, 5)])
def test_tight_limits_of_a_trained_encoder(count, pieces, least):
    """Four micro-batches are open when a forward of rank 0 starts; one more than its own pieces is the least."""
    case = Case(RANKS, count, 12.0, True, pieces)
    problem = case.problem(live_limit=least)
    filling = fill(problem, engine="list")
    check_filling(problem, filling)
    assert held(problem, filling) <= least
    with pytest.raises(LimitError, match=rf"no plan keeps .* {least} encodes is the smallest feasible one"):
        fill(case.problem(live_limit=least - 1), engine="list")


def test_one_encode_a_rank_will_do_for_as_many_micro_batches_as_ranks():
    problem = Case(RANKS, RANKS, 12.0, True).problem(live_limit=1)
    filling = fill(problem, engine="list")
    check_filling(problem, filling)
    assert held(problem, filling) == 1


@pytest.mark.parametrize("owner", [0, 2])
def test_given_owners(owner):
    """All encodes on one rank: it holds the graphs of all micro-batches in flight; home also what waits there."""
    case = one_f_one_b(RANKS, [4.0] * 12, [8.0] * 12)
    encodes = tuple(encode_on(encode, owner) for encode in case.encodes)
    graph = Graph(Problem(case.tasks, case.rows, encodes))
    assert least_held(graph) == RANKS
    plan = paced_plan(graph, RANKS)
    played = play(plan.rows, graph.links(plan.owners), graph.duration)
    assert set(plan.owners) == {owner} and max(peak_live(graph, plan.owners, played)) == RANKS


def encode_on(encode: Encode, owner: int) -> Encode:
    return Encode(encode.forward, encode.backward, encode.feeds, encode.follows, 0.0, 0.0, owner, encode.group)


@pytest.mark.parametrize("case", [Case(2, 2, 2.0, True), Case(2, 3, 2.0)])
def test_the_least_is_never_more_than_some_plan_holds(case):
    """Over all plans of a tiny problem."""
    graph = Graph(case.problem())
    most = []
    for rows, owners in plans(graph.problem):
        played = play(graph.number(rows), graph.links(owners), graph.duration)
        if played is not None:
            most.append(max(peak_live(graph, owners, played)))
    assert least_held(graph) <= min(most)
    plan = paced_plan(graph, min(most))
    assert plan is not None and plan.step_time >= best_time(graph.problem)


@pytest.mark.parametrize("seed", range(12))
def test_any_order_is_paced_or_refused(seed):
    graph = Graph(random_problem(seed, given=seed % 2 == 1))
    found = 0
    for limit in range(1, graph.encodes + 1):
        plan = paced_plan(graph, limit)
        if plan is not None:
            found += 1
            played = play(plan.rows, graph.links(plan.owners), graph.duration)
            assert played.step_time == plan.step_time and max(peak_live(graph, plan.owners, played)) <= limit
            assert limit >= least_held(graph)
    assert found


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("encode", [4.0, 12.0])  # te / x = 1/3 and 1
def test_what_is_held_does_not_grow_with_the_micro_batches(trained, pieces, encode):
    for count in (16, 32, 64):
        problem = Case(RANKS, count, encode, trained, pieces).problem()
        graph, filling = Graph(problem), fill(problem, engine="list")
        played = play(graph.number(filling.rows), graph.links(filling.owners), graph.duration)
        assert max(peak_live(graph, filling.owners, played)) <= 4 * RANKS * pieces
        assert most_waiting(graph, filling.owners, played) <= 4 * RANKS * pieces


def test_a_tightened_plan_is_no_slower_and_holds_less():
    graph = Graph(Case(RANKS, 32, 4.0, True).problem())
    plan = warmup(graph)
    tight = tightened(graph, plan, 8)
    played = play(tight.rows, graph.links(tight.owners), graph.duration)
    assert tight.step_time == played.step_time <= plan.step_time
    assert (
        max(peak_live(graph, tight.owners, played))
        <= 10
        < most_waiting(graph, plan.owners, play(plan.rows, graph.links(plan.owners), graph.duration))
    )
    assert tightened(graph, tight, 100) is tight
