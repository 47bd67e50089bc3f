"""Find out what layers hand on by running them, for models that do not declare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from mindspore import Tensor

from hyperparallel.cells.layer import Layer, build_layer
from hyperparallel.cells.shapes import Columns, TensorSpec
from hyperparallel.errors import ModelError


def measure_carries(layers: Sequence[Layer], columns: Columns) -> tuple[Layer, ...]:
    """Run each layer once on zeros, one after the other, and note the shapes of what it returns.

    Needs a device that computes (CPU does) and memory for one layer at a time; do it where the job is prepared.

    Args:
        layers: the whole model.
        columns: shape and type of every column of a micro-batch.

    Raises:
        ModelError: a layer reads a column that is not declared, or returns something else than tensors.

    Returns:
        The layers with `carry` filled in, right for these columns only.
    """
    found, carry = [], ()
    for layer in layers[:-1]:
        missing = [name for name in layer.columns if name not in columns]
        if missing:
            raise ModelError(f"layer {layer.name!r} reads {missing[0]!r}; declared are {', '.join(columns) or 'none'}")
        inputs = [Tensor(np.zeros(columns[name].shape, columns[name].dtype)) for name in layer.columns]
        handed = build_layer(layer, 0)(*((carry,) if found else ()), *inputs)
        tensors = handed if isinstance(handed, tuple) else (handed,)
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise ModelError(f"layer {layer.name!r} hands on {handed!r}; expected a Tensor or a tuple of Tensors")
        found.append(replace(layer, carry=_fixed(tensors)))
        carry = handed
    return (*found, layers[-1])


def _fixed(tensors: Sequence[Tensor]):
    """Make a `carry` that always answers with these shapes; only types that do not compute are fixed too."""
    specs = [
        tuple(tensor.shape) if tensor.dtype.is_floating_point else TensorSpec(tuple(tensor.shape), _name(tensor))
        for tensor in tensors
    ]
    return lambda _: specs


def _name(tensor: Tensor) -> str:
    return str(tensor.asnumpy().dtype)
