"""Forward FLOPs of each layer: two per multiply-add of its matrix products, the rest is small beside them.

`sizes` are those of one micro-batch: `images`, `samples` (rows), `tokens` (rows x padded length). `shards` is T: what
the workers of a stage share costs each of them a T-th part.
"""

from __future__ import annotations

from collections.abc import Mapping

from hyperparallel.models.config import DecoderConfig, VisionConfig

Sizes = Mapping[str, float]


def patch(config: VisionConfig, sizes: Sizes) -> float:
    """Count the projection of the patches."""
    inputs = config.channels * config.patch_size**2
    return 2 * sizes["images"] * config.patches * inputs * config.width


def vision_block(config: VisionConfig, shards: int, sizes: Sizes) -> float:
    """Count qkv, output and MLP projections, and attention among the patches of one image."""
    weights = config.width * (4 * config.width + 2 * config.ffn)
    attention = 2 * config.patches * config.width
    return 2 * sizes["images"] * config.patches * (weights + attention) / shards


def merger(config: VisionConfig, llm_width: int, sizes: Sizes) -> float:
    """Count the two projections of the merged patches."""
    weights = (config.merge**2 * config.width + llm_width) * llm_width
    return 2 * sizes["images"] * config.tokens_per_image * weights


def embed(config: DecoderConfig, sizes: Sizes) -> float:
    """Count one per feature for the choice between text and image: a lookup multiplies nothing."""
    return sizes["tokens"] * config.width


def decoder_block(config: DecoderConfig, shards: int, sizes: Sizes) -> float:
    """Count the projections, and attention among the tokens of one row, masked ones included."""
    kv_width = config.kv_heads * (config.width // config.heads)
    weights = config.width * (2 * config.width + 2 * kv_width + 3 * config.ffn)
    attention = 2 * sizes["tokens"] / sizes["samples"] * config.width
    return 2 * sizes["tokens"] * (weights + attention) / shards


def head(config: DecoderConfig, sizes: Sizes) -> float:
    """Count the projection to the vocabulary."""
    return 2 * sizes["tokens"] * config.width * config.vocab_size
