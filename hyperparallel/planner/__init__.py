"""The planner: where the encodes of a transposed region run, and how good that is. Never imports MindSpore."""

from hyperparallel.planner.fill import ENGINES, fill
from hyperparallel.planner.line import Certificate, Planned, Settings, plan_line
from hyperparallel.planner.problem import Encode, Filling, LimitError, Problem, Task

__all__ = [
    "Certificate",
    "ENGINES",
    "Encode",
    "Filling",
    "LimitError",
    "Planned",
    "Problem",
    "Settings",
    "Task",
    "fill",
    "plan_line",
]
