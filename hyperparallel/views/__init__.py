"""Pictures of a plan. Never imports MindSpore."""

from hyperparallel.views.grid import grid
from hyperparallel.views.report import report

__all__ = ["grid", "report"]
