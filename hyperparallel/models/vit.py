"""The vision encoder: patches, blocks of attention with 2D rotary positions, and a merger to LLM tokens.

Shapes: N images, P patches per image, G patches per merged token, Q = P/G tokens per image, C channels,
D encoder width, F features in the MLP, A heads of this shard, E features per head, L LLM width.

Patches are ordered so that the G neighbours which become one token follow each other: merging is a reshape.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from hyperparallel.cells.dropout import Dropout
from hyperparallel.cells.tensor_parallel import WHOLE, Enter, Shard, TensorParallel
from hyperparallel.models.attention import attend, rotary_tables, rotate
from hyperparallel.models.config import VisionConfig
from hyperparallel.models.shards import column_dense, row_dense
from hyperparallel.models.weights import dense, depth_scale

# Positions are 0 .. grid-1, a few dozen at most: wavelengths beyond a hundred patches would tell nothing.
_THETA = 100.0
_EPSILON = 1e-6


def gelu(x: ms.Tensor) -> ms.Tensor:
    """Gate each feature by the sigmoid form of GELU, 3 to 5 times faster on CPU than its erf and tanh forms."""
    return x * ops.sigmoid(1.702 * x)


def patch_positions(config: VisionConfig) -> np.ndarray:
    """Return the (P, 2) row and column of each patch, in the order the encoder keeps them."""
    coarse, fine = config.grid // config.merge, config.merge
    row, column = np.indices((config.grid, config.grid)).reshape(2, coarse, fine, coarse, fine)
    return np.stack([axis.transpose(0, 2, 1, 3).reshape(-1) for axis in (row, column)], axis=1)


class PatchEmbed(nn.Cell):
    """Cut images into patches and project each to the encoder's width.

    Args:
        config: sizes of the encoder.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        coarse, fine, pixels = config.grid // config.merge, config.merge, config.patch_size
        self.split = (-1, config.channels, coarse, fine, pixels, coarse, fine, pixels)
        self.flat = (-1, config.patches, config.channels * pixels**2)
        self.project = dense(self.flat[2], config.width, bias=True)

    def construct(self, pixels_NCHW: ms.Tensor) -> ms.Tensor:
        """Embed images: (N, C, height, width) float32 -> (N, P, D); N may differ at every call."""
        patches = pixels_NCHW.reshape(self.split).transpose(0, 2, 5, 3, 6, 1, 4, 7)
        return self.project(patches.reshape(self.flat))


def block_shards(config: VisionConfig) -> dict[str, Shard]:
    """Tell how the parameters of a block are cut: attention by heads, the MLP by its inner features."""
    rows, inner = (config.width,) * 3, (config.ffn,)
    return {
        "qkv.weight": Shard(0, rows),
        "qkv.bias": Shard(0, rows),
        "out.weight": Shard(1, (config.width,)),
        "up.weight": Shard(0, inner),
        "up.bias": Shard(0, inner),
        "down.weight": Shard(1, inner),
    }


class VisionBlock(nn.Cell):
    """Mix the patches of each image, then the features of each patch, both added to the carry.

    Args:
        config: sizes of the encoder.
        parallel: this worker's place among the T workers that share the block, alone by default; T divides heads and
            ffn.
    """

    def __init__(self, config: VisionConfig, parallel: TensorParallel = WHOLE) -> None:
        super().__init__()
        width, scale, shards = config.width, depth_scale(config.depth), block_shards(config)
        self.heads = config.heads // parallel.size
        self.split = (-1, config.patches, 3 * self.heads, width // config.heads)
        self.flat = (-1, config.patches, width // parallel.size)
        self.is_shared = parallel.size > 1
        if self.is_shared:
            self.enter = Enter(parallel)
        self.cos, self.sin = rotary_tables(patch_positions(config), width // config.heads, _THETA)
        self.norm1 = nn.LayerNorm([width], epsilon=_EPSILON)
        self.qkv = column_dense(width, shards["qkv.weight"], bias=True, parallel=parallel)
        self.out = row_dense(width, shards["out.weight"], bias=True, scale=scale, parallel=parallel)
        self.norm2 = nn.LayerNorm([width], epsilon=_EPSILON)
        self.up = column_dense(width, shards["up.weight"], bias=True, parallel=parallel)
        self.down = row_dense(width, shards["down.weight"], bias=True, scale=scale, parallel=parallel)
        self.drops = config.dropout > 0
        if self.drops:
            self.drop1 = Dropout(config.dropout, width)
            self.drop2 = Dropout(config.dropout, width)

    def construct(self, x_NPD: ms.Tensor, random_2: ms.Tensor | None = None) -> ms.Tensor:
        """Apply the block: (N, P, D) -> (N, P, D); with dropout, by the column `RANDOM`."""
        mixed_NPD = self.attention(self.shared(self.norm1(x_NPD)))
        x_NPD = x_NPD + (self.drop1(mixed_NPD, random_2) if self.drops else mixed_NPD)
        y_NPD = self.down(gelu(self.up(self.shared(self.norm2(x_NPD)))))
        return x_NPD + (self.drop2(y_NPD, random_2) if self.drops else y_NPD)

    def shared(self, x_NPD: ms.Tensor) -> ms.Tensor:
        """Enter what the shards compute together."""
        return self.enter(x_NPD) if self.is_shared else x_NPD

    def attention(self, x_NPD: ms.Tensor) -> ms.Tensor:
        """Attend over the patches of each image."""
        heads = self.heads
        qkv = self.qkv(x_NPD).reshape(self.split).transpose(0, 2, 1, 3)
        qk = rotate(qkv[:, : 2 * heads], self.cos, self.sin)
        mixed_NAPE = attend(qk[:, :heads], qk[:, heads:], qkv[:, 2 * heads :])
        return self.out(mixed_NAPE.transpose(0, 2, 1, 3).reshape(self.flat))


class Merger(nn.Cell):
    """Turn each group of neighbouring patches into one token of the LLM.

    Args:
        config: sizes of the encoder.
        llm_width: features of an LLM token.
    """

    def __init__(self, config: VisionConfig, llm_width: int) -> None:
        super().__init__()
        grouped = config.merge**2 * config.width
        self.grouped = (-1, config.tokens_per_image, grouped)
        self.norm = nn.LayerNorm([config.width], epsilon=_EPSILON)
        self.up = dense(grouped, llm_width, bias=True)
        self.down = dense(llm_width, llm_width, bias=True)

    def construct(self, x_NPD: ms.Tensor) -> ms.Tensor:
        """Merge: (N, P, D) -> image features (N, Q, L)."""
        return self.down(gelu(self.up(self.norm(x_NPD).reshape(self.grouped))))
