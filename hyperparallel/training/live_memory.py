"""Live bytes of every rank of a configuration's plan, from the measured bytes of its layers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import Action
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.shapes import carries
from hyperparallel.cost.memory_bytes import Live, memory_curve
from hyperparallel.cost.memory_plan import plan_stages
from hyperparallel.training.build import build_layers, column_specs
from hyperparallel.training.config import Config, load_config
from hyperparallel.training.launch import is_worker
from hyperparallel.training.memory_profile import Profile, default_file, layer_bytes, probes, profile_of, read_profile


def curves_of_file(path: str | Path, overrides: Sequence[str], plan: Plan) -> list[list[tuple[Action | None, Live]]]:
    """Follow the memory of a plan of a configuration file; see `curves`."""
    config = load_config(path, overrides)
    return curves(config, plan, build_layers(config))


def curves(config: Config, plan: Plan, layers: Sequence[Layer]) -> list[list[tuple[Action | None, Live]]]:
    """Follow what every rank of a plan holds under the graph runner, all micro-batches as large as they can be.

    Args:
        config: gives shapes, types, D and what is recomputed.
        plan: of this configuration.
        layers: the whole model.

    Raises:
        DryRunError: a layer was not measured, and cannot be on this machine.

    Returns:
        Of every rank what `memory_curve` says.
    """
    columns, dtype = column_specs(config), config.run.dtype
    found = layer_bytes(layers, columns, measured(config, layers), dtype)
    handed = [sum(spec.bytes for spec in carry) for carry in carries(layers, columns, dtype)]
    read = [{name: columns[name].bytes for name in layer.columns} for layer in layers]
    stages, batch = plan_stages(plan, found, handed, read, config.run.recomputed(plan.placement.stages))
    replicas = config.parallel.data_parallel
    return [memory_curve(plan, rank, stages, batch, replicas=replicas) for rank in range(plan.ranks)]


def measured(config: Config, layers: Sequence[Layer]) -> Profile:
    """Read the bytes of a configuration's layers; what is missing is measured first, in a process of its own.

    A rank of a job measures nothing: whoever started the job has.

    Args:
        config: gives shapes and types.
        layers: the whole model.

    Raises:
        DryRunError: measuring failed, or the dry run cannot work on this machine.
    """
    columns, dtype, file = column_specs(config), config.run.dtype, default_file()
    profile = read_profile(file)
    missing = {probe.kind for probe in probes(layers, columns, dtype)} - set(profile)
    if not missing or is_worker():
        return profile
    kinds = f"{len(missing)} kind{'s' if len(missing) > 1 else ''} of layer"
    print(f"measuring the memory of {kinds}, once: it is kept in {file}", file=sys.stderr, flush=True)
    with TemporaryDirectory() as folder:
        # As it stands, overrides included; JSON is YAML.
        path = Path(folder) / "configuration.yaml"
        path.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
        shards = config.parallel.tensor_parallel
        return profile_of(str(path), [], layers, columns, file, dtype=dtype, shards=shards)
