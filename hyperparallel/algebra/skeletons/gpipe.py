"""`gpipe`: all forwards, then all backwards in the same order.

Source: GPipe (Huang et al., 2019). Backwards run first-in-first-out here, so the order of every message
channel is the order of the micro-batches.
"""

from __future__ import annotations

from hyperparallel.algebra.skeletons.base import Sharded, Step, register


class GPipe(Sharded):
    """All forwards, then all backwards."""

    name = "gpipe"

    def steps(self, rank: int, ranks: int, micro_batches: int, backward: bool) -> list[Step]:
        """See `Sharded.steps`."""
        forwards: list[Step] = [("F", mb) for mb in range(micro_batches)]
        backwards: list[Step] = [("B", mb) for mb in range(micro_batches)] if backward else []
        return forwards + backwards


register(GPipe())
