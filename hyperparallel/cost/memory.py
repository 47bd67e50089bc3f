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
    kept = [gates.receives_gradient for gates in placement.gates]
    return tuple(_peak(program, kept) for program in compute)


def _peak(program: Sequence[Action], kept: Sequence[bool]) -> int:
    live = peak = 0
    for stage, kind, _ in program:
        if kind == F:
            peak = max(peak, live + 1)
            live += kept[stage]
        elif kind in (B, W):
            live -= 1
    return peak
