"""The LLM: embedding with image features put in place, decoder blocks, and a head that returns the loss.

Shapes: B rows, T padded text length, D width, F features in the SwiGLU, A query heads and K key and value heads of
this shard, E features per head, V vocabulary, N images, Q tokens per image. B, T and N may differ at every call.

Rows are padded on the right, where a causal mask already keeps every real token from seeing the padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from hyperparallel.cells.dropout import Dropout
from hyperparallel.cells.tensor_parallel import WHOLE, Enter, Shard, TensorParallel
from hyperparallel.errors import DataError
from hyperparallel.models.attention import attend_causal, rotary_tables, rotate
from hyperparallel.models.config import DecoderConfig
from hyperparallel.models.shards import column_dense, row_dense
from hyperparallel.models.weights import RmsNorm, depth_scale, normal

IGNORE = -100  # the label of a token that is not to be predicted
_NEVER = -1e9


class TextEmbed(nn.Cell):
    """Look up tokens, for a model without images.

    Args:
        config: sizes of the LLM.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = _token_table(config)

    def construct(self, input_ids_BT: ms.Tensor) -> ms.Tensor:
        """Embed tokens: (B, T) int32 -> (B, T, D)."""
        return ops.gather(self.weight, input_ids_BT, 0)


class MultimodalEmbed(nn.Cell):
    """Look up tokens, and replace the placeholders by image features in their order.

    Args:
        config: sizes of the LLM.
        image_token: token id of a placeholder.
    """

    def __init__(self, config: DecoderConfig, image_token: int) -> None:
        super().__init__()
        self.weight = _token_table(config)
        self.image_token = image_token
        self.width = config.width

    def construct(self, features_NQD: ms.Tensor, input_ids_BT: ms.Tensor) -> ms.Tensor:
        """Embed tokens and images.

        Args:
            features_NQD: image features; rows beyond the number of placeholders are not used, and get a
                gradient of exactly zero.
            input_ids_BT: int32 token ids with at most N x Q placeholders; the i-th placeholder, counted row
                by row, takes the i-th feature row.

        Returns:
            (B, T, D).
        """
        features_RD = features_NQD.reshape(-1, self.width)
        is_image_BT = input_ids_BT == self.image_token
        count = ops.cumsum(is_image_BT.reshape(-1).astype(ms.int32), 0)
        # Text tokens pick a row too, which `where` drops; before the first placeholder that would be row -1.
        row_BT = ops.maximum(count - 1, 0).reshape(input_ids_BT.shape)
        text_BTD = ops.gather(self.weight, input_ids_BT, 0)
        return ops.where(is_image_BT.expand_dims(-1), ops.gather(features_RD, row_BT, 0), text_BTD)


def check_placeholders(image_token: int, handed: Sequence[tuple[int, ...]], columns: Mapping[str, np.ndarray]) -> None:
    """Refuse a micro-batch with more placeholders than image features; see `Layer.check`.

    Args:
        image_token: token id of a placeholder.
        handed: (N, Q, D), shape of the features.
        columns: with `input_ids`.

    Raises:
        DataError: names both numbers.
    """
    images, tokens = handed[0][:2]
    placeholders = int(np.count_nonzero(columns["input_ids"] == image_token))
    if placeholders > images * tokens:
        raise DataError(
            f"input_ids has {placeholders} placeholders (token {image_token}), but {images} images of {tokens} "
            f"features give {images * tokens}; give an image for every {tokens} placeholders"
        )


