"""Time to sum weight gradients over the workers that hold the same layers: a ring, by the alpha-beta model.

A ring of n workers passes every byte 2 (n-1)/n times over each link, in 2 (n-1) messages. A slab of a Sharded region
has D copies; a Replicated region has one on every rank of every replica, so P x D.

Source: Patarasuk and Yuan, J. Parallel and Distributed Computing 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra import Plan


def ring(workers: int, size: float, alpha: float, beta: float) -> float:
    """Return the time of an all-reduce.

    Args:
        workers: n >= 1; one has nothing to sum.
        size: bytes.
        alpha: time of a message of zero bytes.
        beta: time per byte.

    Example:
        >>> ring(4, 100.0, 1.0, 0.5), ring(1, 100.0, 1.0, 0.5)
        (81.0, 0.0)
    """
    if workers == 1 or size == 0:
        return 0.0
    return 2 * (workers - 1) * (alpha + beta * size / workers)


def reduce_times(plan: Plan, sizes: Sequence[float], replicas: int, alpha: float, beta: float) -> list[float]:
    """Return for every rank the time of its sums, one region after the other.

    Args:
        plan: gives the slabs.
        sizes: bytes of the gradient of every layer, as if trained; what is frozen does not count.
        replicas: D.
        alpha: time of a message of zero bytes.
        beta: time per byte.
    """
    placement, layers = plan.placement, plan.model.layers
    times = [0.0] * plan.ranks
    for stage, (first, last) in enumerate(placement.slabs):
        owned = placement.owners[placement.region_of(stage)] is not None
        size = sum(sizes[layer] for layer in range(first, last) if layers[layer].trainable)
        times[placement.rank_of(stage)] += ring(replicas * (plan.ranks if owned else 1), size, alpha, beta)
    return times
