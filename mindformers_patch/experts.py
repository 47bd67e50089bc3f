"""MindFormers' experts for a graph of one worker, whose forwards are not run again in the backwards.

Shapes: N tokens sorted by expert, E experts, H/G features in and out of a product.
"""

from __future__ import annotations

import mindspore as ms
from mindformers.parallel_core.training_graph.transformer.moe.ffn import FFNGroupedGEMM
from mindformers.parallel_core.transformer_config import TransformerConfig
from mindspore import nn, ops
from mindspore.ops.auto_generate import GroupedMatmul, TransposeExtView

from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.errors import ConfigError


class GroupedProduct(nn.Cell):
    """Multiply each expert's tokens by its own matrix.

    MindSpore's own gradient looks at tokens and matrices through a view, which makes them another kind of value than
    they are in the forward; the compiler then takes the forward in a backward for another one, and runs both. Here the
    gradient looks at what a Depend hands on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_rows = GroupedMatmul(split_item=3, group_type=0)
        self.by_inner = GroupedMatmul(split_item=3, group_type=2)
        self.flip, self.depend = TransposeExtView(), ops.Depend()

    def construct(self, x_NH: ms.Tensor, w_EHG: ms.Tensor, ends_E: ms.Tensor) -> ms.Tensor:
        """Multiply.

        Args:
            x_NH: tokens, those of an expert next to each other.
            w_EHG: matrices.
            ends_E: number of tokens of an expert and of all before it, int64.

        Returns:
            (N, G).
        """
        return self.by_rows([x_NH], [w_EHG], None, None, None, None, None, ends_E)[0]

    def bprop(self, x_NH, w_EHG, ends_E, out_NG, dout_NG):
        """Return the gradients of tokens and matrices."""
        flipped_EGH = self.flip(self.depend(w_EHG, dout_NG), -1, -2)
        dx_NH = self.by_rows([dout_NG], [flipped_EGH], None, None, None, None, None, ends_E)[0]
        flipped_HN = self.flip(self.depend(x_NH, dout_NG), -1, -2)
        dw_EHG = self.by_inner([flipped_HN], [dout_NG], None, None, None, None, None, ends_E)[0]
        return dx_NH, dw_EHG, ops.zeros_like(ends_E)


class LocalExperts(FFNGroupedGEMM):
    """MindFormers' experts, all of them on this worker.

    Args:
        config: as MindFormers'.
    """

    def __init__(self, config) -> None:
        super().__init__(config)
        self.first, self.second = GroupedProduct(), GroupedProduct()

    def experts_forward(self, permuted_local_hidden_states, tokens_per_expert, w1, w2):
        """Run the experts; see MindFormers' `FFNGroupedGEMM.experts_forward`."""
        tokens_NH = permuted_local_hidden_states.reshape((-1, self.hidden_size))
        inner = self.swiglu(self.first(tokens_NH, w1, tokens_per_expert), -1)
        return self.second(inner, w2, tokens_per_expert)


def check_experts(config: TransformerConfig, parallel: TensorParallel) -> None:
    """Refuse what a rank's graph cannot do with experts and latent attention.

    A router that counts tokens writes a parameter in the forward. Around that the compiler takes weights for changed,
    runs all forwards of the graph again in the backwards, and counts twice.

    Raises:
        ConfigError: says what to set.
    """
    if config.num_moe_experts and config.moe_router_enable_expert_bias:
        raise ConfigError(
            "model_config.moe_router_enable_expert_bias is True (the default of DeepSeek-V3): its router counts tokens "
            "in the forward, which a rank's graph would do twice; set it to False, moe_aux_loss_coeff balances experts"
        )
    if config.num_moe_experts and config.moe_router_load_balancing_type == "gbs_aux_loss":
        raise ConfigError(
            "model_config.moe_router_load_balancing_type is gbs_aux_loss: its router counts tokens in the forward, "
            "which a rank's graph would do twice; set it to seq_aux_loss or sub_seq_aux_loss"
        )
    if parallel.size > 1 and (config.num_moe_experts or config.multi_latent_attention):
        raise ConfigError(
            f"parallel_config.model_parallel is {parallel.size}: hyperparallel.run graph shares heads and inner "
            "features of dense models with plain attention only; set model_parallel: 1, or run: three_phase"
        )
