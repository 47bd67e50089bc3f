"""From a schedule line and costs to a plan whose encodes are placed: the planner's front.

What the line leaves open is made a `Problem` (`problem.py`), solved, and given back to `derive`, which makes the same
kind of plan as ever: static, checked by `validate`, run by every runner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hyperparallel.algebra import Plan, Schedule, derive, normal_form, parse, validate
from hyperparallel.algebra.model import ModelSpec
from hyperparallel.algebra.placement import Node
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, I, W
from hyperparallel.algebra.regions import Encodes, fill_parts, needs_planner
from hyperparallel.cost.timeline import play
from hyperparallel.cost.weights import Costs
from hyperparallel.limits import MAX_PLANNING_S
from hyperparallel.planner.fill import fill
from hyperparallel.planner.live import most_waiting, peak_live
from hyperparallel.planner.owners import balance
from hyperparallel.planner.play import Graph
from hyperparallel.planner.play import play as play_rows
from hyperparallel.planner.problem import Encode, Filling, LimitError, Problem, Rows, Task

_PLAY_S = 4.5e-7  # seconds that an action takes when a plan is played once; measured on a server core
_LONG_S = 20  # seconds after which one wants to know
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How long and how hard to plan.

    Args:
        time_limit_s: seconds of the clock; not looked at when `work_limit` is given.
        work_limit: bounds planning by work instead, about seconds: the same input then gives the same plan everywhere.
        seed: of search and solver.
        engine: "auto", "list" (milliseconds), "search" or "exact".
        live_limit: most encodes that a rank may hold at a time; None for no limit.
    """

    time_limit_s: float = 10.0
    work_limit: float | None = None
    seed: int = 0
    engine: str = "auto"
    live_limit: int | None = None


@dataclass(frozen=True)
class Certificate:
    """How good a plan is.

    Args:
        step_time: of the plan, in the unit of the costs.
        bound: no plan with the same order of the backbone is faster.
        proven: the step time is the bound.
        engine: what found it.
        held: per rank, the most encodes (or pieces) that it holds at a time: see `live.py`.
        waiting: the most whose features wait on the first rank of the backbone at a time.
    """

    step_time: float
    bound: float
    proven: bool
    engine: str
    held: tuple[int, ...]
    waiting: int

    @property
    def gap(self) -> float:
        """How much slower than the bound the plan is at most, as a fraction of the bound."""
        return self.step_time / self.bound - 1.0 if self.bound else 0.0

    def __str__(self) -> str:
        if self.proven:
            return "proven optimal for this order of the backbone"
        return f"at most {100 * self.gap:.1f} % above the optimum for this order of the backbone"


class Planned(NamedTuple):
    """A plan, and its certificate where the planner decided something."""

    plan: Plan
    certificate: Certificate | None


def plan_line(
    schedule: Schedule | str,
    model: ModelSpec,
    ranks: int,
    micro_batches: int,
    costs_of: Callable[[Plan], Costs],
    settings: Settings | None = None,
) -> Planned:
    """Plan a schedule line: derive it, and decide what `owner=balanced` and `place=fill` leave open.

    Args:
        schedule: a parsed line or its text.
        model: the layers, in parts.
        ranks: P >= 1.
        micro_batches: M >= 1.
        costs_of: prices a plan; the encoder costs the same on every rank.
        settings: limits of the search.

    Raises:
        ScheduleError: the line does not fit the model, or no plan keeps the limit on live encodes.
        LimitError: planning would take more than MAX_PLANNING_S.

    Returns:
        The validated plan; never slower than the same line with `owner=roundrobin, place=warmup`.

    Example:
        >>> from hyperparallel.cost import PartCost, costs_from_parts
        >>> parts = {"vision": PartCost(12, 0), "llm": PartCost(4, 8)}
        >>> planned = plan_line("transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)",
        ...     ModelSpec.of({"vision": 4, "llm": 8}, frozen={"vision"}), ranks=4, micro_batches=8,
        ...     costs_of=lambda plan: costs_from_parts(plan, parts))
        >>> planned.certificate.step_time, str(planned.certificate)
        (144.0, 'proven optimal for this order of the backbone')
    """
    settings = settings or Settings()
    schedule = parse(schedule) if isinstance(schedule, str) else schedule
    schedule = normal_form(fill_parts(schedule, model))
    first = schedule.regions[0]
    if not needs_planner(first):
        return Planned(validate(derive(schedule, model, ranks, micro_batches)), None)
    base = base_of(schedule, model, ranks, micro_batches)
    # What is wrong with the line is said before any work.
    derive(schedule, model, ranks, micro_batches, Encodes(base.owner or (), base.compute))
    costs = costs_of(base)
    problem = problem_of(base, costs, first.option("owner") == "balanced", settings.live_limit)
    _check_effort(problem, f"{schedule} with P = {ranks}, M = {micro_batches}", first.option("place") == "warmup")
    if first.option("place") == "warmup":
        filling = balance(problem)
    else:
        filling = fill(
            problem,
            time_limit_s=settings.time_limit_s,
            work_limit=settings.work_limit,
            seed=settings.seed,
            engine=settings.engine,
        )
    plan = derive(schedule, model, ranks, micro_batches, encodes_of(base, filling.rows, filling.owners, costs))
    return Planned(validate(plan), certify(problem, filling))


