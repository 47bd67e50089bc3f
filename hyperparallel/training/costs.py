"""What layers cost under a configuration: from a rate, a device file or a measurement; all times in milliseconds.

All three give the forward and the two parts of the backward of every layer; which of them a frozen layer runs is
decided by one rule for all (`hyperparallel.cost.roofline.gated`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hyperparallel.algebra import Plan
from hyperparallel.cells.layer import Layer, trained
from hyperparallel.cells.shapes import TensorSpec, carries
from hyperparallel.cost import Costs
from hyperparallel.cost.device import load_device
from hyperparallel.cost.measured import check_measured, read_measured
from hyperparallel.cost.roofline import Count, LayerTime, Sizes, by_size, costs_from_layers, gated, layer_time
from hyperparallel.data import MicroBatchInfo
from hyperparallel.errors import ConfigError
from hyperparallel.training.config import Config

_SMALL = {"images": 1, "samples": 1, "tokens": 8}
"""Sizes at which the work of a layer tells one model from another."""


@dataclass(frozen=True)
class Prices:
    """Times of all layers, as if all were trainable, and of messages; milliseconds.

    Args:
        times: from the sizes of a micro-batch to the time of every layer.
        alpha: of a message.
        beta: of a byte.
        calls: see `costs_from_layers`.
    """

    times: Callable[[Sizes], list[LayerTime]]
    alpha: float
    beta: float = 0.0
    calls: Mapping[str, float] = field(default_factory=dict)


def prices(config: Config, layers: Sequence[Layer]) -> Prices:
    """Choose what the section `cost` asks for.

    Args:
        config: `cost.measured`, else `cost.device`, else `cost.gflops`.
        layers: the model.

    Raises:
        ConfigError: a file is missing, wrong, or of another model.
    """
    if config.cost.measured is not None:
        return _measured(config, layers)
    if config.cost.device is not None:
        return _roofline(config, layers)
    rate, half = config.cost.gflops * 1e6, config.cost.backward / 2

    def times(sizes: Sizes) -> list[LayerTime]:
        forward = [_work(layer, sizes) / rate for layer in layers]
        return [LayerTime(time, half * time, half * time) for time in forward]

    return Prices(times, config.cost.message_ms)


def _roofline(config: Config, layers: Sequence[Layer]) -> Prices:
    device = load_device(config.cost.device)
    rate, link = device.rate(config.run.dtype), device.link(config.parallel.topology.workers)

    def times(sizes: Sizes) -> list[LayerTime]:
        counts = [Count(_work(layer, sizes), *(layer.traffic(sizes) if layer.traffic else ())) for layer in layers]
        return [_milliseconds(layer_time(count, rate)) for count in counts]

    return Prices(times, link.alpha * 1e3, link.beta * 1e3)


def _measured(config: Config, layers: Sequence[Layer]) -> Prices:
    path = config.cost.measured
    costs = read_measured(path)
    check_measured(path, costs, identities(layers), conditions(config))
    return Prices(
        lambda sizes: [_milliseconds(time) for time in costs.times(sizes)],
        costs.alpha * 1e3,
        costs.beta * 1e3,
        {kind: 1e3 * time for kind, time in costs.call.items()},
    )


def identities(layers: Sequence[Layer]) -> list[tuple[str, bool, float]]:
    """Say by what a measurement knows its model again: name, whether it is trained and work of every layer."""
    return [(layer.name, trains, _work(layer, _SMALL)) for layer, trains in zip(layers, trained(layers), strict=True)]


def conditions(config: Config) -> dict[str, str | bool | int]:
    """Say what measured times depend on besides the model."""
    return {"run.jit": config.run.jit, "run.dtype": config.run.dtype}


def layer_times(config: Config, layers: Sequence[Layer], infos: Sequence[MicroBatchInfo]) -> list[float]:
    """Estimate forward + backward time of each layer for the mean of some micro-batches."""
    by_micro_batch = by_size([sizes_of(info) for info in infos], prices(config, layers).times)
    totals = [[time.total for time in gated(trained(layers), times)] for times in by_micro_batch]
    return [sum(column) / len(infos) for column in zip(*totals, strict=True)]


def estimate_costs(
    config: Config,
    plan: Plan,
    layers: Sequence[Layer],
    infos: Sequence[MicroBatchInfo],
    price: Prices | None = None,
) -> Costs:
    """Estimate the costs of a plan for given micro-batches; `price` spares reading a file for every step."""
    price, sizes = price or prices(config, layers), [sizes_of(info) for info in infos]
    return costs_from_layers(
        plan,
        by_size(sizes, price.times),
        recompute=config.run.recomputed(plan.placement.stages),
        calls=price.calls,
        alpha=price.alpha,
        beta=price.beta,
        carries=by_size(sizes, lambda one: _carry_bytes(config, layers, one)) if price.beta else None,
        images=[one["images"] for one in sizes],
    )


def sizes_of(info: MicroBatchInfo) -> dict[str, float]:
    """Give what layers count their work by; without images one dummy image is encoded (see `data/collate.py`)."""
    return {"images": max(1, info.images), "samples": info.samples, "tokens": info.padded_tokens}


def _carry_bytes(config: Config, layers: Sequence[Layer], sizes: Sizes) -> list[float]:
    """Return the bytes that every layer hands on."""
    rows, images = int(sizes["samples"]), int(sizes["images"])
    texts = TensorSpec((rows, int(sizes["tokens"]) // rows), "int32")
    columns = {"input_ids": texts, "labels": texts}
    if config.model.vision is not None:
        side = config.model.vision.image_size
        columns["pixel_values"] = TensorSpec((images, config.model.vision.channels, side, side))
    return [float(sum(spec.bytes for spec in handed)) for handed in carries(layers, columns, config.run.dtype)]


def _work(layer: Layer, sizes: Sizes) -> float:
    if layer.work is None:
        raise ConfigError(f"layer {layer.name!r} does not say its work, so its cost is unknown; give it work=...")
    return layer.work(sizes)


def _milliseconds(time: LayerTime) -> LayerTime:
    return LayerTime(*(1e3 * one for one in time))
