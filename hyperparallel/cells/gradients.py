"""From gradients of micro-batches to one update: accumulate, sum over copies, scale, clip.

Every trainable parameter has a canonical name (a tied copy has that of what it is tied to) and *holders*: the
pipeline ranks whose slabs hold a copy. One rule covers all cases: sum over the holders and their data-parallel
replicas. For a Replicated region that is the ReplicaGroup, for a Sharded slab the DataGroup, for tied
parameters the ranks of both ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from hyperparallel.algebra import Plan
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.slab import Slab, canonical_names, layer_of
from hyperparallel.cells.transport import Transport

_add = ops.MultitypeFuncGraph("add_gradients")


@_add.register("Tensor", "Tensor")
def _add_tensors(left, right):
    return left + right


@ms.jit
def _add_all(*tensors):
    """Add the first half of the tensors to the second, in one compiled call.

    Op by op this costs more than a small stage's backward. The tensors are separate arguments because a tuple
    of tensors counts as a constant, which would compile the function again at each call.
    """
    half = len(tensors) // 2
    return ops.HyperMap()(_add, tensors[:half], tensors[half:])


@dataclass(frozen=True)
class Shared:
    """One trainable parameter on this rank with all its copies.

    Args:
        name: canonical global name.
        copies: (stage, index in that slab's weights) of every copy on this rank.
        parameters: the copies, in the same order.
        ranks: global ranks over which its gradient is summed.
        counted_by: the one global rank that counts it in the global norm.
    """

    name: str
    copies: tuple[tuple[int, int], ...]
    parameters: tuple[Parameter, ...]
    ranks: tuple[int, ...]
    counted_by: int


def share(plan: Plan, layers: Sequence[Layer], slabs: Mapping[int, Slab], data_parallel: int) -> list[Shared]:
    """List this rank's trainable parameters with their holders, by canonical name.

    Args:
        plan: gives the placement of every layer.
        layers: all layers of the model.
        slabs: this rank's slabs by stage.
        data_parallel: D; global rank = pipeline rank * D + replica.
    """
    tied = canonical_names(layers)
    holders: dict[str, set[int]] = defaultdict(set)
    for name, target in tied.items():
        for one in (name, target):
            holders[target] |= set(plan.placement.holders(layer_of(one, layers)))
    copies: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for stage, slab in slabs.items():
        for index, parameter in enumerate(slab.weights):
            name = tied.get(parameter.name, parameter.name)
            copies[name].append((stage, index))
            if name not in holders:
                holders[name] = set(plan.placement.holders(layer_of(name, layers)))
    shared = []
    for name in sorted(copies):
        ranks = tuple(r * data_parallel + d for r in sorted(holders[name]) for d in range(data_parallel))
        parameters = tuple(slabs[stage].weights[index] for stage, index in copies[name])
        shared.append(Shared(name, tuple(copies[name]), parameters, ranks, ranks[0]))
    return shared


class Gradients:
    """Gradients of one step on this rank.

    Args:
        shared: this rank's parameters, from `share`.
        transport: sums over ranks.
    """

    def __init__(self, shared: Sequence[Shared], transport: Transport):
        self.shared = list(shared)
        self.transport = transport
        self._totals: dict[int, tuple[Tensor, ...]] = {}

    def add(self, stage: int, gradients: tuple[Tensor, ...]) -> None:
        """Add one micro-batch's weight gradients of a stage."""
        if gradients:
            total = self._totals.get(stage)
            self._totals[stage] = gradients if total is None else _add_all(*total, *gradients)

    def reduce(self, weight: float) -> list[Tensor]:
        """Sum over copies, holders and replicas, and divide by the weight of the step.

        Every rank of a group calls this at the same point; groups are visited in one global order.

        Args:
            weight: number of terms in the step's loss, over all replicas.

        Returns:
            A gradient for each of `shared`. The sums are cleared for the next step.
        """
        local = [self._local(one) for one in self.shared]
        by_group: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, one in enumerate(self.shared):
            by_group[one.ranks].append(index)
        for ranks in sorted(by_group):
            indices = by_group[ranks]
            if len(ranks) == 1:
                continue
            # One flat message per group: a small AllReduce costs as much as a large one.
            flat = self.transport.sum(ops.concat([local[index].reshape(-1) for index in indices]), ranks)
            sizes = [local[index].size for index in indices]
            for index, part in zip(indices, ops.split(flat, sizes), strict=True):
                local[index] = part.reshape(local[index].shape)
        self._totals.clear()
        scale = Tensor(1.0 / weight, ms.float32)
        return [gradient * scale for gradient in local]

    def global_norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the 2-norm over all parameters of the model, copies and replicas counted once."""
        counted = [
            gradient
            for one, gradient in zip(self.shared, gradients, strict=True)
            if one.counted_by == self.transport.rank
        ]
        square = float(sum(float((gradient * gradient).sum().asnumpy()) for gradient in counted))
        return float(np.sqrt(self.transport.sum_all(np.array([square]))[0]))

    def _local(self, one: Shared) -> Tensor:
        """Sum a parameter's copies on this rank; zeros where no micro-batch came by."""
        total = None
        for stage, index in one.copies:
            if stage in self._totals:
                gradient = self._totals[stage][index]
                total = gradient if total is None else total + gradient
        return ops.zeros_like(one.parameters[0]) if total is None else total
