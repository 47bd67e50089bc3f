"""A job for the search from a model's shapes and a device file: no Cells, no MindSpore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from hyperparallel.algebra import ModelSpec, Plan
from hyperparallel.cost import Costs
from hyperparallel.cost.device import Device
from hyperparallel.cost.memory_bytes import Peak
from hyperparallel.cost.presets import ModelShape
from hyperparallel.cost.roofline import Sizes
from hyperparallel.errors import ConfigError
from hyperparallel.planner.candidates import Layout
from hyperparallel.planner.rows import Job

GRADIENT = 4
"""Bytes of a gradient: float32."""


@dataclass(frozen=True)
class Batch:
    """What a step trains on, all samples alike.

    Args:
        samples: of a step, over all replicas.
        images: of a sample.
        tokens: of a sample, image tokens included.
    """

    samples: int
    images: float
    tokens: float

    def sizes(self, layout: Layout) -> Sizes:
        """Return the sizes of a micro-batch."""
        samples = self.samples / layout.replicas / layout.micro_batches
        return {"images": samples * self.images, "tokens": samples * self.tokens, "samples": samples}


def shape_job(
    model: ModelShape, device: Device, batch: Batch, workers: int, *, recompute: bool = False, text_layers: int = 0
) -> Job:
    """Describe a job.

    Args:
        model: with the T of the layouts that will be tried (`tensor=` of `load_model`).
        device: that each rank is.
        batch: what a step trains on.
        workers: of the whole job, which decides the link.
        recompute: every backward runs its forward again.
        text_layers: first layers of the backbone that may be transposed too, as a part `text`.

    Raises:
        ConfigError: the backbone has not more layers than that.
    """
    names = _parts(model, text_layers)
    counts, link = Counter(names), device.link(workers)

    @cache
    def spec(layout: Layout) -> ModelSpec:
        sizes = batch.sizes(layout)
        found = model.spec(sizes["images"], sizes["tokens"], device, samples=sizes["samples"])
        pairs = zip(found.layers, names, strict=True)
        return ModelSpec(tuple(replace(layer, part=name) for layer, name in pairs))

    def stages(plan: Plan) -> Sequence[int]:
        return range(plan.placement.stages) if recompute else ()

    def costs(plan: Plan, layout: Layout) -> Costs:
        sizes = [batch.sizes(layout)] * plan.micro_batches
        return model.costs(plan, sizes, device, recompute=stages(plan), workers=workers)

    def peaks(plan: Plan, layout: Layout) -> list[Peak]:
        sizes = [batch.sizes(layout)]
        return model.peaks(plan, sizes, recompute=stages(plan), replicas=layout.replicas)

    return Job(
        parts=tuple(counts),
        encoder={"vision"} & set(counts),
        layers=tuple(counts.values()),
        spec=spec,
        costs=costs,
        peaks=peaks,
        gradients=[GRADIENT * layer.parameters for layer in model.layers],
        link=(link.alpha * 1e3, link.beta * 1e3),
    )


def _parts(model: ModelShape, text_layers: int) -> list[str]:
    """Name the part of every layer, the first ones of the backbone apart."""
    names = [layer.part for layer in model.layers]
    backbone = names.count("llm")
    if text_layers and text_layers >= backbone:
        raise ConfigError(f"--text-layers {text_layers}: the llm has {backbone} layers, and some must be left to it")
    first = names.index("llm") if "llm" in names else len(names)
    names[first : first + text_layers] = ["text"] * text_layers
    return names
