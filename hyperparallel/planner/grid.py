"""The problems the planner is measured on: a 1F1B backbone with even slabs, encodes of many kinds.

`scripts/plan_grid.py` prints the whole grid, the tests run a part of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hyperparallel.planner.problem import Encode, Problem, Task


class Case(NamedTuple):
    """One problem of the grid.

    Args:
        ranks: P.
        micro_batches: M.
        encode: mean encoder forward of a micro-batch; the backbone's is 4 forward and 8 backward per rank.
        trained: the encoder backward takes twice its forward; else it is frozen.
        pieces: equal pieces a micro-batch's encode is split in.
        uneven: a long tail with the same mean, and one micro-batch without images.
    """

    ranks: int
    micro_batches: int
    encode: float
    trained: bool = False
    pieces: int = 1
    uneven: bool = False

    def problem(self, live_limit: int | None = None, message: float = 0.0) -> Problem:
        """Build the problem.

        Args:
            live_limit: most encodes a rank may hold.
            message: delay of every message.
        """
        forward = long_tail(self.micro_batches, self.encode) if self.uneven else [self.encode] * self.micro_batches
        backward = [2.0 * time if self.trained else None for time in forward]
        return one_f_one_b(self.ranks, forward, backward, pieces=self.pieces, message=message, live_limit=live_limit)


def grid() -> Iterator[Case]:
    """List the cases: P in 2, 3, 4; M in P, 2P, 3P; te/x in 1/3, 1, 3; frozen, trained; split 1, 4; even, uneven."""
    for ranks in (2, 3, 4):
        for micro_batches in (ranks, 2 * ranks, 3 * ranks):
            for encode in (4.0, 12.0, 36.0):
                for trained in (False, True):
                    for pieces in (1, 4):
                        for uneven in (False, True):
                            yield Case(ranks, micro_batches, encode, trained, pieces, uneven)


def long_tail(micro_batches: int, mean: float, seed: int = 0) -> list[float]:
    """Draw encoder times with a long tail, one of them 0.

    Args:
        micro_batches: how many.
        mean: of all of them.
        seed: of the draw.
    """
    draw = random.Random(seed)
    times = [draw.lognormvariate(0.0, 1.0) for _ in range(micro_batches)]
    times[draw.randrange(micro_batches)] = 0.0
    scale = mean * micro_batches / (sum(times) or 1.0)
    return [time * scale for time in times]


def one_f_one_b(
    ranks: int,
    encode_forward: Sequence[float],
    encode_backward: Sequence[float | None],
    *,
    forward: float = 4.0,
    backward: float = 8.0,
    pieces: int = 1,
    message: float = 0.0,
    live_limit: int | None = None,
) -> Problem:
    """Build the problem of `transpose >> 1f1b`.

    Args:
        ranks: P.
        encode_forward: per micro-batch.
        encode_backward: per micro-batch, None when frozen.
        forward: of a slab, per micro-batch.
        backward: of a slab, per micro-batch.
        pieces: equal pieces of a micro-batch's encode.
        message: delay of every message.
        live_limit: most encodes a rank may hold.

    Returns:
        The problem. Task 2 * (rank * M + m) is the forward of micro-batch m on a rank, the next one the backward.

    Example:
        >>> problem = one_f_one_b(2, [3.0, 3.0, 3.0], [None] * 3)
        >>> problem.rows
        ((0, 2, 1, 4, 3, 5), (6, 7, 8, 9, 10, 11))
    """
    count = len(encode_forward)

    def task(rank: int, mb: int, back: bool) -> int:
        return 2 * (rank * count + mb) + back

    tasks, rows = [], []
    for rank in range(ranks):
        for mb in range(count):
            up = ((task(rank - 1, mb, False), message),) if rank else ()
            down = ((task(rank + 1, mb, True), message),) if rank < ranks - 1 else ((task(rank, mb, False), 0.0),)
            tasks += [Task(forward, up), Task(backward, down)]
        warm = min(ranks - rank - 1, count)
        row = [task(rank, mb, False) for mb in range(warm)]
        for mb in range(count):
            row += [task(rank, mb + warm, False)] * (mb + warm < count) + [task(rank, mb, True)]
        rows.append(tuple(row))
    encodes = tuple(
        Encode(
            forward=encode_forward[mb] / pieces,
            backward=None if encode_backward[mb] is None else encode_backward[mb] / pieces,
            feeds=task(0, mb, False),
            follows=None if encode_backward[mb] is None else task(0, mb, True),
            send=message,
            receive=message,
            group=mb,
        )
        for mb in range(count)
        for _ in range(pieces)
    )
    return Problem(tuple(tasks), tuple(rows), encodes, live_limit)
