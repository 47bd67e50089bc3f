"""What a plan costs in time and memory. Never imports MindSpore."""

from hyperparallel.cost.bounds import lower_bound
from hyperparallel.cost.memory import peak_live
from hyperparallel.cost.timeline import Span, Timeline, simulate
from hyperparallel.cost.weights import Costs, PartCost, costs_from_parts, model_from_costs, parse_part_costs

__all__ = [
    "Costs",
    "PartCost",
    "Span",
    "Timeline",
    "costs_from_parts",
    "lower_bound",
    "model_from_costs",
    "parse_part_costs",
    "peak_live",
    "simulate",
]
