"""First weights, and the two Cells that hold most of them.

Everything is drawn from numpy: MindSpore's own initializers mix in a counter of the process, so weights would
depend on what the rank built before, and the layer contract promises that they do not.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def normal(shape: tuple[int, ...], std: float) -> ms.Tensor:
    """Draw a float32 Tensor of mean 0 from numpy's seeded state."""
    return ms.Tensor(np.random.normal(0.0, std, shape).astype(np.float32))


def dense(inputs: int, outputs: int, bias: bool, scale: float = 1.0) -> nn.Dense:
    """Build a projection that keeps the size of what it gets, times `scale`.

    Args:
        inputs: features in.
        outputs: features out.
        bias: whether it adds a bias, which starts at zero.
        scale: factor on the weights; `depth_scale` for the last projection of a residual branch.

    Returns:
        The Cell: (..., inputs) -> (..., outputs).
    """
    weight = first_weight(inputs, outputs, scale)
    return nn.Dense(inputs, outputs, weight_init=weight, bias_init="zeros", has_bias=bias)


def first_weight(inputs: int, outputs: int, scale: float = 1.0) -> ms.Tensor:
    """Draw the (outputs, inputs) matrix of `dense`."""
    return normal((outputs, inputs), scale * inputs**-0.5)


def depth_scale(depth: int) -> float:
    """Scale for the last projection of each of the 2 x depth residual branches: their sum stays of size one."""
    return (2 * depth) ** -0.5


class RmsNorm(nn.Cell):
    """Divide the features by their root mean square, then scale each.

    Args:
        width: number of features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.ones(width, np.float32)))
        self.share = 1.0 / width
        self.sum = ops.ReduceSum(keep_dims=True)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Normalise the last axis."""
        # ops.rms_norm has no CPU kernel; a sum, because the gradient of a mean divides by a shape that is
        # only known at run time and takes twice as long.
        return x * ops.rsqrt(self.sum(ops.square(x), -1) * self.share + 1e-6) * self.weight
