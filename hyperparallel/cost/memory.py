"""How many micro-batches are alive on a rank: what a later backward there still needs."""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import Action, B, F, Program, W


def peak_live(compute: Sequence[Program], placement: Placement) -> tuple[int, ...]:
    """Count, per rank, the most live activations: (stage, micro-batch) pairs between their F and their B (or W).

    A forward without a backward (frozen) is alive only while it runs.

    Args:
        compute: per rank, compute actions in order.
        placement: gives the gates.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 4}), ranks=4, micro_batches=8)
        >>> peak_live(plan.compute, plan.placement)
        (4, 3, 2, 1)
    """
    return tuple(_peak(program, placement) for program in compute)


def _peak(program: Sequence[Action], placement: Placement) -> int:
    live = peak = 0
    for action in program:
        if action.kind == F:
            peak = max(peak, live + 1)
            live += placement.gates[action.stage].receives_gradient
        elif action.kind in (B, W):
            live -= 1
    return peak
