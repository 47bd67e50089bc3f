"""Pictures of a plan: text, figure, trace. Never imports MindSpore; matplotlib only when a figure is drawn."""

from hyperparallel.views.figure import figure
from hyperparallel.views.grid import grid
from hyperparallel.views.perfetto import trace, trace_of_records
from hyperparallel.views.report import report

__all__ = ["figure", "grid", "report", "trace", "trace_of_records"]
