"""The slabs of one worker: what every runner of a plan builds, in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hyperparallel.algebra import Plan
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.tensor_parallel import check_parts


def build_slabs(
    plan: Plan, layers: Sequence[Layer], rank: int, *, seed: int, jit: bool, tensor_parallel: int
) -> dict[int, Slab]:
    """Build the slabs of a rank.

    Args:
        plan: gives the layers and gates of every stage.
        layers: the whole model, listed for this worker's shard.
        rank: pipeline rank, 0 .. P - 1.
        seed: of the initial weights.
        jit: compile each slab by itself.
        tensor_parallel: T, which the layers must have been listed for.

    Raises:
        ModelError: the layers cannot work.

    Returns:
        Stage -> slab.
    """
    placement = plan.placement
    slabs = {}
    for stage in range(rank, placement.stages, placement.ranks):
        gates, (first, last) = placement.gates[stage], placement.slabs[stage]
        slabs[stage] = Slab(
            layers,
            (first, last),
            seed,
            backward=gates.receives_gradient,
            sends_gradient=gates.sends_gradient,
            jit=jit,
            rank=rank,
        )
        for layer, cell in zip(layers[first:last], slabs[stage].chain.layers, strict=True):
            check_parts(layer.name, cell, layer.sharded, tensor_parallel)
    return slabs


def parameters_of(slabs: Mapping[int, Slab]) -> dict[str, np.ndarray]:
    """Return a worker's parameters by global name, as copies; of those in `Layer.sharded` its part."""
    return {
        parameter.name: parameter.asnumpy().copy()
        for slab in slabs.values()
        for parameter in slab.chain.get_parameters()
    }
