"""The graph-mode Cell of a rank's step: what its generated `construct` calls."""

from __future__ import annotations

from collections.abc import Mapping

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

_accumulate = ops.MultitypeFuncGraph("accumulate")


@_accumulate.register("Tensor", "Tensor")
def _add_tensors(left: Tensor, right: Tensor) -> Tensor:
    return left + right


_hold = ops.MultitypeFuncGraph("hold")


@_hold.register("Function", "Tensor", "Tensor")
def _hold_one(gate, token: Tensor, tensor: Tensor) -> Tensor:
    return gate(tensor, token)


class StepCell(nn.Cell):
    """Hold the operators and Cells that the source names (see `graph_program.py` and `graph_finish.py`).

    Args:
        parts: attribute name -> Cell, operator or Tensor.
        width: size of the packed losses: loss, weight, metrics.
        clip_norm: largest global gradient norm.
    """

    def __init__(self, parts: Mapping[str, object], width: int, clip_norm: float) -> None:
        # Parameters have their global names already.
        super().__init__(auto_prefix=False)
        for name, part in parts.items():
            setattr(self, name, part)
        self.loss_gradient = Tensor(np.eye(1, width, dtype=np.float32)[0])
        self.nothing = Tensor(np.zeros(width, np.float32))
        self.no_norm = Tensor(np.zeros((), np.float32))
        self.clip_norm = clip_norm
        self.depend, self.reshape, self.slice = ops.Depend(), ops.Reshape(), ops.Slice()
        self.map, self.partial = ops.HyperMap(), ops.Partial()

    def add(self, left, right):
        """Add two tuples of gradients; by the compiler's map, as a Python loop makes compiling slow."""
        return self.map(_accumulate, left, right)

    def hold(self, gate, token, tensors):
        """Let each tensor of a tuple wait for the token."""
        return self.map(self.partial(_hold, gate, token), tensors)

    def concat(self, parts):
        """Join vectors."""
        return ops.concat(parts)

    def inverse(self, weight):
        """Return 1 / weight; of a step without weight, anything finite."""
        return 1.0 / ops.maximum(weight, 1e-30)

    def square(self, gradient):
        """Sum the squares of a gradient."""
        return ops.square(gradient.astype(ms.float32)).sum()

    def root(self, square):
        """Return the norm."""
        return ops.sqrt(square)

    def is_finite(self, square):
        """Tell whether a sum of squares, and so each of its terms, is a number."""
        return ops.isfinite(square)

    def both_finite(self, square, loss):
        """Tell the same, and whether the loss is a number."""
        return ops.logical_and(ops.isfinite(square), ops.isfinite(loss))

    def zero_unless(self, finite, gradient):
        """Replace a gradient that is not to be used."""
        return ops.where(finite, gradient, ops.zeros_like(gradient))

    def limit(self, norm):
        """Return the factor that brings a norm down to the limit."""
        return ops.minimum(self.clip_norm / ops.maximum(norm, 1e-30), 1.0)