def block_shards(config: DecoderConfig) -> dict[str, Shard]:
    """Tell how the parameters of a block are cut: attention by heads, the SwiGLU by its inner features."""
    kv_width = config.kv_heads * (config.width // config.heads)
    inner = (config.ffn,)
    return {
        "qkv.weight": Shard(0, (config.width, kv_width, kv_width)),
        "out.weight": Shard(1, (config.width,)),
        "gate.weight": Shard(0, inner),
        "up.weight": Shard(0, inner),
        "down.weight": Shard(1, inner),
    }


class DecoderBlock(nn.Cell):
    """Mix each token with the ones before it, then its features, both added to the carry.

    Projections have no biases: a key bias has a gradient of rounding noise only, which Adam blows up.

    Args:
        config: sizes of the LLM.
        parallel: this worker's place among the T workers that share the block, alone by default; T divides heads,
            kv_heads and ffn.
    """

    def __init__(self, config: DecoderConfig, parallel: TensorParallel = WHOLE) -> None:
        super().__init__()
        width, head, scale = config.width, config.width // config.heads, depth_scale(config.depth)
        shards = block_shards(config)
        self.heads, self.kv_heads = config.heads // parallel.size, config.kv_heads // parallel.size
        self.head, self.flat_width = head, width // parallel.size
        self.is_shared = parallel.size > 1
        if self.is_shared:
            self.enter = Enter(parallel)
        position_S1 = np.arange(config.max_length)[:, None]
        self.cos, self.sin = rotary_tables(position_S1, head, config.rope_theta)
        self.mask = ms.Tensor(np.triu(np.full([config.max_length] * 2, _NEVER, np.float32), 1))
        self.norm1 = RmsNorm(width)
        self.qkv = column_dense(width, shards["qkv.weight"], bias=False, parallel=parallel)
        self.out = row_dense(width, shards["out.weight"], bias=False, scale=scale, parallel=parallel)
        self.norm2 = RmsNorm(width)
        self.gate = column_dense(width, shards["gate.weight"], bias=False, parallel=parallel)
        self.up = column_dense(width, shards["up.weight"], bias=False, parallel=parallel)
        self.down = row_dense(width, shards["down.weight"], bias=False, scale=scale, parallel=parallel)
        self.drops = config.dropout > 0
        if self.drops:
            self.drop1 = Dropout(config.dropout, width)
            self.drop2 = Dropout(config.dropout, width)

    def construct(self, x_BTD: ms.Tensor, random_2: ms.Tensor | None = None) -> ms.Tensor:
        """Apply the block: (B, T, D) -> (B, T, D), T at most max_length; with dropout, by the column `RANDOM`."""
        mixed_BTD = self.attention(self.shared(self.norm1(x_BTD)))
        x_BTD = x_BTD + (self.drop1(mixed_BTD, random_2) if self.drops else mixed_BTD)
        y_BTD = self.shared(self.norm2(x_BTD))
        y_BTD = self.down(ops.silu(self.gate(y_BTD)) * self.up(y_BTD))
        return x_BTD + (self.drop2(y_BTD, random_2) if self.drops else y_BTD)

    def shared(self, x_BTD: ms.Tensor) -> ms.Tensor:
        """Enter what the shards compute together."""
        return self.enter(x_BTD) if self.is_shared else x_BTD

    def attention(self, x_BTD: ms.Tensor) -> ms.Tensor:
        """Attend over each row's own and earlier tokens."""
        length = x_BTD.shape[1]
        heads, rotated = self.heads, self.heads + self.kv_heads
        qkv = self.qkv(x_BTD).reshape(-1, length, rotated + self.kv_heads, self.head).transpose(0, 2, 1, 3)
        qk = rotate(qkv[:, :rotated], self.cos[:length], self.sin[:length])
        mask_TT = self.mask[:length, :length]
        mixed_BATE = attend_causal(qk[:, :heads], qk[:, heads:], qkv[:, rotated:], mask_TT)
        return self.out(mixed_BATE.transpose(0, 2, 1, 3).reshape(-1, length, self.flat_width))


class Head(nn.Cell):
    """Predict each label and sum the cross entropy.

    The projection is the Cell's own Parameter even where it is tied to the embedding, which may live on
    another rank.

    Args:
        config: sizes of the LLM.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.width = config.width
        self.norm = RmsNorm(config.width)
        self.weight = _token_table(config)
        self.project = ops.MatMul(transpose_b=True)

    def construct(self, x_BTD: ms.Tensor, labels_BT: ms.Tensor) -> tuple[ms.Tensor, ...]:
        """Score the labels: the logits of token t are for labels[t].

        Args:
            x_BTD: the last block's carry.
            labels_BT: int32 token ids, or -100 where nothing is to be predicted.

        Returns:
            Four float32 scalars: sum of cross entropy; number of labels; number of rows whose labels are all
            the most likely token; number of rows. A row without labels is in none of them.
        """
        logits_RV = self.project(self.norm(x_BTD).reshape(-1, self.width), self.weight).astype(ms.float32)
        counted_BT = (labels_BT != IGNORE).astype(ms.float32)
        target_R1 = ops.maximum(labels_BT, 0).reshape(-1, 1)
        score_RV = ops.log_softmax(logits_RV, -1)
        score_R1 = ops.gather_elements(score_RV, 1, target_R1)
        loss = -(score_R1 * counted_BT.reshape(-1, 1)).sum()
        guess_BT = ops.argmax(logits_RV, -1).astype(ms.int32).reshape(labels_BT.shape)
        misses_B = ((guess_BT != labels_BT).astype(ms.float32) * counted_BT).sum(-1)
        read_B = (counted_BT.sum(-1) > 0).astype(ms.float32)
        exact_B = (misses_B == 0).astype(ms.float32) * read_B
        return loss, counted_BT.sum(), exact_B.sum(), read_B.sum()


def _token_table(config: DecoderConfig) -> ms.Parameter:
    """Draw a (V, D) table: as a head it starts with logits of size one, close to undecided."""
    return ms.Parameter(normal((config.vocab_size, config.width), config.width**-0.5))
