"""A Cell that was taken apart runs as a graph too: its carries are measured, masks and all."""

import mindspore as ms
import numpy as np
import pytest
import rewrite_cells as cells

from hyperparallel import AdamW, Runner, derive, model_spec
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.measure_carries import measure_carries
from hyperparallel.cells.rewrite import transpose_pass
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.errors import ModelError

SETTINGS = AdamW(lr=0.02)


def columns_of(batch):
    return {name: TensorSpec(array.shape, str(array.dtype)) for name, array in batch[0].items()}


@pytest.fixture
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.mark.parametrize("kind", (cells.Inside, cells.Deep), ids=lambda kind: kind.__name__)
def test_graph_and_stepwise_give_the_same_losses(kind, request):
    layers = transpose_pass(kind)
    batches = [cells.batch_of(step) for step in range(3)]
    plan = derive("transpose(vision) >> 1f1b(llm)", model_spec(layers), 1, len(batches[0]))
    with_carries = measure_carries(layers, columns_of(batches[0]))
    stepwise = Runner(plan, layers, optimizer=SETTINGS)
    expected = [stepwise.step(batch).loss for batch in batches]
    request.getfixturevalue("graph_mode")
    graph = GraphRunner(plan, with_carries, columns_of(batches[0]), optimizer=SETTINGS)
    np.testing.assert_allclose([graph.step(batch).loss for batch in batches], expected, rtol=1e-5)


def test_without_measured_carries_the_layer_and_the_way_out_are_named():
    layers = transpose_pass(cells.Inside)
    plan = derive("1f1b(vision+llm)", model_spec(layers), 1, 2)
    with pytest.raises(ModelError, match="does not say what it hands on.*measure_carries"):
        GraphRunner(plan, layers, columns_of(cells.batch_of(0)))
