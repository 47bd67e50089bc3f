"""What layers cost: `hyperparallel.cost` counts it by their shapes, here for the sizes of this package's configs."""

from __future__ import annotations

from hyperparallel.cost.decoder_shape import Decoder
from hyperparallel.cost.layer_shapes import LayerShape, Spread
from hyperparallel.cost.roofline import Sizes, Traffic
from hyperparallel.cost.vit_shape import Vit
from hyperparallel.models.config import DecoderConfig, VisionConfig


def vision_shapes(config: VisionConfig, llm_width: int, shards: int = 1) -> list[LayerShape]:
    """Give the shapes of the encoder's layers: patch, blocks, merger.

    Args:
        config: sizes of the encoder.
        llm_width: features of an LLM token.
        shards: T, workers that share a block.
    """
    part = Vit(
        kind="vit",
        layers=config.depth,
        width=config.width,
        heads=config.heads,
        ffn=config.ffn,
        patch_size=config.patch_size,
        channels=config.channels,
        merge=config.merge,
        merger_ffn=llm_width,
        output=llm_width,
        image_size=config.image_size,
    )
    return part.shapes("vision", Spread(shards))


def decoder_shapes(config: DecoderConfig, shards: int = 1) -> list[LayerShape]:
    """Give the shapes of the LLM's layers: embedding, blocks, head.

    Args:
        config: sizes of the LLM.
        shards: T, workers that share a block.
    """
    part = Decoder(
        kind="decoder",
        layers=config.depth,
        width=config.width,
        heads=config.heads,
        kv_heads=config.kv_heads,
        ffn=config.ffn,
        vocab_size=config.vocab_size,
    )
    return part.shapes("llm", Spread(shards))


def flops(shape: LayerShape, sizes: Sizes) -> float:
    """Count the FLOPs of a forward, as `Layer.work`."""
    return shape.count(sizes).flops


def traffic(shape: LayerShape, sizes: Sizes) -> Traffic:
    """Count what a forward moves, as `Layer.traffic`."""
    return shape.count(sizes).traffic
