"""The layer list of a multimodal LLM, from the images to the loss."""

from __future__ import annotations

from functools import partial

from hyperparallel.cells.layer import Layer
from hyperparallel.models import decoder, vit, work
from hyperparallel.models.config import DecoderConfig, MllmConfig, VisionConfig


def mllm(config: MllmConfig) -> tuple[Layer, ...]:
    """List the layers of a multimodal LLM, or of a text-only one where `config.vision` is None.

    The columns are `pixel_values` (N, C, height, width) float32 with N >= 1, `input_ids` (B, T) int32 and
    `labels` (B, T) int32, already shifted: the logits of token t are for `labels[:, t]`, -100 for none. The
    images of a micro-batch have at least as many tokens as `input_ids` has placeholders.

    Args:
        config: all sizes, and which parts are trainable.

    Returns:
        Layers of the parts `vision` (patch, blocks, merger) and `llm` (embed, blocks, head). The last returns
        the loss, its weight, and the metrics `exact` and `samples`.
    """
    vision = () if config.vision is None else _vision(config.vision, config.llm.width)
    return vision + _llm(config.llm, config.image_token if vision else None)


def _vision(config: VisionConfig, llm_width: int) -> tuple[Layer, ...]:
    layer = partial(Layer, part="vision", trainable=config.trainable)
    return (
        layer(
            "vision.patch",
            build=partial(vit.PatchEmbed, config),
            columns=("pixel_values",),
            work=partial(work.patch, config),
        ),
        *(
            layer(
                f"vision.blocks.{index}",
                build=partial(vit.VisionBlock, config),
                work=partial(work.vision_block, config),
            )
            for index in range(config.depth)
        ),
        layer(
            "vision.merger",
            build=partial(vit.Merger, config, llm_width),
            work=partial(work.merger, config, llm_width),
        ),
    )


def _llm(config: DecoderConfig, image_token: int | None) -> tuple[Layer, ...]:
    layer = partial(Layer, part="llm", trainable=config.trainable)
    embed = (
        partial(decoder.TextEmbed, config)
        if image_token is None
        else partial(decoder.MultimodalEmbed, config, image_token)
    )
    return (
        layer("llm.embed", build=embed, columns=("input_ids",), work=partial(work.embed, config)),
        *(
            layer(
                f"llm.blocks.{index}",
                build=partial(decoder.DecoderBlock, config),
                work=partial(work.decoder_block, config),
            )
            for index in range(config.depth)
        ),
        layer(
            "llm.head",
            build=partial(decoder.Head, config),
            columns=("labels",),
            tied={"weight": "llm.embed.weight"} if config.tied else {},
            metrics=("exact", "samples"),
            work=partial(work.head, config),
        ),
    )
