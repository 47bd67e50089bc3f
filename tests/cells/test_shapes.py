"""Shapes that a graph fixes before it runs."""

import numpy as np
import pytest
from cells_case import Case, layers_of
from graph_case import columns_of

from hyperparallel.cells.layer import Layer, build_layer
from hyperparallel.cells.shapes import TensorSpec, carries
from hyperparallel.errors import ModelError


def test_declared_carries_are_what_the_layers_return():
    from mindspore import Tensor

    columns = columns_of(Case("", 1))
    layers = layers_of(Case("", 1))
    declared = carries(layers, columns)
    carry = None
    for layer, expected in zip(layers[:-1], declared, strict=False):
        inputs = [Tensor(np.zeros(columns[name].shape, columns[name].dtype)) for name in layer.columns]
        carry = build_layer(layer, 0)(*([] if carry is None else [carry]), *inputs)
        assert [carry.shape] == [spec.shape for spec in expected], layer.name
    assert declared[-1] == ()


def test_a_layer_that_does_not_say_is_named():
    layers = [Layer("net.first", "net", lambda: None), Layer("net.last", "net", lambda: None)]
    with pytest.raises(ModelError, match=r"layer 0 \('net.first'\) does not say what it hands on.*stepwise"):
        carries(layers, {})


def test_bytes():
    assert TensorSpec((2, 3), "float16").bytes == 12 and TensorSpec((), "int64").bytes == 8
