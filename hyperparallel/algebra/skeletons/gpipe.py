"""`gpipe`: all forwards, then all backwards in the same order of micro-batches.

Source: GPipe (Huang et al., 2019). Backwards run first-in-first-out here, so the order of every message
channel is the order of the micro-batches.
"""

from __future__ import annotations

from hyperparallel.algebra.program import Action
from hyperparallel.algebra.skeletons.base import Sharded, Wave, register


class GPipe(Sharded):
    """All forwards, then all backwards."""

    name = "gpipe"

    def orders(self, wave: Wave) -> list[list[Action]]:
        """See `Sharded.orders`: chunk by chunk."""
        micro_batches, chunks = range(wave.placement.micro_batches), range(len(wave.chunks))
        steps = [(chunk, "F", mb) for chunk in chunks for mb in micro_batches]
        steps += [(chunk, "B", mb) for chunk in reversed(chunks) for mb in micro_batches]
        return [wave.keep(rank, steps) for rank in range(wave.ranks)]


register(GPipe())
