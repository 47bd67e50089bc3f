"""Models by their shapes, from yaml/models/: costs and memory for any plan without Cells and without MindSpore."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from hyperparallel.algebra import LayerSpec, ModelSpec, Plan
from hyperparallel.algebra.footprint import footprint
from hyperparallel.cost.decoder_shape import Decoder, MoeDecoder
from hyperparallel.cost.device import ELEMENT, Device, explain, find_yaml, read_checked
from hyperparallel.cost.layer_shapes import LayerShape, Spread
from hyperparallel.cost.memory_bytes import Peak, predict_peaks
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.cost.roofline import LayerTime, Sizes, by_size, costs_from_layers, gated, layer_time
from hyperparallel.cost.vit_shape import Vit
from hyperparallel.cost.weights import Costs
from hyperparallel.errors import ConfigError
from hyperparallel.schema import Strict

Part = Annotated[Vit | Decoder | MoeDecoder, Field(discriminator="kind")]

_PARAMETER = 4
"""Bytes of a parameter, of its gradient and of each moment: float32, also where layers compute in another type."""


class ModelFile(Strict):
    """A file of yaml/models: parts by name."""

    source: str = Field(description="model id whose config.json has the sizes")
    vision: Part | None = None
    llm: Part | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """The parts that the file gives, from images to loss."""
        return {name: part for name in ("vision", "llm") if (part := getattr(self, name)) is not None}


@dataclass(frozen=True)
class ModelShape:
    """A model by its shapes. Times are milliseconds.

    Sizes of a micro-batch are `images`, `tokens` (of the LLM, image tokens and padding included) and, optionally,
    `samples`: rows that do not see each other, 1 by default.

    Args:
        parts: name -> part, from images to loss.
        spread: devices that hold a layer together.
    """

    parts: Mapping[str, Part]
    spread: Spread = Spread()

    @property
    def layers(self) -> list[LayerShape]:
        """All layers, from images to loss."""
        return [layer for name, part in self.parts.items() for layer in part.shapes(name, self.spread)]

    @property
    def parameters(self) -> float:
        """Parameters of the model; with `spread`, those of one of the devices that hold a layer together."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def tokens_per_image(self) -> int:
        """LLM tokens of one image; 0 without an encoder."""
        return next((part.tokens_per_image for part in self.parts.values() if isinstance(part, Vit)), 0)

    def spec(
        self, images: float, tokens: float, device: Device, *, samples: float = 1, dtype: str = "bfloat16"
    ) -> ModelSpec:
        """Return the model for `derive`, with the cost of each layer for `slabs=balanced`.

        Args:
            images: of the mean micro-batch.
            tokens: of it.
            device: that runs it.
            samples: rows of it.
            dtype: type that the layers compute in.

        Raises:
            ConfigError: the device has no peak for the type.
        """
        layers = self.layers
        times = _times(layers, {"images": images, "tokens": tokens, "samples": samples}, device, dtype)
        priced = gated([layer.trainable for layer in layers], times)
        pairs = zip(layers, priced, strict=True)
        return ModelSpec(tuple(LayerSpec(layer.part, layer.trainable, time.total) for layer, time in pairs))

    def costs(
        self,
        plan: Plan,
        sizes: Sequence[Sizes],
        device: Device,
        *,
        recompute: Collection[int] = (),
        dtype: str = "bfloat16",
        workers: int | None = None,
    ) -> Costs:
        """Price a plan.

        Args:
            plan: of this model (`spec`).
            sizes: of every micro-batch.
            device: that each rank is.
            recompute: stages whose forward runs again in the backward.
            dtype: type that the layers compute in, and of messages.
            workers: of the whole job, which decides the link; default: P.

        Raises:
            ConfigError: the device has no peak for the type.

        Returns:
            Milliseconds, by micro-batch; alpha in ms, beta in ms per byte.
        """
        layers = self.layers
        link, element = device.link(workers or plan.ranks), ELEMENT[dtype]
        return costs_from_layers(
            plan,
            by_size(sizes, lambda one: _times(layers, one, device, dtype)),
            recompute=recompute,
            alpha=link.alpha * 1e3,
            beta=link.beta * 1e3,
            carries=by_size(sizes, lambda one: [element * layer.carry(one) for layer in layers]),
            images=[one["images"] for one in sizes],
        )

    def layer_bytes(self, sizes: Sizes, dtype: str = "bfloat16") -> list[LayerBytes]:
        """Estimate what every layer needs in memory for a micro-batch.

        Parameters, gradients and the two moments of AdamW take 16 bytes a trainable parameter, 4 a frozen one.
        """
        layers, element = self.layers, ELEMENT[dtype]
        gates = footprint([layer.trainable for layer in layers])
        found = []
        for layer, gate in zip(layers, gates, strict=True):
            weights = int(layer.parameters * _PARAMETER)
            trained = weights * layer.trainable
            largest = int(layer.largest * _PARAMETER) * layer.trainable
            saved, scratch = int(layer.saved(sizes) * element), int(layer.scratch(sizes) * element)
            kept = saved * gate.receives_gradient
            found.append(LayerBytes(weights, trained, largest, 0, kept, saved, scratch * gate.receives_gradient))
        return found

    def peaks(
        self,
        plan: Plan,
        sizes: Sequence[Sizes],
        *,
        recompute: Sequence[int] = (),
        dtype: str = "bfloat16",
        replicas: int = 1,
    ) -> list[Peak]:
        """Estimate the most that every rank holds in a step, all micro-batches as large as the largest.

        Args:
            plan: of this model.
            sizes: of every micro-batch.
            recompute: stages whose forward runs again in the backward.
            dtype: type that the layers compute in.
            replicas: D.
        """
        largest = {key: max(one.get(key, 1) for one in sizes) for key in ("images", "tokens", "samples")}
        layers = self.layers
        carries = [int(layer.carry(largest) * ELEMENT[dtype]) for layer in layers]
        bytes_of = self.layer_bytes(largest, dtype)
        return predict_peaks(plan, bytes_of, carries, [{}] * len(layers), replicas=replicas, recompute=recompute)


