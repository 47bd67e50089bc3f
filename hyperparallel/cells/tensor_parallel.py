"""Tensor parallelism inside a stage: T workers (shards) share the matrices of every block and add up what they compute.

A block *enters* the shared part once its input is the same on all shards, and *leaves* it with a sum:

    x -> norm -> Enter -> column-parallel matrices -> ... -> row-parallel matrix -> Leave -> + bias -> + x

What lies outside, norms and biases after `Leave` among it, is computed by every shard alike, from equal inputs and
with equal gradients, so its parameters stay equal to the bit without any message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mindspore as ms
from mindspore import nn, ops

from hyperparallel.errors import ConfigError, ModelError
from hyperparallel.tensors import Shard, join_parameter, slice_parameter

__all__ = ["WHOLE", "Enter", "Leave", "Shard", "TensorParallel", "check_parts", "join_parameter", "slice_parameter"]


@dataclass(frozen=True)
class TensorParallel:
    """This worker's place among the T workers of one stage.

    Args:
        size: T >= 1; with 1 the layers have no collectives.
        shard: t, 0 .. T - 1; selects this worker's part of each matrix.
        group: name of the communication group of the T workers, from `Transport.tensor_parallel`; it is needed only
            where Cells are built, not to list layers.

    Raises:
        ConfigError: there is no such shard.
    """

    size: int = 1
    shard: int = 0
    group: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.shard < self.size:
            raise ConfigError(
                f"shard {self.shard} of {self.size} tensor-parallel workers does not exist; "
                "give a size of at least 1 and a shard of 0 .. size - 1"
            )

    def check(self, **sizes: int) -> None:
        """Refuse sizes that cannot be shared out evenly.

        Args:
            sizes: name as in the configuration -> number of heads or features.

        Raises:
            ConfigError: T does not divide one of them.
        """
        for name, number in sizes.items():
            if number % self.size:
                raise ConfigError(
                    f"{name} {number} is not a multiple of tensor_parallel {self.size}; expected equal parts, "
                    f"e.g. {name} {-(-number // self.size) * self.size}"
                )


WHOLE = TensorParallel()
"""The place of a worker that has its stage to itself, T = 1."""


def check_parts(name: str, cell: nn.Cell, sharded: Mapping[str, Shard], size: int) -> None:
    """Refuse a built layer whose declared shards are not the T-th part of what they declare.

    Args:
        name: the layer's, for the message.
        cell: the layer's Cell.
        sharded: as in `Layer.sharded`.
        size: T of the job.

    Raises:
        ModelError: a parameter does not exist, or has another size: the model was listed for another T.
    """
    # Parameters already carry global names; here only the Cell's own count.
    own = dict(cell.parameters_and_names())
    for local, shard in sharded.items():
        if local not in own:
            raise ModelError(f"layer {name!r} declares a shard {local!r}, but has only {', '.join(own)}")
        found, full = own[local].shape[shard.axis], sum(shard.blocks)
        if found * size != full:
            raise ModelError(
                f"layer {name!r}: {local!r} holds {found} of {full} along axis {shard.axis}; with T = {size} shards "
                f"expected {full / size:g}: list the model with the job's own TensorParallel"
            )


class Enter(nn.Cell):
    """Begin a part that the shards compute together: nothing on the way forward, a sum of gradients on the way back.

    Args:
        parallel: this worker's place; its group must exist.
    """

    def __init__(self, parallel: TensorParallel) -> None:
        super().__init__()
        self.reduce = ops.AllReduce(group=parallel.group)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Return the input, which is the same on all shards."""
        return x

    def bprop(self, x: ms.Tensor, out: ms.Tensor, dout: ms.Tensor) -> tuple[ms.Tensor]:
        """Add up the gradients that the shards' own matrices gave."""
        return (self.reduce(dout),)


class Leave(nn.Cell):
    """End a part that the shards compute together: a sum on the way forward, nothing on the way back.

    Args:
        parallel: this worker's place; its group must exist.
    """

    def __init__(self, parallel: TensorParallel) -> None:
        super().__init__()
        self.reduce = ops.AllReduce(group=parallel.group)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Add up the shards' partial results."""
        return self.reduce(x)

    def bprop(self, x: ms.Tensor, out: ms.Tensor, dout: ms.Tensor) -> tuple[ms.Tensor]:
        """Return the gradient, which is the same on all shards."""
        return (dout,)
