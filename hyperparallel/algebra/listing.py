"""List scheduling: order the actions of several regions by playing all ranks forward in unit time.

For skeletons without a closed form (folds, split backwards) and for any mix of regions. A rank that is free takes,
of what is ready: a backward, then a forward of the deepest region, then a postponed weight gradient. Two limits
keep memory flat in M: forwards alive on a rank and weight gradients postponed there. The order only contains what
was ready when it was taken, so it cannot wait in a circle, for any M.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from hyperparallel.algebra.program import Action, B, F, I, W

if TYPE_CHECKING:
    from hyperparallel.algebra.placement import Placement

TIMES = {F: 1, B: 2, I: 1, W: 1}
"""Unit times that orders are made for: a whole backward is twice a forward, and as long as its two parts."""


class Limits(NamedTuple):
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
    # The limits are chosen on few micro-batches: enough for warmup, a steady period and the tail to show.
    few = min(placement.micro_batches, 2 * placement.ranks + 2)
    sample = _Work.of(placement, regions, splits, barriers, few)
    cost, best = (math.inf, 0, 0), None
    candidates = list(_candidates(placement.ranks, len(regions), few * len(regions), bool(sample.split)))
    for index in reversed(range(len(candidates))):  # the loose limits first: they are fast, so the others give up soon
        play = _Play(sample, candidates[index], give_up=cost[0])
        if (play.time, play.peak, index) < cost:
            cost, best = (play.time, play.peak, index), candidates[index]
    return _Play(_Work.of(placement, regions, splits, barriers, placement.micro_batches), best).orders


def _candidates(ranks: int, chunks: int, most: int, splits: bool) -> Iterator[Limits]:
    """Limits worth trying, all of them proportional to P and not to M.

    Args:
        ranks: P.
        chunks: number of regions.
        most: forwards that a rank has at most; a higher limit stops nothing.
        splits: whether there is anything to postpone.
    """
    total = ranks * chunks
    alive = {1, ranks, ranks + 1, 2 * ranks - 1, total - 1, total, total + ranks - 1, 2 * total - 1} - {0}
    postponed = {ranks, total} if splits else {total}
    for limits in product(sorted({min(count, most) for count in alive}), (0, 1), sorted(postponed), (False, True)):
        yield Limits(*limits)


@dataclass(frozen=True)
class _Work:
    """What there is to order.

    Args:
        placement: paths and gates.
        stages: per rank, its stages from the deepest up.
        queues: by stage, the micro-batches it runs, in order.
        split: stages whose backward comes as I and W.
        barred: stages that start no backward before all their forwards.
    """

    placement: Placement
    stages: tuple[tuple[int, ...], ...]
    queues: dict[int, list[int]]
    split: frozenset[int]
    barred: frozenset[int]

    @classmethod
    def of(
        cls,
        placement: Placement,
        regions: tuple[int, ...],
        splits: frozenset[int],
        barriers: frozenset[int],
        micro_batches: int,
    ) -> _Work:
        """Collect the work of these regions on the first `micro_batches` micro-batches."""
        ranks = range(placement.ranks)
        stages = tuple(tuple(region * placement.ranks + rank for region in reversed(regions)) for rank in ranks)
        queues = {stage: [] for own in stages for stage in own}
        for mb in range(micro_batches):
            for stage in placement.path(mb):
                if stage in queues:
                    queues[stage].append(mb)
        reduces = {stage for stage in queues if placement.gates[stage].reduces}
        return cls(
            placement,
            stages,
            queues,
            frozenset(stage for stage in reduces if placement.region_of(stage) in splits),
            frozenset(stage for stage in queues if placement.region_of(stage) in barriers),
        )

    def time_by_rank(self) -> list[int]:
        """Add up the unit times of every rank's actions."""
        gates = self.placement.gates
        return [
            sum(len(self.queues[stage]) * (TIMES[F] + gates[stage].receives_gradient * TIMES[B]) for stage in own)
            for own in self.stages
        ]


