"""MindFormers' GPT model as layers of the layer contract: embedding, decoder layers, final norm, head with the loss.

Parameters keep MindFormers' names (`decoder.layers.3.mlp.linear_fc1.weight`), so its checkpoint tools take them.

Shapes: S tokens of a text, B texts of a micro-batch, H features of a token, N images of a micro-batch,
Q tokens of an image, V words.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial

import mindspore as ms
import numpy as np
from mindformers.parallel_core.training_graph.base_models.common.embeddings.language_model_embedding import (
    LanguageModelEmbedding,
)
from mindformers.parallel_core.training_graph.base_models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from mindformers.parallel_core.training_graph.base_models.common.embeddings.yarn_rotary_pos_embedding import (
    YarnRotaryEmbedding,
)
from mindformers.parallel_core.training_graph.device_matrix import layout
from mindformers.parallel_core.training_graph.loss_func import CrossEntropyLoss
from mindformers.parallel_core.training_graph.tensor_parallel.layers import ColumnParallelLinear
from mindformers.parallel_core.training_graph.transformer.norm import get_norm_cls
from mindformers.parallel_core.transformer_config import TransformerConfig
from mindformers.parallel_core.utils.spec_utils import ModuleSpec, build_module
from mindspore import nn, ops

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.tensor_parallel import WHOLE, Shard, TensorParallel
from mindformers_patch.experts import check_experts
from mindformers_patch.local_modules import causal_mask, local_spec, plain
from mindformers_patch.named_layer import named_layer

HEAD_NORMS = tuple(
    f"layer.self_attention.{norm}_layernorm.{local}" for norm in "qk" for local in ("weight", "gamma", "beta")
)
"""Norms of each head's features: shards have different heads, but share these."""


class Embedding(nn.Cell):
    """Look up tokens, and put image features where the placeholders are.

    Args:
        config: MindFormers' configuration.
        image_token: token id of a placeholder; None for a model without images.
        extra: hand on the auxiliary loss that layers with experts add to.
    """

    def __init__(self, config: TransformerConfig, image_token: int | None, extra: bool) -> None:
        super().__init__()
        self.embedding = plain(
            LanguageModelEmbedding(
                config,
                vocab_size=config.vocab_size,
                max_sequence_length=config.max_position_embeddings,
                position_embedding_type=config.position_embedding_type,
            )
        )
        self.embedding.word_embeddings.embedding_morph = look_up
        self.image_token, self.extra = image_token, extra
        self.none = ms.Tensor([0.0], ms.float32)

    def construct(self, *inputs):
        """Embed: features (N, Q, H) if there are images, then ids (B, S) int32, to (S, B, H)."""
        input_ids_BS = inputs[-1]
        text_SBH = self.embedding(input_ids_BS, None)
        if self.image_token is not None:
            text_SBH = put_images(text_SBH, inputs[0], input_ids_BS, self.image_token)
        return (text_SBH, self.none + 0.0 * input_ids_BS[:1, 0]) if self.extra else text_SBH


def look_up(input_ids_BS: ms.Tensor, table_VH: ms.Tensor) -> ms.Tensor:
    """Look up tokens with an operator that changes nothing.

    MindFormers' own may renormalise the table, so it counts as one with side effects. Around such an operator the
    compiler takes weights for changed, and runs all forwards of the graph a second time in the backwards. Its gradient
    has no CPU kernel either.
    """
    return ops.gather(table_VH, input_ids_BS, 0)


