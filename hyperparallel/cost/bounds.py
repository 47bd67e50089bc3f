"""A lower bound on the step time, whatever the order, owner and place of the encodes.

Source: design, section 4: max(te + (M+P-1) x + tg, M x + M (te+tg) / P) for `transpose >> 1f1b`.
"""

from __future__ import annotations

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F
from hyperparallel.cost.weights import Costs


def lower_bound(plan: Plan, costs: Costs) -> float:
    """Bound the step time from below for every plan with the same slabs and costs.

    Two bounds, the larger one counts. A rank with a Sharded slab cannot start it before the fastest micro-batch
    has come through everything upstream, then has all its work, and after it the fastest backward must still
    travel upstream to the input. And all the work together, over P ranks, takes at least its P-th part.

    Args:
        plan: gives slabs, gates and which regions are Replicated; their owners do not matter.
        costs: durations.

    Returns:
        The bound, in the unit of the costs.
    """
    total = sum(costs.duration(action) for program in plan.compute for action in program)
    bounds = [total / plan.ranks]
    for rank in range(plan.ranks):
        bounds.append(_rank_bound(plan, costs, rank))
    return max(bounds)


def _rank_bound(plan: Plan, costs: Costs, rank: int) -> float:
    placement = plan.placement
    own = [
        stage
        for stage in range(rank, placement.stages, plan.ranks)
        if placement.owners[placement.region_of(stage)] is None
    ]
    if not own:
        return 0.0
    work = [action for action in plan.compute[rank] if action.stage in own]
    busy = sum(costs.duration(action) for action in work)
    head = min(_travel(plan, costs, mb, own[0], F) for mb in range(plan.micro_batches))
    tail = 0.0
    if placement.gates[own[0]].sends_gradient:
        tail = min(_travel(plan, costs, mb, own[0], B) for mb in range(plan.micro_batches))
    return head + busy + tail


def _travel(plan: Plan, costs: Costs, mb: int, stage: int, kind: str) -> float:
    """Time of one micro-batch upstream of a stage: forwards down to it, or backwards from it to the input.

    The message at a Replicated region's seam is left out, since its owner may be the rank at the other end.
    """
    placement, time = plan.placement, 0.0
    path = placement.path(mb)
    for upstream in path[: path.index(stage)]:
        if kind == B and not placement.gates[upstream].receives_gradient:
            continue
        time += costs.duration(Action(upstream, kind, mb))
        if placement.owners[placement.region_of(upstream)] is None:
            # From this stage to the next one, and back from the next one to this.
            time += costs.duration(Action(upstream, SEND_F, mb) if kind == F else Action(upstream + 1, SEND_B, mb))
    return time
