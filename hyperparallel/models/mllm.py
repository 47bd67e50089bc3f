"""The layer list of a multimodal LLM, from the images to the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from hyperparallel.cells.dropout import RANDOM
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.tensor_parallel import WHOLE, TensorParallel
from hyperparallel.cost.layer_shapes import LayerShape
from hyperparallel.errors import ConfigError
from hyperparallel.models import decoder, vit, work
from hyperparallel.models.config import DecoderConfig, MllmConfig, VisionConfig


def mllm(config: MllmConfig, tensor_parallel: TensorParallel = WHOLE) -> tuple[Layer, ...]:
    """List the layers of a multimodal LLM, or of a text-only one where `config.vision` is None.

    The columns are `pixel_values` (N, C, height, width) float32 with N >= 1, `input_ids` (B, T) int32 and
    `labels` (B, T) int32, already shifted: the logits of token t are for `labels[:, t]`, -100 for none. The
    images of a micro-batch have at least as many tokens as `input_ids` has placeholders.

    With tensor parallelism the workers of a stage share the blocks: each has 1/T of the heads and of the inner
    features. Patches, merger, embedding and head stay whole on every worker; a head cut by vocabulary is not offered.

    Args:
        config: all sizes, and which parts are trainable.
        tensor_parallel: this worker's place, from `Transport.tensor_parallel`; default: T = 1. A plan needs no group,
            so `TensorParallel(size)` is enough to list and count the layers.

    Raises:
        ConfigError: T does not divide `heads`, `kv_heads` or `ffn`, or `freeze` names no layer.

    Returns:
        Layers of the parts `vision` (patch, blocks, merger) and `llm` (embed, blocks, head). The last returns
        the loss, its weight, and the metrics `exact` and `samples`.
    """
    vision = () if config.vision is None else _vision(config.vision, config.llm.width, tensor_parallel)
    layers = vision + _llm(config.llm, config.image_token if vision else None, tensor_parallel)
    return _frozen(layers, config.freeze)


def _frozen(layers: Sequence[Layer], patterns: Sequence[str]) -> tuple[Layer, ...]:
    """Freeze the layers whose names fit one of the patterns."""
    for pattern in patterns:
        if not any(fnmatchcase(layer.name, pattern) for layer in layers):
            raise ConfigError(
                f"model.freeze names {pattern!r}, which no layer is called; they are {layers[0].name} .. "
                f"{layers[-1].name}: a whole part is 'vision.*', everything but the projector 'vision.patch', "
                "'vision.blocks.*' and 'llm.*'"
            )
    return tuple(
        replace(layer, trainable=False) if any(fnmatchcase(layer.name, one) for one in patterns) else layer
        for layer in layers
    )


def _costs(shape: LayerShape) -> dict[str, partial]:
    """Give a layer what it computes and moves."""
    return {"work": partial(work.flops, shape), "traffic": partial(work.traffic, shape)}


def _vision(config: VisionConfig, llm_width: int, parallel: TensorParallel) -> tuple[Layer, ...]:
    parallel.check(**{"vision.heads": config.heads, "vision.ffn": config.ffn})
    layer = partial(Layer, part="vision", trainable=config.trainable, frozen=())
    random = (RANDOM,) if config.dropout else ()
    patch, *blocks, merger = work.vision_shapes(config, llm_width, parallel.size)

    def patches(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [(shapes["pixel_values"][0], config.patches, config.width)]

    return (
        layer(
            "vision.patch",
            build=partial(vit.PatchEmbed, config),
            columns=("pixel_values",),
            **_costs(patch),
            carry=patches,
        ),
        *(
            layer(
                f"vision.blocks.{index}",
                build=partial(vit.VisionBlock, config, parallel),
                columns=random,
                **_costs(block),
                sharded=vit.block_shards(config) if parallel.size > 1 else {},
                carry=patches,
            )
            for index, block in enumerate(blocks)
        ),
        layer(
            "vision.merger",
            build=partial(vit.Merger, config, llm_width),
            **_costs(merger),
            carry=lambda shapes: [(shapes["pixel_values"][0], config.tokens_per_image, llm_width)],
        ),
    )


def _llm(config: DecoderConfig, image_token: int | None, parallel: TensorParallel) -> tuple[Layer, ...]:
    parallel.check(**{"llm.heads": config.heads, "llm.kv_heads": config.kv_heads, "llm.ffn": config.ffn})
    layer = partial(Layer, part="llm", trainable=config.trainable, frozen=())
    random = (RANDOM,) if config.dropout else ()
    embed = (
        partial(decoder.TextEmbed, config)
        if image_token is None
        else partial(decoder.MultimodalEmbed, config, image_token)
    )
    lookup, *blocks, head = work.decoder_shapes(config, parallel.size)

    def tokens(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [(*shapes["input_ids"], config.width)]

    return (
        layer(
            "llm.embed",
            build=embed,
            columns=("input_ids",),
            **_costs(lookup),
            carry=tokens,
            check=None if image_token is None else partial(decoder.check_placeholders, image_token),
        ),
        *(
            layer(
                f"llm.blocks.{index}",
                build=partial(decoder.DecoderBlock, config, parallel),
                columns=random,
                **_costs(block),
                sharded=decoder.block_shards(config) if parallel.size > 1 else {},
                carry=tokens,
            )
            for index, block in enumerate(blocks)
        ),
        layer(
            "llm.head",
            build=partial(decoder.Head, config),
            columns=("labels",),
            tied={"weight": "llm.embed.weight"} if config.tied else {},
            metrics=("exact", "samples"),
            **_costs(head),
        ),
    )
