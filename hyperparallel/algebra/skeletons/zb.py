"""`zb`: the backward in two parts, I (input gradient, others wait for it) and W (weight gradient, nobody does).

W moves into what would be bubbles. `fold=v` lays the layers in a V, which gives the zero-bubble V schedule. Source:
Zero Bubble Pipeline Parallelism (Qi et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable

from hyperparallel.algebra.listing import list_schedule
from hyperparallel.algebra.program import Action
from hyperparallel.algebra.skeletons.base import Option, Sharded, Value, Wave, is_name, register


class ZeroBubble(Sharded):
    """Split backwards."""

    name = "zb"
    options = {**Sharded.options, "fold": Option("none", is_name("none", "v"), "none or v")}
    splits = True

    def folds(self, option: Callable[[str], Value]) -> tuple[bool, ...]:
        """See `Sharded.folds`."""
        return (False, True) if option("fold") == "v" else (False,)

    def orders(self, wave: Wave) -> list[list[Action]]:
        """See `Sharded.orders`."""
        return list_schedule(wave.placement, wave.chunks, frozenset(wave.chunks), frozenset())


register(ZeroBubble())