def put_images(text_SBH: ms.Tensor, features_NQH: ms.Tensor, input_ids_BS: ms.Tensor, image_token: int) -> ms.Tensor:
    """Replace the placeholders of each text by the features of its own images, in their order.

    Args:
        text_SBH: embedded tokens.
        features_NQH: the same number of images for each text, N / B; those after its last placeholder are not used.
        input_ids_BS: token ids.
        image_token: id of a placeholder.

    Returns:
        (S, B, H) of the text's type.
    """
    rows, width = input_ids_BS.shape[0], text_SBH.shape[-1]
    features_RH = features_NQH.reshape(-1, width).astype(text_SBH.dtype)
    is_image_SB = (input_ids_BS == image_token).transpose(1, 0)
    count_SB = ops.cumsum(is_image_SB.astype(ms.int32), 0)
    first_B = ops.arange(rows) * (features_RH.shape[0] // rows)
    # Text tokens pick a row too, which `where` drops; before the first placeholder that would be row -1.
    row_SB = ops.maximum(count_SB - 1, 0) + first_B.astype(ms.int32)
    picked_SBH = ops.gather(features_RH, row_SB, 0)
    return ops.where(is_image_SB.expand_dims(-1), picked_SBH, text_SBH)


class DecoderLayer(nn.Cell):
    """One of MindFormers' transformer layers, with mask and rotary positions of its own.

    Args:
        config: MindFormers' configuration, with this worker's number of heads and features.
        spec: what the layer is made of.
        number: from 0.
        length: S.
        extra: hand on the auxiliary loss.
    """

    def __init__(self, config: TransformerConfig, spec: ModuleSpec, number: int, length: int, extra: bool) -> None:
        super().__init__()
        self.layer = plain(build_module(spec, config=config, layer_number=number))
        self.rotary = rotary(config, length)
        self.mask = causal_mask(length)
        self.length, self.extra = length, extra

    def construct(self, carry):
        """Apply the layer: (S, B, H) -> (S, B, H), with the auxiliary loss (1,) beside it where experts are."""
        positions = self.rotary(self.length) if self.rotary is not None else None
        if not self.extra:
            return self.layer(carry, self.mask, rotary_pos_emb=positions)[0]
        output = self.layer(carry[0], self.mask, rotary_pos_emb=positions, extra_loss=carry[1])
        return output[0], output[2]


class FinalNorm(nn.Cell):
    """The norm after the last layer.

    Args:
        config: MindFormers' configuration.
        fused: use the fused operator.
    """

    def __init__(self, config: TransformerConfig, fused: bool, extra: bool) -> None:
        super().__init__()
        self.norm = get_norm_cls(fused)(config, dim=config.hidden_size, eps=config.layernorm_epsilon)
        self.extra = extra

    def construct(self, carry):
        """Normalise (S, B, H)."""
        return (self.norm(carry[0]), carry[1]) if self.extra else self.norm(carry)


class Head(nn.Cell):
    """Project to words and return the sum of the cross entropy.

    Args:
        config: MindFormers' configuration.
        extra: add the auxiliary loss.
    """

    def __init__(self, config: TransformerConfig, extra: bool) -> None:
        super().__init__()
        self.output = plain(
            ColumnParallelLinear(
                config.hidden_size, config.vocab_size, config=config, init_method=config.init_method, bias=False
            )
        )
        self.loss = CrossEntropyLoss(config)
        self.loss.calculate_per_token_loss = True  # the sum; the runner divides by the weight of the whole step
        self.ignored, self.width, self.extra = config.ignore_token_id, config.vocab_size, extra

    def construct(self, carry, labels_BS: ms.Tensor):
        """Return the sum of the losses of all labels that are not ignored, and their number."""
        hidden_SBH = carry[0] if self.extra else carry
        logits_SBV, _ = self.output(hidden_SBH)
        logits = logits_SBV.transpose(1, 0, 2).reshape(-1, self.width).astype(ms.float32)
        asked = labels_BS.reshape(-1) != self.ignored
        labels = ops.where(asked, labels_BS.reshape(-1), 0)
        weights = asked.astype(ms.float32)
        total, _ = self.loss(logits, labels, weights)
        weight = weights.sum()
        if self.extra:
            total = total + carry[1].sum() * weight
        return total, weight


class Angles(nn.Cell):
    """Rotary angles tabulated beforehand: what MindFormers' Cell computes by operators that a CPU has not.

    Args:
        inner: MindFormers' Cell.
        length: S.
    """

    def __init__(self, inner: RotaryEmbedding, length: int) -> None:
        super().__init__()
        half = np.outer(np.arange(length), inner.inv_freq.asnumpy() / (inner.seq_len_interpolation_factor or 1))
        both = np.repeat(half, 2, -1) if inner.rotary_interleaved else np.concatenate([half, half], -1)
        self.angles = ms.Tensor(both[:, None, None, :].astype(np.float32))
        self.scale = inner.mscale

    def construct(self, length: int, position_ids=None):
        """Return (S, 1, 1, rotated features) and the factor on it; texts are not cut, so positions are 0 .. S - 1."""
        return self.angles, self.scale


def rotary(config: TransformerConfig, length: int) -> nn.Cell | None:
    """Make the positions of the configuration: rope, yarn, or none."""
    if config.position_embedding_type == "none":
        return None
    width = config.qk_pos_emb_head_dim if config.multi_latent_attention else config.kv_channels
    if config.position_embedding_type == "yarn":
        return YarnRotaryEmbedding(
            kv_channels=width,
            rotary_base=config.rotary_base,
            scaling_factor=config.rotary_scaling_factor,
            original_max_position_embeddings=config.max_position_embeddings,
            beta_fast=config.beta_fast,
            beta_slow=config.beta_slow,
            mscale=config.mscale,
            mscale_all_dim=config.mscale_all_dim,
        )
    inner = RotaryEmbedding(
        kv_channels=width,
        rotary_percent=config.rotary_percent if config.multi_latent_attention else 1.0,
        rotary_interleaved=config.rotary_interleaved,
        seq_len_interpolation_factor=config.rotary_seq_len_interpolation_factor,
        rotary_base=config.rotary_base,
    )
    return Angles(inner, length)


def backbone(
    config: TransformerConfig,
    specs: Sequence[ModuleSpec],
    *,
    image_token: int | None,
    parallel: TensorParallel = WHOLE,
    eager: bool = False,
) -> list[Layer]:
    """List the layers of a GPT model of MindFormers.

    Args:
        config: MindFormers' configuration of the whole model, T = 1.
        specs: what each decoder layer is made of.
        image_token: token id of a placeholder; None for a model without images.
        parallel: this worker's place among the T workers of its stage.
        eager: use operators that a CPU has.

    Raises:
        ConfigError: experts that balance by counting, or T > 1 with experts or latent attention.

    Returns:
        Layers of the part `llm`. Columns: `input_ids` and `labels` (B, S) int32.
    """
    check_experts(config, parallel)
    layout.init_layout(config)
    extra = bool(config.num_moe_experts)
    whole, local = (local_config(config, size, eager) for size in (1, parallel.size))

    def tokens(shapes: Mapping[str, tuple[int, ...]]) -> list[TensorSpec]:
        rows, length = shapes["input_ids"]
        width = TensorSpec((length, rows, config.hidden_size), type_name(config.compute_dtype))
        return [width, TensorSpec((1,))] if extra else [width]

    layer = partial(named_layer, parallel=parallel, part="llm")

    def decoder(number: int, spec: ModuleSpec, place: TensorParallel) -> nn.Cell:
        sizes = local if place.size > 1 else whole
        return DecoderLayer(sizes, local_spec(spec, place, eager), number, config.seq_length, extra)

    tied = {"output.weight": "embedding.word_embeddings.weight"} if config.tie_word_embeddings else {}
    return [
        layer(
            "embedding",
            lambda _: Embedding(whole, image_token, extra),
            strip="embedding.",
            columns=("input_ids",),
            carry=tokens,
        ),
        *(
            layer(
                f"decoder.layers.{number}",
                partial(decoder, number, spec),
                strip="layer.",
                sharded=decoder_shards(config),
                partial=HEAD_NORMS,
                carry=tokens,
            )
            for number, spec in enumerate(specs)
        ),
        layer("decoder.final_layernorm", lambda _: FinalNorm(whole, not eager, extra), strip="norm.", carry=tokens),
        layer("output_layer", lambda _: Head(whole, extra), strip="output.", columns=("labels",), tied=tied),
    ]


def local_config(config: TransformerConfig, size: int, eager: bool) -> TransformerConfig:
    """Return the configuration of one of T shards: its heads and inner features, and whether attention is eager."""
    TensorParallel(size).check(
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_query_groups,
        intermediate_size=config.ffn_hidden_size,
    )
    local = copy.copy(config)
    # Nothing of MindFormers' own parallelism: what shards exchange is in our modules.
    for size_of in ("data", "tensor_model", "pipeline_model", "context", "expert_model"):
        setattr(local, f"{size_of}_parallel_size", 1)
    local.sequence_parallel = False
    local.num_attention_heads //= size
    local.num_query_groups //= size
    local.ffn_hidden_size //= size
    local.use_flash_attention = config.use_flash_attention and not eager
    return local


def decoder_shards(config: TransformerConfig) -> dict[str, Shard]:
    """Tell how the parameters of a decoder layer are cut; the rows of a group of heads stay together."""
    query = config.num_attention_heads * config.kv_channels
    key = config.num_query_groups * config.kv_channels
    ffn = config.ffn_hidden_size
    qkv = (query, key, key) if config.use_contiguous_weight_layout_attention else (query + 2 * key,)
    gated = (2 * ffn,) if config.use_interleaved_weight_layout_mlp else (ffn, ffn)
    inner = gated if config.gated_linear_unit else (ffn,)
    return {
        "layer.self_attention.linear_qkv.weight": Shard(0, qkv),
        "layer.self_attention.linear_qkv.bias": Shard(0, qkv),
        "layer.self_attention.linear_proj.weight": Shard(1, (query,)),
        "layer.mlp.linear_fc1.weight": Shard(0, inner),
        "layer.mlp.linear_fc1.bias": Shard(0, inner),
        "layer.mlp.linear_fc2.weight": Shard(1, (ffn,)),
    }


def type_name(dtype: ms.Type) -> str:
    """Return the name that `TensorSpec` has for a type."""
    return str(dtype).lower()
