"""Shapes that are known before a step: of the batch's columns, and of what one layer hands to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from hyperparallel.errors import ModelError

if TYPE_CHECKING:
    from hyperparallel.cells.layer import Layer

_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8}


class TensorSpec(NamedTuple):
    """Shape and type of a tensor.

    Example:
        >>> TensorSpec((2, 3)).bytes
        24
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """Size of its elements."""
        return prod(self.shape) * _BYTES[self.dtype]


RANDOM_SPEC = TensorSpec((2,), "int32")
"""Of the column that dropout reads; see `dropout.RANDOM`."""

Columns = Mapping[str, TensorSpec]
"""Column of a micro-batch -> its shape and type, the same for all micro-batches."""


def carries(layers: Sequence[Layer], columns: Columns, dtype: str = "float32") -> tuple[tuple[TensorSpec, ...], ...]:
    """List what each layer but the last hands on, from the layers' own declarations.

    Args:
        layers: the whole model.
        columns: shapes of a micro-batch.
        dtype: type of the tensors whose layers give a shape only.

    Raises:
        ModelError: a layer does not declare its carry; says which.

    Returns:
        The tensors of the carry after each layer, by layer index; an empty tuple for the last.
    """
    found: list[tuple[TensorSpec, ...]] = []
    for index, layer in enumerate(layers[:-1]):
        if layer.carry is None:
            raise ModelError(
                f"layer {index} ({layer.name!r}) does not say what it hands on; a graph needs to know the shape of "
                "every message: give the layer carry=..., let measure_carries(layers, columns) find it out, or run it "
                "stepwise"
            )
        handed = layer.carry({name: spec.shape for name, spec in columns.items()})
        found.append(tuple(one if isinstance(one, TensorSpec) else TensorSpec(tuple(one), dtype) for one in handed))
    return (*found, ())