class _Play:
    """All ranks played forward in time under some limits, until everything is done.

    Args:
        work: what there is to order.
        limits: see there.
        give_up: stop when the step must take longer than this; `time` is then infinite.
    """

    def __init__(self, work: _Work, limits: Limits, give_up: float = math.inf):
        ranks = work.placement.ranks
        self.work, self.limits = work, limits
        self.now = self.peak = 0
        self.left = work.time_by_rank()
        self.forward_done: dict[tuple[int, int], int] = {}  # (stage, mb) -> when its F ends
        self.gradient_done: dict[tuple[int, int], int] = {}  # (stage, mb) -> when its B or I ends
        self.next_forward = dict.fromkeys(work.queues, 0)  # place in the stage's queue
        self.next_backward = dict.fromkeys(work.queues, 0)
        self.postponed: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
        self.orders: list[list[Action]] = [[] for _ in range(ranks)]
        self.alive, self.free = [0] * ranks, [0] * ranks
        self.allowed = [limits.alive + limits.slope * (ranks - 1 - rank) for rank in range(ranks)]
        self.time = self._run(give_up)

    def _run(self, give_up: float) -> float:
        """Return the step time."""
        while any(self.left):
            started = 0
            for rank, free in enumerate(self.free):
                if free > self.now:
                    continue
                if self.now + self.left[rank] > give_up:
                    return math.inf
                if action := self._choose(rank):
                    self._start(rank, action)
                    started += 1
            later = [time for time in self.free if time > self.now]
            if not later and not started:
                # The limits stop everybody: what is alive cannot finish before something else enters.
                self.allowed = [limit + 1 for limit in self.allowed]
                assert min(self.allowed) <= sum(map(len, self.work.queues.values())) + 1, "nothing can start"
            self.now = min(later, default=self.now)
        return max(self.free)

    def _choose(self, rank: int) -> Action | None:
        """Choose what a free rank does next, None if nothing is ready."""
        postponed = self.postponed[rank]
        weight = Action(postponed[0][0], W, postponed[0][1]) if postponed else None
        if len(postponed) >= self.limits.postponed:
            return weight
        if self.limits.forward_first:
            return self._forward(rank) or self._backward(rank) or weight
        return self._backward(rank) or self._forward(rank) or weight

    def _forward(self, rank: int) -> Action | None:
        """Return the ready forward of the deepest stage that the limits let in."""
        for stage in self.work.stages[rank]:
            at, queue = self.next_forward[stage], self.work.queues[stage]
            if at == len(queue):
                continue
            mb = queue[at]
            before = self.work.placement.neighbours[stage, mb][0]
            left = before[0][0] if before else None
            enters = left not in self.work.queues  # from the input, or from a region that counts as done
            if (enters or stage == self.work.stages[rank][-1]) and self.alive[rank] >= self.allowed[rank]:
                continue
            if enters or self.forward_done.get((left, mb), self.now + 1) <= self.now:
                return Action(stage, F, mb)
        return None

    def _backward(self, rank: int) -> Action | None:
        """Return the ready backward of the earliest micro-batch, of the deepest stage among equals."""
        best: Action | None = None
        for stage in self.work.stages[rank]:
            at, queue = self.next_backward[stage], self.work.queues[stage]
            if at >= self.next_forward[stage] or not self.work.placement.gates[stage].receives_gradient:
                continue
            if stage in self.work.barred and self.next_forward[stage] < len(queue):
                continue
            mb = queue[at]
            after = self.work.placement.neighbours[stage, mb][1]
            # Without a stage after it there is nothing to wait for: its own F is done, or the rank would not be free.
            ready = after is None or self.gradient_done.get(after, self.now + 1) <= self.now
            if ready and (best is None or mb < best.mb):
                best = Action(stage, I if stage in self.work.split else B, mb)
        return best

    def _start(self, rank: int, action: Action) -> None:
        """Start an action now and write down when it ends and what it leaves alive."""
        stage, kind, mb = action
        end = self.now + TIMES[kind]
        if kind == F:
            self.next_forward[stage] += 1
            self.forward_done[stage, mb] = end
            self.alive[rank] += self.work.placement.gates[stage].receives_gradient
            self.peak = max(self.peak, self.alive[rank])
        elif kind == W:
            self.postponed[rank].popleft()
            self.alive[rank] -= 1
        else:
            self.next_backward[stage] += 1
            self.gradient_done[stage, mb] = end
            if kind == I:
                self.postponed[rank].append((stage, mb))
            else:
                self.alive[rank] -= 1
        self.orders[rank].append(action)
        self.free[rank] = end
        self.left[rank] -= TIMES[kind]
