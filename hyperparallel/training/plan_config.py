"""The plan and predicted costs of a configuration, for `hyperparallel plan CONFIG.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperparallel.cost import Costs
from hyperparallel.planner import Planned
from hyperparallel.training.build import build_layers, estimate_costs
from hyperparallel.training.config import load_config
from hyperparallel.training.planning import plan_job


def plan_from_config(
    path: str | Path, overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> tuple[Planned, Costs]:
    """Derive the plan that `train` would run, and estimate its costs from the layers' FLOPs.

    Args:
        path: the YAML file.
        overrides: `section.key=value`.
        options: values of `planner.Settings` that replace those of the section `planner`.

    Returns:
        The plan, and the costs of step 0's micro-batches in milliseconds.
    """
    config = load_config(path, overrides)
    layers = build_layers(config)
    planned = plan_job(config, layers, options)
    return planned, estimate_costs(config, planned.plan, layers)
