"""AdamW inside a graph: the same rule as `optimizer.py`, with the learning rate as an input of the step."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from hyperparallel.cells.optimizer import AdamW


def _update_one(lr, step_size, root, old1, new1, old2, new2, eps, decay, parameter, first, second, gradient):
    """Update one parameter and its moments; `old1` and `new1` are the shares of the old and the new in the first."""
    kept = parameter * (1.0 - lr * decay)
    first_now = first * old1 + gradient * new1
    second_now = second * old2 + gradient * gradient * new2
    now = kept - step_size * first_now / (ops.sqrt(second_now) / root + eps)
    return ops.assign(first, first_now), ops.assign(second, second_now), ops.assign(parameter, now)


_adamw = ops.MultitypeFuncGraph("adamw")
_adamw.register(*["Tensor"] * 3, *["Float"] * 6, *["Tensor"] * 4)(_update_one)


class AdamWUpdate(nn.Cell):
    """Update parameters in place as a part of a graph.

    Args:
        settings: as for the stepwise optimizer.
        parameters: trainable parameters; copies of one parameter on this rank are in it one by one.
    """

    def __init__(self, settings: AdamW, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.settings = settings
        self.parameters = ParameterTuple(parameters)
        self.first = self.parameters.clone(prefix="exp_avg", init="zeros")
        self.second = self.parameters.clone(prefix="exp_avg_sq", init="zeros")
        self.decay = tuple(settings.weight_decay if p.ndim >= 2 else 0.0 for p in parameters)
        beta1, beta2 = settings.betas
        self.shares, self.eps = (beta1, 1.0 - beta1, beta2, 1.0 - beta2), settings.eps
        self.map, self.partial = ops.HyperMap(), ops.Partial()

    def moments(self) -> list[tuple[Parameter, Parameter]]:
        """Return (first, second) moment of every parameter, in the order given to the constructor."""
        return list(zip(self.first, self.second, strict=True))

    def construct(self, rates: Tensor, weight: Tensor, gradients: tuple[Tensor, ...]):
        """Apply one step; a step without weight changes nothing.

        Args:
            rates: (3,) from `rates`.
            weight: number of terms in the step's loss.
            gradients: one per parameter.
        """
        live = (weight > 0).astype(ms.float32)
        old1, new1, old2, new2 = self.shares
        rule = self.partial(_adamw, rates[0] * live, rates[1] * live, rates[2], old1, new1, old2, new2, self.eps)
        return self.map(rule, self.decay, self.parameters, self.first, self.second, gradients)

    def speeds(self, rates: Tensor, weight: Tensor) -> tuple:
        """Prepare `one`: learning rate, step size, root of the second bias correction, shares in the moments."""
        live = (weight > 0).astype(ms.float32)
        return rates[0] * live, rates[1] * live, rates[2], *self.shares

    def speeds_if(self, finite: Tensor, rates: Tensor, weight: Tensor) -> tuple:
        """Prepare `one` such that it changes nothing, moments included, unless `finite`."""
        live = ops.logical_and(weight > 0, finite).astype(ms.float32)
        old1, new1, old2, new2 = self.shares
        idle = 1.0 - live
        mixed = (old1 * live + idle, new1 * live, old2 * live + idle, new2 * live)
        return rates[0] * live, rates[1] * live, rates[2], *mixed

    def one(self, index: int, speeds: tuple, gradient: Tensor) -> Tensor:
        """Update one parameter.

        Called one after the other, each gradient held back until the parameter before it is done: otherwise the
        compiler makes all temporaries of all parameters first, and the step needs half as much memory again.

        Args:
            index: which parameter, a constant.
            speeds: from `speeds` or `speeds_if`.
            gradient: of the parameter; finite.

        Returns:
            Something to wait for.
        """
        done = _update_one(
            speeds[0],
            speeds[1],
            speeds[2],
            speeds[3],
            speeds[4],
            speeds[5],
            speeds[6],
            self.eps,
            self.decay[index],
            self.parameters[index],
            self.first[index],
            self.second[index],
            gradient,
        )
        return ops.depend(done[2], (done[0], done[1]))


def rates(settings: AdamW, lr: float, step: int) -> Tensor:
    """Compute what changes from step to step.

    Args:
        settings: gives the betas.
        lr: learning rate of this step.
        step: steps done before this one.

    Returns:
        (3,) float32: learning rate, learning rate over the first bias correction, root of the second.
    """
    beta1, beta2 = settings.betas
    done = step + 1
    return Tensor(np.array([lr, lr / (1 - beta1**done), np.sqrt(1 - beta2**done)], np.float32))
