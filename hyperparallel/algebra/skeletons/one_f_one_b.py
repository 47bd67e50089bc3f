"""`1f1b`: at most P - r micro-batches in flight on rank r, then one forward, one backward in turn.

Source: the non-interleaved schedule of PipeDream-Flush (Narayanan et al., 2021), with its in-flight cap.
"""

from __future__ import annotations

from hyperparallel.algebra.skeletons.base import Sharded, Step, register


class OneFOneB(Sharded):
    """One forward, one backward."""

    name = "1f1b"

    def steps(self, rank: int, ranks: int, micro_batches: int, backward: bool) -> list[Step]:
        """See `Sharded.steps`. Forward m + (P - r) waits for backward m."""
        in_flight = min(micro_batches, ranks - rank) if backward else micro_batches
        steps: list[Step] = [("F", mb) for mb in range(in_flight)]
        if not backward:
            return steps
        for mb in range(micro_batches):
            steps.append(("B", mb))
            if mb + in_flight < micro_batches:
                steps.append(("F", mb + in_flight))
        return steps


register(OneFOneB())
