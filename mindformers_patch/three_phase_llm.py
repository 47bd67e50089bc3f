"""Phase 2 of the route `run: three_phase`: MindFormers' own graph of the LLM, forward and backward, without its update.

Shapes: B texts of a replica's batch, S tokens, K feature rows of a text, H width.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindformers.core.clip_grad import ClipGradNorm
from mindformers.wrapper.wrapper import PipelineCellWithMultiOutputs
from mindspore import Parameter, ParameterTuple, nn, ops
from mindspore.nn.wrap.cell_wrapper import _VirtualDatasetCell
from mindspore.ops import composite as C

from mindformers_patch.gpt_features import FeatureGPT, FeatureLlm

SUMS = "accu_grads"
"""First part of the name of a parameter that sums gradients; MindSpore's pipeline knows it by that name."""
_unscaled = C.MultitypeFuncGraph("three_phase_unscaled")
_unscaled_sum = C.MultitypeFuncGraph("three_phase_unscaled_sum")


@_unscaled.register("Tensor", "Tensor", "Tensor")
def _(scale, factor, gradient):
    return ops.cast(gradient, ms.float32) * ops.reciprocal(scale) * ops.reciprocal(factor)


@_unscaled_sum.register("Tensor", "Tensor", "Tensor", "Tensor")
def _(scale, factor, gradient, total):
    # The pipeline adds each micro-batch's gradient to `total`; reading it must wait for the last.
    total = ops.depend(total, gradient)
    return total * ops.reciprocal(scale) * ops.reciprocal(factor)


class LlmPhase(nn.Cell):
    """Loss, norm and gradients of the LLM for features that were computed before.

    Args:
        model: the LLM.
        scale: loss scale.
        micro_batches: M.
        stages: P; with P > 1 the gradients stay in `sums`, else they are returned.
        sharded: in MindFormers' semi-automatic parallelism.
        per_token: the losses are sums, to be divided by the number of labels of the whole step.
        group: name of the group of the workers that hold the same place of each stage, for that number.
    """

    def __init__(
        self,
        model: FeatureGPT,
        scale: Parameter,
        *,
        micro_batches: int,
        stages: int,
        sharded: bool,
        per_token: bool,
        group: str | None,
    ) -> None:
        super().__init__(auto_prefix=False)
        network: nn.Cell = FeatureLlm(model)
        if stages > 1:
            network = PipelineCellWithMultiOutputs(network, micro_size=micro_batches)
        if sharded:
            network = _VirtualDatasetCell(network)
        self.network, self.scale = network, scale
        self.network.add_flags(defer_inline=True)
        self.weights = ParameterTuple(model.trainable_params())
        self.trained = len(self.weights) > 0
        self.stages, self.micro_batches, self.per_token = stages, micro_batches, per_token
        self.sums = self.weights.clone(prefix=SUMS, init="zeros") if stages > 1 else None
        self.gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
        self.norm = ClipGradNorm()
        self.map = C.HyperMap()
        self.reduce = ops.AllReduce(group=group) if group else None
        self.one, self.zero = ms.Tensor([1.0], ms.float32), ms.Tensor([0.0], ms.float32)

    @C.add_flags(has_effect=True)
    def construct(self, input_ids, labels, features_BKH, rows_BS, keep_BS1):
        """Return loss, norm of the gradients over the whole job, factor, feature gradient (B, K, H), and gradients.

        The feature gradient and the returned gradients are still multiplied by loss scale and factor.
        """
        inputs = (input_ids, labels, features_BKH, rows_BS, keep_BS1)
        losses = self.network(*inputs)
        loss, factor, seeds = self.seeds(losses)
        by_input, by_weight = self.gradient(self.network, self.weights)(*inputs, seeds)
        norm = self.zero * self.scale
        if self.trained:
            # Read the gradients as MindFormers' wrappers do: MindSpore finds the norm by that and sums it over the job.
            if self.stages > 1:
                plain = self.map(ops.partial(_unscaled_sum, self.scale, factor), by_weight, self.sums)
            else:
                plain = self.map(ops.partial(_unscaled, self.scale, factor), by_weight)
            _, norm = self.norm(plain)
        if self.stages > 1:
            return loss, norm, factor, by_input[2], ()
        return loss, norm, factor, by_input[2], by_weight

    def seeds(self, losses):
        """Return the loss, what gradients must be divided by, and the gradient that each output starts with."""
        whole = ops.cast(ops.ones_like(losses[0]) * ops.cast(self.scale, losses[0].dtype), ms.float32)
        part = whole / self.micro_batches if self.stages > 1 else whole
        if not self.per_token:
            seeds = ()
            loss = losses[0]
            for index in range(len(losses)):
                seeds += (part,)
                if index > 0:
                    loss = loss + losses[index]
            return loss, self.one, seeds
        nothing = self.zero * self.scale
        # Language model, its labels, several tokens at once, their labels, experts, indexer.
        seeds = (whole, nothing, whole, nothing, part, part)
        factor = losses[1]
        if self.reduce is not None:
            factor = self.reduce(factor)
        return (losses[0] + losses[2] + losses[4] + losses[5]) / factor, factor, seeds


def input_strategy(data_parallel: int) -> Sequence[tuple[int, ...]]:
    """Tell how the inputs of `LlmPhase` are cut: each worker has the texts of its replica."""
    return tuple((data_parallel, *(1,) * (rank - 1)) for rank in (2, 2, 3, 2, 3))
