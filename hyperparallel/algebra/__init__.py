"""The algebra of schedules: from a schedule line to checked programs. Never imports MindSpore."""

from hyperparallel.algebra.derive import Plan, derive, validate
from hyperparallel.algebra.expression import Schedule, normal_form, parse
from hyperparallel.algebra.infer import check_table
from hyperparallel.algebra.model import LayerSpec, ModelSpec
from hyperparallel.algebra.order import order
from hyperparallel.algebra.program import Action, Program, parse_action
from hyperparallel.algebra.skeletons import registry
from hyperparallel.algebra.text import from_csv, from_text, to_csv, to_text

__all__ = [
    "Action",
    "LayerSpec",
    "ModelSpec",
    "Plan",
    "Program",
    "Schedule",
    "check_table",
    "derive",
    "from_csv",
    "from_text",
    "normal_form",
    "order",
    "parse",
    "parse_action",
    "registry",
    "to_csv",
    "to_text",
    "validate",
]
