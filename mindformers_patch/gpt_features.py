"""MindFormers' GPT model fed with image features that were computed before it, in operators that it can shard.

Shapes: B texts of a micro-batch, S tokens, K feature rows of a text: a row of zeros and then Q rows for each of its
I image slots, H width.
"""

from __future__ import annotations

import mindspore as ms
from mindformers.parallel_core.training_graph.base_models.gpt.gpt_model import GPTModel
from mindformers.parallel_core.transformer_config import TransformerConfig
from mindspore import nn, ops


def place_images(input_ids_BS: ms.Tensor, image_token: int) -> tuple[ms.Tensor, ms.Tensor]:
    """Tell which feature row each token takes.

    Args:
        input_ids_BS: token ids.
        image_token: id of a placeholder.

    Returns:
        Rows (B, S) int32, 0 for a token of the text and k for the k-th placeholder of a text; and (B, S, 1) float32,
        1 for a token of the text and 0 for a placeholder.
    """
    is_image_BS = (input_ids_BS == image_token).astype(ms.int32)
    rows_BS = ops.cumsum(is_image_BS, 1).astype(ms.int32) * is_image_BS
    return rows_BS, (1 - is_image_BS).astype(ms.float32).expand_dims(-1)


class Merge(nn.Cell):
    """Put feature rows where the placeholders of a text are.

    Each text takes from its own rows only, so data parallel needs no communication; the rows are whole on all workers
    of a tensor-parallel group, and so is their gradient.

    Args:
        config: MindFormers' configuration, for the strategies.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dp, cp, tp = (
            int(size or 1)
            for size in (config.data_parallel_size, config.context_parallel_size, config.tensor_model_parallel_size)
        )
        sp = cp * tp if config.sequence_parallel else cp
        self.gather = ops.Gather(batch_dims=1).shard(((dp, 1, 1), (dp, 1)))
        self.turn = ops.Transpose().shard(((dp, sp, 1),))
        self.turn_keep = ops.Transpose().shard(((dp, sp, 1),))
        self.mul = ops.Mul().shard(((sp, dp, 1), (sp, dp, 1)))
        self.add = ops.Add().shard(((sp, dp, 1), (sp, dp, 1)))
        self.cast = ops.Cast()

    def construct(self, text_SBH, features_BKH, rows_BS, keep_BS1):
        """Return (S, B, H) of the text's type; text tokens and features as they were, bit by bit."""
        picked_SBH = self.turn(self.gather(features_BKH, rows_BS, 1), (1, 0, 2))
        keep_SB1 = self.cast(self.turn_keep(keep_BS1, (1, 0, 2)), text_SBH.dtype)
        return self.add(self.mul(text_SBH, keep_SB1), self.cast(picked_SBH, text_SBH.dtype))


class FeatureGPT(GPTModel):
    """MindFormers' GPT model; what it is given as `decoder_input` are the arguments of `Merge` after the text.

    Args:
        image_token: not used; placeholders are found beforehand.
        args, kwargs: as MindFormers'.
    """

    def __init__(self, image_token: int, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.merge = Merge(self.config)

    def language_model(self, input_ids, position_ids, attn_mask, decoder_input=None, **more):
        """Merge inside of the model, in its first stage, then go on as MindFormers does."""
        features_BKH, rows_BS, keep_BS1 = decoder_input
        text_SBH = self.embedding(input_ids, position_ids)
        mixed_SBH = self.merge(text_SBH, features_BKH, rows_BS, keep_BS1)
        return super().language_model(input_ids, position_ids, attn_mask, decoder_input=mixed_SBH, **more)


class FeatureLlm(nn.Cell):
    """A GPT model by the inputs that micro-batches are cut from.

    Args:
        model: the model.
    """

    def __init__(self, model: FeatureGPT) -> None:
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, input_ids, labels, features_BKH, rows_BS, keep_BS1):
        """Return MindFormers' losses."""
        return self.model(input_ids, labels=labels, decoder_input=(features_BKH, rows_BS, keep_BS1))
