"""List scheduling: order the actions of several regions by playing all ranks forward in unit time.

For skeletons without a closed form (folds, split backwards) and for any mix of regions. A rank that is free takes,
of what is ready: a backward, then a forward of the deepest region, then a postponed weight gradient. Two limits
keep memory flat in M: forwards alive on a rank and weight gradients postponed there. The order only contains what
was ready when it was taken, so it cannot wait in a circle, for any M.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from hyperparallel.algebra.program import Action, B, F, I, W

if TYPE_CHECKING:
    from hyperparallel.algebra.placement import Placement

TIMES = {F: 1, B: 2, I: 1, W: 1}
"""Unit times that orders are made for: a whole backward is twice a forward."""


@dataclass(frozen=True)
class Limits:
    """What a rank may hold.

    Args:
        alive: forwards alive on the last rank before a new micro-batch may enter; `slope` more per rank upstream.
        slope: see above.
        postponed: weight gradients a rank may postpone before it must do one.
        forward_first: take a ready forward before a ready backward while `alive` allows.
    """

    alive: int
    slope: int
    postponed: int
    forward_first: bool


def list_schedule(
    placement: Placement, regions: tuple[int, ...], splits: frozenset[int], barriers: frozenset[int]
) -> list[list[Action]]:
    """Order consecutive regions, with the limits that give the shortest step in unit time.

    Args:
        placement: paths and gates; forwards of earlier regions count as done.
        regions: the regions to order, by index, the last one being the model's last.
        splits: regions whose backward comes as I and W, where they have weights to reduce.
        barriers: regions that start no backward before all their forwards (gpipe).

    Returns:
        Per rank, its actions in order.
    """
    small = min(placement.micro_batches, 2 * placement.ranks + 2)
    sample = _Play(placement, regions, splits, barriers, small)
    best = min(_candidates(placement.ranks, len(regions)), key=lambda limits: sample.cost(limits))
    return _Play(placement, regions, splits, barriers, placement.micro_batches).run(best).orders


def _candidates(ranks: int, chunks: int) -> Iterator[Limits]:
    """Limits worth trying, all of them proportional to P and not to M."""
    total = ranks * chunks
    alive = sorted({1, ranks, ranks + 1, 2 * ranks - 1, total - 1, total, total + ranks - 1, 2 * total - 1} - {0})
    for start, slope, postponed, forward_first in product(alive, (0, 1), {ranks, total}, (False, True)):
        yield Limits(start, slope, postponed, forward_first)


@dataclass
class _Result:
    orders: list[list[Action]]
    time: int
    peak: int


class _Play:
    """The ranks, and what is ready on them."""

    def __init__(
        self,
        placement: Placement,
        regions: tuple[int, ...],
        splits: frozenset[int],
        barriers: frozenset[int],
        micro_batches: int,
    ):
        self.placement, self.micro_batches = placement, micro_batches
        self.barriers = barriers
        self.first = regions[0]
        # A rank's stages from the deepest up, each with the micro-batches it runs.
        self.stages: list[list[int]] = [
            [region * placement.ranks + rank for region in reversed(regions)] for rank in range(placement.ranks)
        ]
        self.queue = {stage: self._own(stage) for stages in self.stages for stage in stages}
        self.split = {
            stage: placement.region_of(stage) in splits and placement.gates[stage].reduces for stage in self.queue
        }

    def _own(self, stage: int) -> list[int]:
        owner = self.placement.owners[self.placement.region_of(stage)]
        rank = self.placement.rank_of(stage)
        return [mb for mb in range(self.micro_batches) if owner is None or owner[mb] == rank]

    def cost(self, limits: Limits) -> tuple[int, int]:
        """Step time, then memory, of a choice of limits."""
        result = self.run(limits)
        return result.time, result.peak

    def run(self, limits: Limits) -> _Result:
        """Play until everything is done."""
        ranks, placement = self.placement.ranks, self.placement
        forward: dict[tuple[int, int], int] = {}  # (stage, mb) -> when its F is done
        backward: dict[tuple[int, int], int] = {}
        next_f, next_b = dict.fromkeys(self.queue, 0), dict.fromkeys(self.queue, 0)
        postponed: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
        orders: list[list[Action]] = [[] for _ in range(ranks)]
        alive, free = [0] * ranks, [0] * ranks
        allowed = [limits.alive + limits.slope * (ranks - 1 - rank) for rank in range(ranks)]
        remaining = sum(
            len(own) * (1 + (1 + self.split[stage]) * placement.gates[stage].receives_gradient)
            for stage, own in self.queue.items()
        )
        peak = now = 0

        def forward_ready(rank: int) -> int | None:
            for stage in self.stages[rank]:
                at, own = next_f[stage], self.queue[stage]
                if at == len(own):
                    continue
                left = placement.neighbours[stage, own[at]][0]
                enters = left is None or placement.region_of(left) < self.first or stage == self.stages[rank][-1]
                if enters and alive[rank] >= allowed[rank]:
                    continue
                if left is None or left not in self.queue or forward.get((left, own[at]), now + 1) <= now:
                    return stage
            return None

        def backward_ready(rank: int) -> int | None:
            best: tuple[int, int] | None = None
            for depth, stage in enumerate(self.stages[rank]):
                at, own = next_b[stage], self.queue[stage]
                if at >= next_f[stage] or not placement.gates[stage].receives_gradient:
                    continue
                if placement.region_of(stage) in self.barriers and next_f[stage] < len(own):
                    continue
                right = placement.neighbours[stage, own[at]][1]
                ready = forward[stage, own[at]] if right is None else backward.get((right, own[at]), now + 1)
                if ready <= now and (best is None or (own[at], depth) < best):
                    best = (own[at], depth)
            return None if best is None else self.stages[rank][best[1]]

        while remaining:
            moved = False
            for rank in range(ranks):
                if free[rank] > now:
                    continue
                kind, stage = self._choose(rank, limits, postponed[rank], forward_ready, backward_ready)
                if stage is None:
                    continue
                if kind == F:
                    mb = self.queue[stage][next_f[stage]]
                    next_f[stage] += 1
                    forward[stage, mb] = now + TIMES[F]
                    alive[rank] += placement.gates[stage].receives_gradient
                    peak = max(peak, alive[rank])
                elif kind == W:
                    stage, mb = postponed[rank].popleft()
                    alive[rank] -= 1
                else:
                    mb = self.queue[stage][next_b[stage]]
                    next_b[stage] += 1
                    kind = I if self.split[stage] else B
                    backward[stage, mb] = now + TIMES[kind]
                    if kind == I:
                        postponed[rank].append((stage, mb))
                    else:
                        alive[rank] -= 1
                orders[rank].append(Action(stage, kind, mb))
                free[rank] = now + TIMES[kind]
                remaining -= 1
                moved = True
            later = [time for time in free if time > now]
            if not later and not moved:
                # The limits stop everybody: what is alive cannot finish before something else enters.
                allowed = [limit + 1 for limit in allowed]
            now = min(later, default=now)
        return _Result(orders, max(free), peak)

    def _choose(
        self,
        rank: int,
        limits: Limits,
        postponed: deque[tuple[int, int]],
        forward_ready: Callable[[int], int | None],
        backward_ready: Callable[[int], int | None],
    ) -> tuple[str, int | None]:
        """Choose what a free rank does next."""
        if len(postponed) >= limits.postponed:
            return W, rank
        choices = ((F, forward_ready), (B, backward_ready))
        for kind, ready in choices if limits.forward_first else reversed(choices):
            stage = ready(rank)
            if stage is not None:
                return kind, stage
        return W, rank if postponed else None
