"""`wave`: a fold. Rank r holds slab r on the way out and, reflected, slab r again on the way back (a V).

The seam at the last rank costs no message, and input and loss are on the same rank. Source: Hanayo (Liu et al.,
2023).
"""

from __future__ import annotations

from collections.abc import Callable

from hyperparallel.algebra.listing import list_schedule
from hyperparallel.algebra.program import Action
from hyperparallel.algebra.skeletons.base import Sharded, Value, Wave, register


class Fold(Sharded):
    """One count makes two regions, out and back."""

    name = "wave"

    def folds(self, option: Callable[[str], Value]) -> tuple[bool, ...]:
        """See `Sharded.folds`."""
        return (False, True)

    def orders(self, wave: Wave) -> list[list[Action]]:
        """See `Sharded.orders`."""
        return list_schedule(wave.placement, wave.chunks, frozenset(), frozenset())


register(Fold())
