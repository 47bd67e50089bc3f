"""`1f1b`: some forwards ahead, then one forward and one backward in turn; with several chunks, interleaved.

Source: PipeDream-Flush and its interleaved form (Narayanan et al., 2021). Rank r runs ahead by P - r - 1 forwards
with one chunk, by 2 (P - r - 1) + (v - 1) P with v. The published order wants P to divide M; here it is made for
the next multiple of P and the micro-batches that do not exist are left out.
"""

from __future__ import annotations

from hyperparallel.algebra.program import Action
from hyperparallel.algebra.skeletons.base import Sharded, Wave, register


class OneFOneB(Sharded):
    """One forward, one backward."""

    name = "1f1b"

    def orders(self, wave: Wave) -> list[list[Action]]:
        """See `Sharded.orders`."""
        ranks, chunks = wave.ranks, len(wave.chunks)
        # Groups of P micro-batches go through chunk 0, then chunk 1, ...; their backwards in reverse. With one chunk
        # the groups do not matter, and rounding M up to P would make the order long where M is small.
        size = 1 if chunks == 1 else ranks
        groups = -(-wave.placement.micro_batches // size)
        forward = [(c, "F", g * size + i) for g in range(groups) for c in range(chunks) for i in range(size)]
        backward = [(chunks - 1 - c, "B", mb) for c, _, mb in forward]
        orders = []
        for rank in range(ranks):
            ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
            ahead = min(ahead, len(forward))
            steady = [step for pair in zip(forward[ahead:], backward, strict=False) for step in pair]
            cooldown = backward[len(forward) - ahead :]
            orders.append(wave.keep(rank, [*forward[:ahead], *steady, *cooldown]))
        return orders


register(OneFOneB())
