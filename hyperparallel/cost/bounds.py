"""A lower bound on the step time, whatever the order, owner and place of the encodes.

Source: design, section 4: max(te + (M+P-1) x + tg, M x + M (te+tg) / P) for `transpose >> 1f1b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, I, W
from hyperparallel.cost.weights import Costs


def lower_bound(plan: Plan, costs: Costs) -> float:
    """Bound the step time from below for every plan with the same slabs, costs and split backwards.

    Three bounds, the largest one counts. All the work together, over P ranks, takes at least its P-th part. A
    micro-batch takes as long as its path. And a rank with Sharded slabs cannot start them before the fastest
    micro-batch has come through everything upstream, then has all its work, and after it the fastest backward must
    still travel upstream to the input; only weight gradients (W) may still run while it does.

    Args:
        plan: gives slabs, gates and which regions are Replicated; their owners do not matter.
        costs: durations.

    Returns:
        The bound, in the unit of the costs.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("zb(llm)", ModelSpec.of({"llm": 4}), ranks=4, micro_batches=8)
        >>> lower_bound(plan, Costs({(stage, kind): 1.0 for stage in range(4) for kind in "FIW"}))
        27.0
    """
    busy = [_busy(program, costs, "FBIW") for program in plan.compute]
    trips = _trips(plan, costs)
    whole = [trip.whole for trip in trips.values()]
    ranks = [_rank_bound(plan, costs, rank, trips) for rank in range(plan.ranks)]
    return max(sum(busy) / plan.ranks, *whole, *ranks)


class _Trip(NamedTuple):
    """One micro-batch at one stage: the least time between this stage's actions and the ends of the step.

    Args:
        before: from the start of the step to its F.
        after_f: from the end of its F to the end of the step.
        after_b: from the end of its B or I to the end of the step, its own W aside.
        whole: from the start to the end of the step, through this stage.
    """

    before: float
    after_f: float
    after_b: float
    whole: float


def _trips(plan: Plan, costs: Costs) -> dict[tuple[int, int], _Trip]:
    """Follow every micro-batch along its path, down for `before` and `after_b`, up for `after_f`.

    The message at a Replicated region's seam is left out, since its owner may be the rank at the other end.
    """
    gates, owners = plan.placement.gates, plan.placement.owners
    split = {(action.stage, action.mb) for program in plan.compute for action in program if action.kind == I}

    def longest(stage: int, kind: str, mb: int) -> float:
        """Time of a stage, or of the longest of the pieces, which may run side by side."""
        owner = owners[stage // plan.ranks]
        nodes = [(stage, mb)] if owner is None else plan.placement.nodes(stage // plan.ranks, mb)
        return max(costs.duration(Action(one, kind, unit)) for one, unit in nodes)

    def forward(stage: int, mb: int) -> float:
        return longest(stage, F, mb)

    def hop(sender: int, receiver: int, kind: str, mb: int) -> float:
        sharded = owners[sender // plan.ranks] is None and owners[receiver // plan.ranks] is None
        return costs.duration(Action(sender, kind, mb)) if sharded and (sender - receiver) % plan.ranks else 0.0

    def backward(stage: int, mb: int, after: float) -> float:
        """Time of the B or I, and of what follows it: the stages upstream, beside them its own W."""
        if (stage, mb) not in split:
            return longest(stage, B, mb) + after
        return costs.duration(Action(stage, I, mb)) + max(costs.duration(Action(stage, W, mb)), after)

    trips: dict[tuple[int, int], _Trip] = {}
    for mb, path in enumerate(plan.placement.paths):
        before, after = [0.0], [0.0]
        for left, right in zip(path, path[1:], strict=False):
            before.append(before[-1] + forward(left, mb) + hop(left, right, SEND_F, mb))
            upstream = hop(right, left, SEND_B, mb) + backward(left, mb, after[-1])
            after.append(upstream if gates[right].sends_gradient else 0.0)
        last = path[-1]
        rest = backward(last, mb, after[-1]) if gates[last].receives_gradient else 0.0
        for index in reversed(range(len(path))):
            whole = before[index] + forward(path[index], mb) + rest
            trips[path[index], mb] = _Trip(before[index], rest, after[index], whole)
            if index:
                left, right = path[index - 1], path[index]
                rest += forward(right, mb) + hop(left, right, SEND_F, mb)
    return trips


def _rank_bound(plan: Plan, costs: Costs, rank: int, trips: dict[tuple[int, int], _Trip]) -> float:
    """Bound by one rank's Sharded work: what comes before it, the work, what comes after."""
    placement, mbs = plan.placement, range(plan.micro_batches)
    stages = range(rank, placement.stages, plan.ranks)
    own = [stage for stage in stages if placement.owners[placement.region_of(stage)] is None]
    if not own:
        return 0.0
    work = [action for action in plan.compute[rank] if action.stage in own]
    head = min(trips[own[0], mb].before for mb in mbs)
    # Without W, a micro-batch's actions on a rank wait for each other, so the last of them all is one's last.
    last = next((stage for stage in own if placement.gates[stage].receives_gradient), None)
    tail = min(trips[own[-1], mb].after_f if last is None else trips[last, mb].after_b for mb in mbs)
    return head + _busy(work, costs, "FBI") + max(tail, _busy(work, costs, "W"))


def _busy(program: Sequence[Action], costs: Costs, kinds: str) -> float:
    return sum(costs.duration(action) for action in program if action.kind in kinds)
