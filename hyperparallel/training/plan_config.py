"""The plan and predicted costs of a configuration, for `hyperparallel plan CONFIG.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyperparallel.algebra import Plan
from hyperparallel.cost import Costs
from hyperparallel.training.build import build_layers, build_plan, estimate_costs
from hyperparallel.training.config import load_config


def plan_from_config(path: str | Path, overrides: Sequence[str] = ()) -> tuple[Plan, Costs, str]:
    """Derive the plan that `train` would run, and estimate its costs from the layers' FLOPs.

    Args:
        path: the YAML file.
        overrides: `section.key=value`.

    Returns:
        The plan, the costs of step 0's micro-batches, and the unit of time.
    """
    config = load_config(path, overrides)
    layers = build_layers(config)
    plan = build_plan(config, layers)
    return plan, estimate_costs(config, plan, layers), "ms"
