"""How many activations are alive on a rank, in time: the curve whose highest point is the peak live count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import B, F, W
from hyperparallel.cost import Span


def live_curve(row: Sequence[Span], placement: Placement) -> list[tuple[float, int]]:
    """Follow the live (stage, micro-batch) pairs of one rank.

    A pair is alive from the start of its F to the end of its B (or W), or of its F where it has no backward.

    Args:
        row: the rank's compute actions in time.
        placement: gives the gates.

    Returns:
        (time, live count from then on), by time, each time once and the first one 0.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> from hyperparallel.cost import Costs, simulate
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 1}), ranks=1, micro_batches=2)
        >>> live_curve(simulate(plan, Costs({(0, "F"): 1.0, (0, "B"): 2.0})).spans[0], plan.placement)
        [(0.0, 1), (3.0, 1), (6.0, 0)]
    """
    change: dict[float, int] = defaultdict(int, {0.0: 0})
    for action, start, end in row:
        if action.kind == F:
            change[start] += 1
            if not placement.gates[action.stage].receives_gradient:
                change[end] -= 1
        elif action.kind in (B, W):
            change[end] -= 1
    curve, live = [], 0
    for time in sorted(change):
        live += change[time]
        curve.append((time, live))
    return curve
