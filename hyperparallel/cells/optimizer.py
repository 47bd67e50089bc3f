"""AdamW over a rank's own parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore.experimental import optim


@dataclass(frozen=True)
class AdamW:
    """Settings of the optimizer.

    Args:
        lr: learning rate > 0; `Runner.step` can override it per step.
        weight_decay: decoupled decay of matrices; vectors (norms, biases) are not decayed.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the root of the second moment, > 0.
        clip_norm: global gradient norm is scaled down to this; 0 turns it off.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip_norm: float = 1.0


class Optimizer:
    """Update parameters in place; holds state only for the parameters it was given.

    Args:
        settings: see `AdamW`.
        parameters: the trainable parameters of this rank, possibly none.
    """

    def __init__(self, settings: AdamW, parameters: Sequence[Parameter]):
        self.parameters = list(parameters)
        self._order = sorted(range(len(self.parameters)), key=lambda index: self.parameters[index].ndim < 2)
        groups = []
        for matrices, decay in ((True, settings.weight_decay), (False, 0.0)):
            group = [p for p in self.parameters if (p.ndim >= 2) is matrices]
            if group:
                groups.append({"params": group, "weight_decay": decay})
        self._adamw = optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps) if groups else None
        self.updates = 0  # counted on every rank alike, also where nothing is trained

    def update(self, gradients: Sequence[np.ndarray], lr: float) -> None:
        """Apply one step.

        Args:
            gradients: one per parameter, in the order given to the constructor.
            lr: learning rate of this step.
        """
        self.updates += 1
        if self._adamw is None:
            return
        for group in self._adamw.param_groups:
            ops.assign(group["lr"], Tensor(lr, group["lr"].dtype))
        # mutable: a tuple of tensors would count as a constant and be logged as such.
        self._adamw(ms.mutable(tuple(Tensor(gradients[index]) for index in self._order)))

    def moments(self) -> list[tuple[Parameter, Parameter]]:
        """Return (first, second) moment of every parameter, in the order given to the constructor."""
        if self._adamw is None:
            return []
        by_group = zip(self._order, self._adamw.exp_avg, self._adamw.exp_avg_sq, strict=True)
        return [(first, second) for _, first, second in sorted(by_group, key=lambda row: row[0])]

    def go_on_from(self, updates: int) -> None:
        """Set how many updates the moments have seen, by which their bias is corrected.

        Args:
            updates: >= 0.
        """
        self.updates = updates
        if self._adamw is not None:
            ops.assign(self._adamw.state_step, Tensor(updates, self._adamw.state_step.dtype))