def load_model(
    text: str,
    *,
    frozen: Collection[str] = (),
    image_size: int | None = None,
    tensor: int = 1,
    experts: int = 1,
) -> ModelShape:
    """Read a model, or join parts of several.

    Args:
        text: a path, a bare name of yaml/models such as `qwen3_8b`, or `part=file` pairs with commas:
            `vision=qwen2_vl_vit,llm=qwen3_8b`. The encoder's tokens then take the width of the LLM.
        frozen: parts that are not trained.
        image_size: pixels of a side, instead of the file's.
        tensor: T, devices that share the matrices of a block.
        experts: devices that share the experts of a block.

    Raises:
        ConfigError: a file is missing or wrong, or has no such part.

    Example:
        >>> model = load_model("vision=qwen2_vl_vit,llm=qwen3_8b", frozen={"vision"})
        >>> len(model.layers), round(model.parameters / 1e9, 1)
        (72, 8.9)
    """
    parts = _parts(text)
    for name in frozen:
        if name not in parts:
            raise ConfigError(f"model {text!r} has no part {name!r} to freeze; it has {', '.join(parts)}")
    vision = parts.get("vision")
    if isinstance(vision, Vit):
        output = vision.output if "llm" not in parts else parts["llm"].width
        parts["vision"] = _changed(vision, text, output=output, image_size=image_size or vision.image_size)
    elif image_size is not None:
        raise ConfigError(f"model {text!r} has no vision encoder, so no image_size; leave it out")
    parts = {name: part.model_copy(update={"trainable": name not in frozen}) for name, part in parts.items()}
    return ModelShape(parts, Spread(tensor, experts))


def _parts(text: str) -> dict[str, Part]:
    if "=" not in text:
        return dict(read_checked(find_yaml(text, "models", "model"), ModelFile).parts)
    found: dict[str, Part] = {}
    for entry in text.split(","):
        name, sign, file = (word.strip() for word in entry.partition("="))
        if not sign or not file:
            raise ConfigError(f"model {text!r}: {entry!r} is not of the form part=file, as in llm=qwen3_8b")
        if name in found:
            raise ConfigError(f"model {text!r}: part {name!r} is given twice")
        parts = read_checked(find_yaml(file, "models", "model"), ModelFile).parts
        if name not in parts:
            raise ConfigError(f"model {text!r}: {file} has no part {name!r}; it has {', '.join(parts) or 'none'}")
        found[name] = parts[name]
    return {name: found[name] for name in sorted(found, key=("vision", "llm").index)}


def _changed(vision: Vit, text: str, **values: int) -> Vit:
    """Change sizes of an encoder, and check them again."""
    try:
        return Vit.model_validate({**vision.model_dump(), **values})
    except ValidationError as error:
        raise ConfigError(f"model {text!r}: {explain(error)}") from None


def _times(layers: Sequence[LayerShape], sizes: Sizes, device: Device, dtype: str) -> list[LayerTime]:
    """Price all layers in milliseconds; equal ones once."""
    rate = device.rate(dtype)
    made: dict[int, LayerTime] = {}
    for layer in layers:
        if id(layer.count) not in made:
            made[id(layer.count)] = LayerTime(*(1e3 * time for time in layer_time(layer.count(sizes), rate)))
    return [made[id(layer.count)] for layer in layers]
