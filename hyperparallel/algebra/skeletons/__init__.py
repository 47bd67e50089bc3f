"""All skeletons; importing this package registers them."""

from hyperparallel.algebra.skeletons import gpipe, one_f_one_b, transpose  # noqa: F401  (they register themselves)
from hyperparallel.algebra.skeletons.base import (
    Layout,
    Option,
    Replicated,
    Sharded,
    Skeleton,
    Value,
    registry,
)

__all__ = ["Layout", "Option", "Replicated", "Sharded", "Skeleton", "Value", "registry"]
