"""A job for the search from a configuration: other P, D and M for the same model, data and batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from hyperparallel.algebra import ModelSpec, Plan
from hyperparallel.cells.layer import model_spec
from hyperparallel.cells.sizes import count_parameters
from hyperparallel.cells.tensor_parallel import WHOLE
from hyperparallel.cost import Costs
from hyperparallel.cost.device import Device, load_device
from hyperparallel.cost.memory_bytes import Peak
from hyperparallel.errors import ConfigError, DryRunError
from hyperparallel.planner.candidates import Layout, layouts
from hyperparallel.planner.rows import Job
from hyperparallel.planner.shape_job import GRADIENT
from hyperparallel.training import costs
from hyperparallel.training.build import build_feed, build_layers, column_specs
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.memory_profile import default_file, predict, read_profile
from hyperparallel.training.planning import mean_costs

_STEPS = 4
"""Steps of the data whose mean ranks a plan; of all replicas the slowest counts."""


def config_job(
    path: str, overrides: Sequence[str] = (), devices: int | None = None
) -> tuple[Job, list[Layout], Device | None]:
    """Describe the job of a configuration.

    Args:
        path: the YAML file; its P, D, M and schedule line are replaced.
        overrides: `section.key=value`.
        devices: P x D x T; default: as many as the configuration has.

    Raises:
        ConfigError: the file does not work, or the model has no backbone.
        ScheduleError: the devices cannot be laid out.

    Returns:
        The job, layouts to try, and the device of `cost.device`.
    """
    config = load_config(path, overrides)
    tensor, batch = config.parallel.tensor_parallel, config.training.batch_size
    layers = build_layers(config)
    counts = Counter(layer.part for layer in layers)
    if "llm" not in counts:
        raise ConfigError(f"{path}: the model has no part 'llm', which is the backbone")
    tried = layouts(devices or config.parallel.topology.workers, batch, tensor, counts["llm"])
    profile = read_profile(default_file())

    @cache
    def laid_out(layout: Layout) -> Config:
        parallel = config.parallel.model_copy(update={"ranks": layout.ranks, "data_parallel": layout.replicas})
        training = config.training.model_copy(update={"micro_batches": layout.micro_batches})
        # With annotate every worker reads the batch of all replicas; a worker computes what one of a graph would.
        run = config.run.model_copy(update={"mode": "graph"}) if config.run.mode == "annotate" else config.run
        return config.model_copy(update={"parallel": parallel, "training": training, "run": run})

    @cache
    def infos(layout: Layout) -> list:
        feeds = [build_feed(laid_out(layout), "train", replica) for replica in range(layout.replicas)]
        return [[feed.describe(step) for feed in feeds] for step in range(_STEPS)]

    @cache
    def spec(layout: Layout) -> ModelSpec:
        mean = [info for feeds in infos(layout) for info in feeds[0]]
        return model_spec(layers, costs.layer_times(laid_out(layout), layers, mean))

    def steps(plan: Plan, layout: Layout) -> list[Costs]:
        return [
            costs.estimate_costs(laid_out(layout), plan, layers, max(feeds, key=_images)) for feeds in infos(layout)
        ]

    def peaks(plan: Plan, layout: Layout) -> list[Peak] | None:
        one = laid_out(layout)
        recompute = one.run.recomputed(plan.placement.stages)
        settings = {"dtype": one.run.dtype, "replicas": layout.replicas, "recompute": tuple(recompute)}
        try:
            return predict(plan, layers, column_specs(one), profile, **settings)
        except DryRunError:  # not measured for micro-batches of this size
            return None

    price = costs.prices(config, layers)
    job = Job(
        parts=tuple(counts),
        encoder={"vision"} & set(counts),
        layers=tuple(counts.values()),
        spec=spec,
        costs=lambda plan, layout: mean_costs(laid_out(layout), plan, layers),
        peaks=peaks,
        gradients=_gradients(config) if price.beta else [0.0] * len(layers),
        link=(price.alpha, price.beta),
        steps=steps,
        transpose=config.run.mode != "annotate",
    )
    return job, tried, None if config.cost.device is None else load_device(config.cost.device)


def _images(micro_batches: Sequence) -> int:
    return sum(info.images for info in micro_batches)


def _gradients(config: Config) -> list[float]:
    """Count bytes of the gradients; this builds every layer once."""
    # As in `plan --placement`: whole layers are built, and the other list says what T cuts.
    pairs = zip(build_layers(config, WHOLE), build_layers(config), strict=True)
    layers = [replace(whole, sharded=cut.sharded) for whole, cut in pairs]
    return [float(GRADIENT * one.parameters) for one in count_parameters(layers, config.parallel.tensor_parallel)]
