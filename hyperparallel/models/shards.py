"""Projections that the shards of a stage compute together.

Each draws its whole matrix as with T = 1 and keeps this worker's part, so a model starts equal for every T. With T = 1
they are plain projections without collectives.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn

from hyperparallel.cells.tensor_parallel import Leave, Shard, TensorParallel, slice_parameter
from hyperparallel.models.weights import dense, first_weight


def column_dense(inputs: int, shard: Shard, bias: bool, parallel: TensorParallel) -> nn.Dense:
    """Build a projection each of whose outputs is computed by one shard.

    Its input must have passed `Enter` if T > 1; two projections of one input share it.

    Args:
        inputs: features in.
        shard: how the outputs are cut, axis 0; the features out are the sum of its blocks.
        bias: whether it adds a bias, which is cut like the outputs and starts at zero.
        parallel: this worker's place.

    Returns:
        The Cell: (..., inputs) -> (..., outputs / T).
    """
    outputs = sum(shard.blocks)
    if parallel.size == 1:
        return dense(inputs, outputs, bias)
    weight = _part(first_weight(inputs, outputs), shard, parallel)
    return nn.Dense(inputs, weight.shape[0], weight_init=weight, bias_init="zeros", has_bias=bias)


def row_dense(outputs: int, shard: Shard, bias: bool, scale: float, parallel: TensorParallel) -> nn.Dense:
    """Build a projection of features of which each shard has a part: it multiplies, sums over shards, adds the bias.

    Args:
        outputs: features out.
        shard: how the inputs are cut, axis 1; the features in are the sum of its blocks.
        bias: whether it adds a bias; every shard has the whole of it.
        scale: factor on the weights.
        parallel: this worker's place.

    Returns:
        The Cell: (..., inputs / T) -> (..., outputs), the same on all shards.
    """
    inputs = sum(shard.blocks)
    if parallel.size == 1:
        return dense(inputs, outputs, bias, scale)
    return _RowDense(_part(first_weight(inputs, outputs, scale), shard, parallel), bias, parallel)


class _RowDense(nn.Dense):
    """A Dense, so that the weight has the same name as with T = 1, whose bias comes after the sum."""

    def __init__(self, weight: ms.Tensor, bias: bool, parallel: TensorParallel) -> None:
        outputs, inputs = weight.shape
        super().__init__(inputs, outputs, weight_init=weight, has_bias=False)
        self.leave = Leave(parallel)
        self.adds_bias = bias
        if bias:
            self.bias = ms.Parameter(ms.Tensor(np.zeros(outputs, np.float32)), name="bias")

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        y = self.leave(super().construct(x))
        return y + self.bias if self.adds_bias else y


def _part(weight: ms.Tensor, shard: Shard, parallel: TensorParallel) -> ms.Tensor:
    return ms.Tensor(slice_parameter(weight.asnumpy(), shard, parallel.shard, parallel.size))
