"""`replan=step`: plan again for the micro-batches of every step, in milliseconds and without a message.

Every rank knows the sizes of all micro-batches of a step before it begins, and the list schedule is deterministic. So
all ranks come to the same plan by themselves.
"""

from __future__ import annotations

from hyperparallel.algebra import Plan, derive, validate
from hyperparallel.cost.weights import Costs
from hyperparallel.planner.fill import fill
from hyperparallel.planner.line import encodes_of, problem_of
from hyperparallel.planner.reorder import step_time

WORK = 0.025
"""Work limit of the list schedule: half of what it takes otherwise, to leave time for the rest."""


def replan(plan: Plan, costs: Costs, live_limit: int | None = None) -> Plan:
    """Plan the encodes of a step again, for its own costs; the backbone's order stays.

    Args:
        plan: of a line with `place=fill`; its owners are open if the line says `owner=balanced`.
        costs: of the step's micro-batches.
        live_limit: most encodes that a rank may hold at a time.

    Returns:
        The validated plan of the same line, or the given one where no better was found.

    Example:
        >>> from hyperparallel.algebra import ModelSpec
        >>> from hyperparallel.cost import PartCost, costs_from_parts, simulate
        >>> from hyperparallel.cost.parts import mean_cost
        >>> from hyperparallel.planner.line import plan_line
        >>> model = ModelSpec.of({"vision": 2, "llm": 2}, frozen={"vision"})
        >>> llm, line = PartCost(1, 2), "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)"
        >>> mean = {"vision": PartCost(3, 0), "llm": llm}
        >>> static = plan_line(line, model, 2, 4, lambda plan: costs_from_parts(plan, mean)).plan
        >>> step = {"vision": mean_cost([PartCost(time, 0) for time in (0, 9, 0, 3)]), "llm": llm}
        >>> costs = costs_from_parts(static, step)
        >>> simulate(static, costs).step_time, simulate(replan(static, costs), costs).step_time
        (24.0, 22.0)
    """
    first = plan.schedule.regions[0]
    problem = problem_of(plan, costs, first.option("owner") == "balanced", live_limit)
    found = fill(problem, engine="list", work_limit=WORK)
    if live_limit is None and found.step_time >= step_time(plan, costs):
        return plan
    encodes = encodes_of(plan, found.rows, found.owners, costs)
    return validate(derive(plan.schedule, plan.model, plan.ranks, plan.micro_batches, encodes))
