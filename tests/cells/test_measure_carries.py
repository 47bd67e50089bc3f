"""Measured carries are those that the layers would declare."""

from dataclasses import replace

import pytest
from cells_case import Case, layers_of
from graph_case import columns_of
from mindspore import nn

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.measure_carries import measure_carries
from hyperparallel.cells.shapes import TensorSpec, carries
from hyperparallel.errors import ModelError

COLUMNS = columns_of(Case("", 1))


class Masked(nn.Cell):
    """Hand on what it got, and a mask of whole numbers."""

    def construct(self, x):
        return x, x > 0, (x > 0).astype("int32")


def test_measured_equals_declared():
    layers = layers_of(Case("", 1))
    silent = [replace(layer, carry=None) for layer in layers]
    for dtype in ("float32", "float16"):
        assert carries(measure_carries(silent, COLUMNS), COLUMNS, dtype) == carries(layers, COLUMNS, dtype)


def test_tensors_that_do_not_compute_keep_their_type():
    layers = [Layer("net.a", "net", Masked, columns=("x",)), Layer("net.b", "net", Masked)]
    columns = {"x": TensorSpec((2, 3))}
    measured = measure_carries(layers, columns)
    expected = (TensorSpec((2, 3), "float16"), TensorSpec((2, 3), "bool"), TensorSpec((2, 3), "int32"))
    assert carries(measured, columns, "float16")[0] == expected


def test_an_undeclared_column_is_named():
    with pytest.raises(ModelError, match="reads 'pixel_values'; declared are input_ids"):
        measure_carries(layers_of(Case("", 1)), {"input_ids": COLUMNS["input_ids"]})
