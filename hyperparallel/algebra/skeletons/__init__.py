"""All skeletons; importing this package registers them."""

from hyperparallel.algebra.skeletons import (  # noqa: F401  (they register themselves)
    gpipe,
    one_f_one_b,
    transpose,
    wave,
    zb,
)
from hyperparallel.algebra.skeletons.base import (
    Layout,
    Option,
    Replicated,
    Sharded,
    Skeleton,
    Value,
    Wave,
    registry,
)

__all__ = ["Layout", "Option", "Replicated", "Sharded", "Skeleton", "Value", "Wave", "registry"]
