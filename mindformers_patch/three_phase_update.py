"""The update after the three phases: one norm over encoder and LLM, one optimizer, one loss scale."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, nn, ops


class Update(nn.Cell):
    """Clip and apply the gradients of all parameters that this worker holds, at the shapes it holds them.

    Args:
        optimizer: over the LLM's and the encoder's parameters here.
        llm: names of the LLM's, in the order in which their gradients come.
        encoder: names of the encoder's, likewise.
        sums: where the LLM's gradients are summed up; None if they come as inputs.
        scale: loss scale.
        manager: adapts it; None if it stays.
        clip: largest norm; 0 does not clip.
    """

    def __init__(
        self,
        optimizer: nn.Optimizer,
        llm: Sequence[str],
        encoder: Sequence[str],
        *,
        sums: Sequence[Parameter] | None,
        scale: Parameter,
        manager: nn.Cell | None,
        clip: float,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer, self.scale, self.manager, self.clip = optimizer, scale, manager, clip
        self.sums = ms.ParameterTuple(sums) if sums else None
        place = {name: index for index, name in enumerate([*llm, *encoder])}
        # Groups (weight decay, learning rates) have put them into another order.
        self.order = tuple(place[parameter.name] for parameter in optimizer.parameters)
        self.of_llm = len(llm)
        self.rate, self.dynamic = optimizer.learning_rate, optimizer.dynamic_lr

    def construct(self, loss, norm, factor, square, *gradients):
        """Update; a step whose norm is not finite changes no parameter.

        Args:
            loss: handed on.
            norm: of the LLM's gradients, over the whole job, unscaled.
            factor: what the LLM's gradients are to be divided by besides the loss scale.
            square: sum of the squares of the encoder's gradients, summed over the job and unscaled.
            gradients: the LLM's, if there are no sums, and the encoder's.

        Returns:
            Loss, overflow, loss scale, learning rate, norm: as MindFormers' own wrappers.
        """
        rate = self.learning_rate()
        scale = self.scale.value()
        whole = ops.sqrt(ops.square(norm.reshape(())) + square.reshape(()))
        finite = ops.isfinite(whole)
        by_clip = ops.ones_like(whole)
        if self.clip > 0:
            by_clip = ops.minimum(self.clip / (ops.maximum(whole, self.clip) + 1e-6), 1.0)
        inverse = ops.reciprocal(scale) * ops.reciprocal(factor.reshape(()))
        come = gradients if self.sums is None else self.sums + gradients
        ordered = ()
        for index in self.order:
            one = come[index] * by_clip
            ordered += (one * inverse if index < self.of_llm else one,)
        if finite:
            loss = ops.depend(loss, self.optimizer(ordered))
        if self.sums is not None:
            for one in self.sums:
                loss = ops.depend(loss, ops.assign(one, ops.zeros_like(ops.depend(one, loss))))
        overflow = ops.logical_not(finite)
        if self.manager is not None:
            overflow = self.manager(self.scale, overflow)
        return loss, overflow, scale, rate, whole

    def learning_rate(self):
        """Return the learning rate of this step."""
        if not self.dynamic:
            return self.rate
        schedule = self.rate[-1] if self.optimizer.is_group_lr else self.rate
        return schedule(self.optimizer.global_step).reshape(())
