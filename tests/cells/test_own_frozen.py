"""Parameters that a Cell froze itself: not trained by any runner, in gates, sizes, optimizer state and checkpoints."""

from functools import partial

import numpy as np
import pytest
from cells_writers import WIDTH, Loss, writer_batch
from mindspore import Parameter, Tensor, nn, ops

from hyperparallel import Layer, Runner, derive, model_spec
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.layer import build_layer, trained
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.sizes import count_parameters
from hyperparallel.cells.state import state_of
from hyperparallel.errors import ModelError

LINES = ("1f1b(enc+net)", "transpose(enc) >> 1f1b(net)")


class Lora(nn.Cell):
    """A frozen base weight, a table of positions, and a trained update of rank 2."""

    def __init__(self, all_frozen: bool = False):
        super().__init__()
        draw = lambda *shape: Tensor(np.random.standard_normal(shape).astype(np.float32))  # noqa: E731
        self.base = Parameter(draw(WIDTH, WIDTH), requires_grad=False)
        self.table = Parameter(draw(WIDTH), requires_grad=False)
        self.down, self.up = Parameter(draw(WIDTH, 2)), Parameter(draw(2, WIDTH))
        self.norm = nn.GroupNorm(2, WIDTH)
        if all_frozen:
            for parameter in self.get_parameters():
                parameter.requires_grad = False

    def construct(self, x_BD):
        h_BD = ops.matmul(x_BD, self.base) + ops.matmul(ops.matmul(x_BD, self.down), self.up) + self.table
        return self.norm(h_BD.expand_dims(-1).expand_dims(-1)).reshape(x_BD.shape)


def lora_layers(all_frozen: bool = False, trainable: bool = True, **more) -> list[Layer]:
    carry = lambda shapes: [shapes["x"]]  # noqa: E731
    return [
        Layer("enc.a", "enc", partial(Lora, all_frozen), columns=("x",), trainable=trainable, carry=carry, **more),
        Layer("enc.b", "enc", partial(Lora, all_frozen), trainable=trainable, carry=carry),
        Layer("net.loss", "net", Loss, columns=("y",)),
    ]


def stepwise(line, layers):
    return Runner(derive(line, model_spec(layers), 1, 2), layers, jit=False)


def graph(line, layers):
    columns = {"x": TensorSpec((6, WIDTH)), "y": TensorSpec((6, 1))}
    return GraphRunner(derive(line, model_spec(layers), 1, 2), layers, columns)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "all_frozen"), [(stepwise, False), (stepwise, True), (graph, False)])
def test_what_the_cell_froze_stays_and_has_no_state(make, all_frozen):
    ends = []
    for line in LINES:
        runner = make(line, lora_layers(all_frozen))
        before = runner.parameters()
        for step in range(2):
            runner.step(writer_batch(2, seed=step))
        after = runner.parameters()
        moved = {name for name in before if not np.array_equal(before[name], after[name])}
        own = ("down", "up", "norm.gamma", "norm.beta")
        encoder = set() if all_frozen else {f"enc.{layer}.{name}" for layer in "ab" for name in own}
        assert moved == encoder | {"net.loss.dense.weight", "net.loss.dense.bias"}
        moments = {one.name.removeprefix("optimizer.first.") for one in state_of(runner) if "first" in one.name}
        assert moments == moved
        ends.append(after)
    for name in ends[0]:
        np.testing.assert_allclose(ends[0][name], ends[1][name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("all_frozen", "trainable"), [(False, True), (True, True), (False, False), (True, False)])
def test_gates_and_sizes_count_what_is_trained(all_frozen, trainable):
    layers = lora_layers(all_frozen, trainable)
    trains = trainable and not all_frozen
    assert trained(layers) == [trains, trains, True]
    gates = derive(LINES[1], model_spec(layers), 1, 4).placement.gates
    assert [gate.receives_gradient for gate in gates] == [trains, True]
    assert [gate.sends_gradient for gate in gates] == [False, trains]
    assert [count.trainable for count in count_parameters(layers)] == [24 * trains, 24 * trains, WIDTH + 1]
    assert [count.parameters for count in count_parameters(layers)] == [44, 44, WIDTH + 1]


def test_looking_draws_no_weights_and_leaves_random_state_alone():
    state = np.random.get_state()[1].copy()
    trained([Layer("net.huge", "net", partial(nn.Dense, 40_000, 40_000), columns=("x",))])  # 6.4 GB if it were drawn
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_a_layer_that_says_what_it_freezes_is_held_to_it():
    assert trained(lora_layers(frozen=("base", "table"))) == [True, True, True]
    with pytest.raises(ModelError, match=r"'enc.a' says that its Cell freezes base; it freezes base, table: correct"):
        build_layer(lora_layers(frozen=("base",))[0], 0)


def test_a_tie_between_frozen_and_trained_is_refused():
    layers = lora_layers()
    layers[1] = Layer("enc.b", "enc", Lora, tied={"base": "enc.a.base"})
    stepwise(LINES[0], layers)
    layers[1] = Layer("enc.b", "enc", partial(nn.Dense, WIDTH, WIDTH), tied={"weight": "enc.a.base"})
    with pytest.raises(ModelError, match="ties 'weight' to 'enc.a.base', but the Cell that holds 'enc.a.base' freezes"):
        stepwise(LINES[0], layers)
