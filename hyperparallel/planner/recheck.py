"""A plan that was read, held against its line and against the costs of the job that is to run it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from math import isclose

from hyperparallel.algebra import Plan, derive
from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.program import Action, B, F
from hyperparallel.algebra.regions import Encodes
from hyperparallel.cost import Costs
from hyperparallel.errors import PlanError
from hyperparallel.planner.bounds import Refutation
from hyperparallel.planner.line import Planned, base_of, certify, encode_nodes, encodes_of, problem_of
from hyperparallel.planner.play import Graph, play
from hyperparallel.planner.problem import Filling, Rows

ROUNDING = 1e-6
"""Times this close to each other, as a part of them, are equal."""


def check_fits(plan: Plan, base: Plan) -> None:
    """Refuse a plan whose owners or order are not what its line leaves open.

    Args:
        plan: with the exact multiset of actions.
        base: of `base_of`, for the same line.

    Raises:
        PlanError: says which owner or action is not the line's.
    """
    first = plan.schedule.regions[0]
    if first.option("owner") != "balanced" and plan.owner != base.owner:
        raise PlanError(f"its owners are not those of the line, {first}; plan again")
    expected = base.compute
    if first.option("place") == "warmup":
        # Around the backbone there is one order for given owners.
        own = derive(plan.schedule, plan.model, plan.ranks, plan.micro_batches, Encodes(plan.owner or ()))
        expected, skipped = own.compute, 0
    else:
        skipped = plan.ranks  # encodes stand anywhere, the backbone in the order of its skeleton
    for rank, (row, wanted) in enumerate(zip(plan.compute, expected, strict=True)):
        steps = [step for step, action in enumerate(row) if action.stage >= skipped]
        order = [action for action in wanted if action.stage >= skipped]
        for step, action in zip_longest(steps, order):
            if row[step] != action:
                what = f"{row[step]} stands where {plan.schedule} has {action}"
                raise refuse(plan.compute, rank, step, what, "plan again")


def certify_anew(planned: Planned, costs_of: Callable[[Plan], Costs]) -> Planned:
    """Compute again what a plan's certificate says, from the costs of now.

    Args:
        planned: of `read_plan_file`.
        costs_of: prices a plan; the encoder costs the same on every rank.

    Returns:
        The plan, with times and what its ranks hold as they are now. Its bound stands where every action ends when
        the file says; else the costs are others, and the bound is one that needs no search.
    """
    plan, claimed = planned
    assert claimed is not None and plan.owner is not None, "a plan that was read has a certificate"
    base = base_of(plan.schedule, plan.model, plan.ranks, plan.micro_batches)
    costs = costs_of(base)
    problem = problem_of(base, costs, plan.schedule.regions[0].option("owner") == "balanced")
    rows, owners = _rows(plan, base), _flat(plan)
    graph = Graph(problem)
    played = play(graph.number(rows), graph.links(owners), graph.duration)
    assert played is not None, "a valid plan does not wait in a circle"
    bound = Refutation(problem).simple
    if _same(plan, encodes_of(base, rows, owners, costs)):
        bound = max(bound, claimed.bound)
    bound = min(bound, played.step_time)
    proven = played.step_time <= bound * (1 + ROUNDING)
    filling = Filling(rows, owners, played.step_time, bound, proven, claimed.engine)
    return Planned(plan, certify(problem, filling))


def check_held(planned: Planned, limit: int | None) -> None:
    """Refuse a plan whose ranks hold more encodes than they may.

    Args:
        planned: of `certify_anew`.
        limit: most live encodes of a rank; None for no limit.

    Raises:
        PlanError: names the rank.
    """
    assert planned.certificate is not None, "a plan that was read has a certificate"
    held = planned.certificate.held
    if limit is not None and max(held) > limit:
        raise PlanError(
            f"rank {held.index(max(held))} holds {max(held)} encodes at a time, and the memory limit is {limit}; plan "
            "again within it"
        )


def _flat(plan: Plan) -> tuple[int, ...]:
    """List the owner of every encode, by micro-batch and piece."""
    owners = plan.owner or ()
    return tuple(rank for owner in owners for rank in (owner if isinstance(owner, tuple) else (owner,)))


def _rows(plan: Plan, base: Plan) -> Rows:
    """Turn a plan's actions into those of the planner's problem."""
    tasks = [action for row in base.compute for action in row if action.stage >= base.ranks]
    number = {action: index for index, action in enumerate(tasks)}
    encode = {unit: index for index, (_, unit) in enumerate(encode_nodes(base))}

    def named(action: Action) -> tuple[str, int]:
        if action.stage >= base.ranks:
            return "T", number[action]
        return (F if action.kind == F else B), encode[action.mb]

    return tuple(tuple(map(named, row)) for row in plan.compute)


def _same(plan: Plan, now: Encodes) -> bool:
    """Tell whether every action ends when the plan says."""
    assert plan.ends is not None and now.ends is not None, "a plan that was read has times"
    pairs = [pair for row, other in zip(plan.ends, now.ends, strict=True) for pair in zip(row, other, strict=True)]
    return all(isclose(one, other, rel_tol=ROUNDING) for one, other in pairs)
