"""Forward FLOPs of each layer, and what it moves.

FLOPs are two per multiply-add of the matrix products; the rest is small beside them. Traffic is the weights, and every
tensor between two operators written once and read once; the scores of attention are such tensors here. The dense
gradient of a table that is looked up is not in it.

`sizes` are those of one micro-batch: `images`, `samples` (rows), `tokens` (rows x padded length). `shards` is T: what
the workers of a stage share costs each of them a T-th part.
"""

from __future__ import annotations

from collections.abc import Mapping

from hyperparallel.cost.roofline import Traffic
from hyperparallel.models.config import DecoderConfig, VisionConfig

Sizes = Mapping[str, float]


def patch(config: VisionConfig, sizes: Sizes) -> float:
    """Count the projection of the patches."""
    inputs = config.channels * config.patch_size**2
    return 2 * sizes["images"] * config.patches * inputs * config.width


def patch_traffic(config: VisionConfig, sizes: Sizes) -> Traffic:
    """Count the pixels, once as they come and once in patches, and what is made of them."""
    inputs = config.channels * config.patch_size**2
    return Traffic(inputs * config.width, sizes["images"] * config.patches * (3 * inputs + config.width))


def vision_block(config: VisionConfig, shards: int, sizes: Sizes) -> float:
    """Count qkv, output and MLP projections, and attention among the patches of one image."""
    weights = config.width * (4 * config.width + 2 * config.ffn)
    attention = 2 * config.patches * config.width
    return 2 * sizes["images"] * config.patches * (weights + attention) / shards


def vision_block_traffic(config: VisionConfig, shards: int, sizes: Sizes) -> Traffic:
    """Count six tensors of the whole width; and qkv, rotated, scores, mixed and the MLP's, which shards share."""
    rows, width = sizes["images"] * config.patches, config.width
    shared = 6 * width + 2 * config.heads * config.patches + 2 * config.ffn
    mixing = 4 * rows * config.patches * width / shards
    return Traffic(width * (4 * width + 2 * config.ffn) / shards, 2 * rows * (6 * width + shared / shards), mixing)


def merger(config: VisionConfig, llm_width: int, sizes: Sizes) -> float:
    """Count the two projections of the merged patches."""
    weights = (config.merge**2 * config.width + llm_width) * llm_width
    return 2 * sizes["images"] * config.tokens_per_image * weights


def merger_traffic(config: VisionConfig, llm_width: int, sizes: Sizes) -> Traffic:
    """Count the norm, the inner features before and after their gate, and the tokens."""
    grouped = config.merge**2 * config.width
    rows = sizes["images"] * config.tokens_per_image
    return Traffic((grouped + llm_width) * llm_width, 2 * rows * (grouped + 3 * llm_width))


def embed(config: DecoderConfig, sizes: Sizes) -> float:
    """Count one per feature for the choice between text and image: a lookup multiplies nothing."""
    return sizes["tokens"] * config.width


def embed_traffic(config: DecoderConfig, sizes: Sizes) -> Traffic:
    """Count the rows of the table and of the images, and the choice."""
    return Traffic(0, 2 * sizes["tokens"] * 3 * config.width)


def decoder_block(config: DecoderConfig, shards: int, sizes: Sizes) -> float:
    """Count the projections, and attention among the tokens of one row, masked ones included."""
    kv_width = config.kv_heads * (config.width // config.heads)
    weights = config.width * (2 * config.width + 2 * kv_width + 3 * config.ffn)
    attention = 2 * sizes["tokens"] / sizes["samples"] * config.width
    return 2 * sizes["tokens"] * (weights + attention) / shards


def decoder_block_traffic(config: DecoderConfig, shards: int, sizes: Sizes) -> Traffic:
    """Count six tensors of the whole width; and qkv, rotated, scores, mixed and the SwiGLU's, which shards share."""
    rows, width, length = sizes["tokens"], config.width, sizes["tokens"] / sizes["samples"]
    kv_width = config.kv_heads * (width // config.heads)
    weights = width * (2 * width + 2 * kv_width + 3 * config.ffn)
    shared = 3 * width + 3 * kv_width + 3 * config.heads * length + 4 * config.ffn
    mixing = 4 * rows * length * width / shards
    return Traffic(weights / shards, 2 * rows * (6 * width + shared / shards), mixing)


def head(config: DecoderConfig, sizes: Sizes) -> float:
    """Count the projection to the vocabulary."""
    return 2 * sizes["tokens"] * config.width * config.vocab_size


def head_traffic(config: DecoderConfig, sizes: Sizes) -> Traffic:
    """Count the norm, the logits and their softmax."""
    return Traffic(config.width * config.vocab_size, 2 * sizes["tokens"] * (config.width + 2 * config.vocab_size))