def _check_effort(problem: Problem, what: str, by_owner: bool) -> None:
    """Say beforehand that planning will take long; refuse what would take too long."""
    encodes = len(problem.encodes)
    tries = encodes * (2 * problem.ranks if by_owner else 2.4)  # each plays the whole plan
    expected = tries * (len(problem.tasks) + encodes) * _PLAY_S
    if expected > MAX_PLANNING_S:
        raise LimitError(
            f"planning {what} would take about {expected / 60:.0f} minutes, as every encode is tried in all of it; "
            f"at most {MAX_PLANNING_S // 60} are supported, so use fewer micro-batches, or leave owner and place away"
        )
    if expected > _LONG_S:
        _logger.warning(f"planning {what} takes about {expected:.0f} s, whatever its limit is")


def certify(problem: Problem, filling: Filling) -> Certificate:
    """Say how good what an engine found is, and what its ranks hold."""
    graph = Graph(problem)
    played = play_rows(graph.number(filling.rows), graph.links(filling.owners), graph.duration)
    assert played is not None, "the engine's plan waits in a circle"
    return Certificate(
        filling.step_time,
        filling.bound,
        filling.proven,
        filling.engine,
        tuple(peak_live(graph, filling.owners, played)),
        most_waiting(graph, filling.owners, played),
    )


def base_of(schedule: Schedule, model: ModelSpec, ranks: int, micro_batches: int) -> Plan:
    """Derive a line with the paper's owners and place where they are left to the planner.

    Args:
        schedule: in normal form, with its parts.
        model: the layers, in parts.
        ranks: P >= 1.
        micro_batches: M >= 1.

    Raises:
        ScheduleError: the line does not fit.
    """
    first = schedule.regions[0]
    kept = [(key, value) for key, value in first.options if (key, value) not in _OPEN]
    published = replace(schedule, regions=(replace(first, options=tuple(kept)), *schedule.regions[1:]))
    return derive(published, model, ranks, micro_batches)


_OPEN = (("owner", "balanced"), ("place", "fill"))


def problem_of(base: Plan, costs: Costs, choose_owners: bool, live_limit: int | None = None) -> Problem:
    """Make the planner's problem of a plan: its backbone's order with its encodes taken out.

    Args:
        base: a plan whose first region is Replicated.
        costs: durations.
        choose_owners: whether owners are open; else they are the plan's.
        live_limit: most encodes that a rank may hold.

    Returns:
        The problem. Encodes come by micro-batch and piece, tasks by rank.
    """
    placement = base.placement
    rows = [[action for action in row if action.stage >= base.ranks] for row in base.compute]
    number = {action: index for index, action in enumerate(action for row in rows for action in row)}
    tasks = tuple(Task(costs.duration(action), _needs(action, base, costs, number)) for action in number)
    encodes = []
    for stage, unit in encode_nodes(base):
        after = placement.neighbours[stage, unit][1]
        assert after is not None, "encodes feed nothing"
        backward = gradient = None
        if placement.gates[stage].receives_gradient:
            backward = costs.duration(Action(stage, B, unit))
            gradient = next(
                number[Action(after[0], kind, after[1])]
                for kind in (B, I)
                if Action(after[0], kind, after[1]) in number
            )
        encodes.append(
            Encode(
                forward=costs.duration(Action(stage, F, unit)),
                backward=backward,
                feeds=number[Action(after[0], F, after[1])],
                follows=gradient,
                send=costs.duration(Action(stage, SEND_F, unit)),
                receive=costs.duration(Action(after[0], SEND_B, unit)) if backward is not None else 0.0,
                owner=None if choose_owners else stage,
                group=after[1],
            )
        )
    numbered = tuple(tuple(number[action] for action in row) for row in rows)
    return Problem(tasks, numbered, tuple(encodes), live_limit)


def encode_nodes(plan: Plan) -> list[Node]:
    """List what the first region runs, by micro-batch and piece."""
    return [node for mb in range(plan.micro_batches) for node in plan.placement.nodes(0, mb)]


def _needs(action: Action, base: Plan, costs: Costs, number: dict[Action, int]) -> tuple[tuple[int, float], ...]:
    """List what a task needs from other tasks, with the delay of the message."""
    stage, kind, mb = action
    before, after = base.placement.neighbours[stage, mb]
    if kind == W:
        return ()
    if kind == F:
        sources = [(Action(left, F, unit), SEND_F) for left, unit in before if left >= base.ranks]
    else:
        options = [] if after is None else [Action(after[0], one, after[1]) for one in (B, I)]
        sources = [(one, SEND_B) for one in options if one in number]
    return tuple(
        (number[one], costs.duration(one._replace(kind=send)) if (one.stage - stage) % base.ranks else 0.0)
        for one, send in sources
    )


def encodes_of(base: Plan, rows: Rows, owners: Sequence[int], costs: Costs) -> Encodes:
    """Turn what the engine found into owners, orders and times of a plan.

    Args:
        base: the plan whose problem was solved.
        rows: per rank, what runs in order.
        owners: of every encode.
        costs: durations, for the times.
    """
    split, nodes = base.placement.split, encode_nodes(base)
    ranks = list(owners)
    grouped = ranks if split == 1 else [tuple(ranks[at : at + split]) for at in range(0, len(ranks), split)]
    tasks = [action for row in base.compute for action in row if action.stage >= base.ranks]
    compute = tuple(
        tuple(tasks[index] if kind == "T" else Action(rank, kind, nodes[index][1]) for kind, index in row)
        for rank, row in enumerate(rows)
    )
    placement = replace(base.placement, owners=(tuple(grouped), *base.placement.owners[1:]))
    ends = tuple(tuple(span.end for span in row) for row in play(compute, placement, costs))
    return Encodes(tuple(grouped), compute, ends)
