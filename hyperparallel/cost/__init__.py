"""What a plan costs in time and memory. Never imports MindSpore."""

from hyperparallel.cost.bounds import lower_bound
from hyperparallel.cost.maxplus import Transfer, transfer
from hyperparallel.cost.memory import peak_live
from hyperparallel.cost.parts import PartCost, costs_from_parts, model_from_costs, parse_part_costs
from hyperparallel.cost.period import Period, period
from hyperparallel.cost.timeline import Span, Timeline, simulate
from hyperparallel.cost.weights import Costs

__all__ = [
    "Costs",
    "PartCost",
    "Period",
    "Span",
    "Timeline",
    "Transfer",
    "costs_from_parts",
    "lower_bound",
    "model_from_costs",
    "parse_part_costs",
    "peak_live",
    "period",
    "simulate",
    "transfer",
]
