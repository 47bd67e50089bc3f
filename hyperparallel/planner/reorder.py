"""`reorder`: which micro-batch of a step goes through the schedule first.

The loss is a sum over micro-batches, so their order is free. A heavy encode that is due late has more time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.cost.timeline import play
from hyperparallel.cost.weights import Costs

SWAPS = 40
"""Exchanges of two micro-batches that are tried."""


class Reordered(NamedTuple):
    """An order of a step's micro-batches, and what it gains.

    Args:
        order: number of the micro-batch, as the data have it, that goes in each place of the schedule.
        before: step time without.
        after: step time with it.
    """

    order: tuple[int, ...]
    before: float
    after: float


def reorder(plan: Plan, costs: Costs, seed: int = 0, swaps: int = SWAPS) -> Reordered:
    """Order the micro-batches of a step so that the plan, which stays as it is, takes less time.

    Args:
        plan: the schedule.
        costs: of the micro-batches as the data have them.
        seed: of the swaps that are tried; the same input gives the same order.
        swaps: number of them.

    Returns:
        The best order of: as they come, heavy encodes last, heavy ones in the middle; improved by swaps.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 2}), ranks=2, micro_batches=4)
        >>> compute = {(stage, kind): 2.0 for stage in range(2) for kind in "FB"}
        >>> reorder(plan, Costs(compute | {(0, "F"): [2.0, 2.0, 2.0, 9.0]}))
        Reordered(order=(0, 3, 2, 1), before=27.0, after=25.0)
    """
    mbs = range(plan.micro_batches)
    weight = [sum(_time(costs, stage, kind, mb) for stage, kind in costs.compute if stage == 0) for mb in mbs]
    rising = sorted(mbs, key=lambda mb: (weight[mb], mb))
    before = step_time(plan, costs, mbs)
    best, least = tuple(mbs), before
    for order in (rising, rising[::2] + rising[1::2][::-1]):
        time = step_time(plan, costs, order)
        if time < least:
            best, least = tuple(order), time
    draw = random.Random(seed)
    for _ in range(swaps if plan.micro_batches > 1 else 0):
        left, right = draw.sample(mbs, 2)
        order = list(best)
        order[left], order[right] = order[right], order[left]
        time = step_time(plan, costs, order)
        if time < least:
            best, least = tuple(order), time
    return Reordered(best, before, least)


def step_time(plan: Plan, costs: Costs, order: Sequence[int] | None = None) -> float:
    """Return the step time of a plan, perhaps with its micro-batches in another order."""
    rows = play(plan.compute, plan.placement, costs if order is None else permuted(costs, order))
    return max((row[-1].end for row in rows if row), default=0.0)


def permuted(costs: Costs, order: Sequence[int]) -> Costs:
    """Put the costs of micro-batches in another order.

    Example:
        >>> permuted(Costs({(0, "F"): [1.0, 2.0]}), (1, 0)).compute
        {(0, 'F'): [2.0, 1.0]}
    """

    def moved(table: Mapping) -> dict:
        return {
            key: [value[mb] for mb in order] if isinstance(value, Sequence) else value for key, value in table.items()
        }

    shares = [costs.shares[mb] for mb in order] if costs.shares else ()
    return replace(costs, compute=moved(costs.compute), message_bytes=moved(costs.message_bytes), shares=shares)


def _time(costs: Costs, stage: int, kind: str, mb: int) -> float:
    value = costs.compute[stage, kind]
    return value[mb] if isinstance(value, Sequence) else value
