"""HyperParallel: one schedule line places, checks, predicts and runs multimodal training on MindSpore.

Source of the ideas: arXiv 2607.03229. What needs MindSpore (`Layer`, `Runner`, `model_spec`) is imported on
first use, so schedules can be parsed, checked and simulated without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hyperparallel.algebra import LayerSpec, ModelSpec, Plan, Schedule, derive, parse, validate
from hyperparallel.cost import Costs, Timeline, lower_bound, simulate
from hyperparallel.errors import HyperParallelError
from hyperparallel.planner import plan_line

if TYPE_CHECKING:
    from hyperparallel.cells import AdamW, Layer, Runner, Transport, model_spec

_NEEDS_MINDSPORE = ("AdamW", "Layer", "Runner", "Transport", "model_spec")

__all__ = [
    "AdamW",
    "Costs",
    "HyperParallelError",
    "Layer",
    "LayerSpec",
    "ModelSpec",
    "Plan",
    "Runner",
    "Schedule",
    "Timeline",
    "Transport",
    "derive",
    "lower_bound",
    "model_spec",
    "parse",
    "plan_line",
    "simulate",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _NEEDS_MINDSPORE:
        return getattr(import_module("hyperparallel.cells"), name)
    raise AttributeError(f"module 'hyperparallel' has no attribute {name!r}")
