"""The layer contract: weights from (seed, name) only, and layer lists that no cut could run."""

from functools import partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from hyperparallel import Layer, model_spec
from hyperparallel.cells.layer import build_layer, layer_of, seeded
from hyperparallel.errors import ModelError


class Drawn(nn.Cell):
    """Weights from every source of random numbers that a layer may use."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 4)  # MindSpore's default initializers
        self.conv = nn.Conv2d(1, 2, 3, has_bias=True)
        self.numpy = ms.Parameter(ms.Tensor(np.random.standard_normal(3)))
        self.op = ms.Parameter(ops.standard_normal((3,)))
        self.uniform = ms.Parameter(ops.uniform((3,), ms.Tensor(0.0), ms.Tensor(1.0)))
        self.generator = ms.Parameter(ms.Tensor([ms.initial_seed() % 1000], ms.float32))


def weights(name="part.one", seed=5, trainable=True):
    cell = build_layer(Layer(name, "part", Drawn, columns=("x",), trainable=trainable), seed)
    return {parameter.name: parameter.asnumpy().copy() for parameter in cell.get_parameters()}


def build_much():
    for _ in range(3):
        Drawn()


def equal(left, right):
    return {name: np.array_equal(left[name], right[name]) for name in left}


@pytest.mark.parametrize(
    "before", [build_much, partial(ms.set_seed, 99), partial(np.random.seed, 4), lambda: weights("b")]
)
def test_weights_do_not_depend_on_what_was_built_before(before):
    first = weights()
    before()
    assert all(equal(first, weights()).values()), equal(first, weights())


@pytest.mark.parametrize("other", [{"name": "part.two"}, {"seed": 6}])
def test_another_name_or_seed_gives_other_weights(other):
    first, second = weights(), weights(**other)
    same = [a for a, b in zip(first.values(), second.values(), strict=True) if np.array_equal(a, b)]
    assert not [array for array in same if array.any()]


def test_parameters_are_named_globally_and_frozen_as_asked():
    cell = build_layer(Layer("part.one", "part", Drawn, trainable=False), 0)
    assert "part.one.dense.weight" in {parameter.name for parameter in cell.get_parameters()}
    assert not any(parameter.requires_grad for parameter in cell.get_parameters())


def draw():
    values = [
        np.random.rand(2),
        ops.standard_normal((2,)).asnumpy(),
        ms.get_rng_state().asnumpy(),
        nn.Dense(2, 2).weight.asnumpy(),
    ]
    return np.concatenate([value.ravel() for value in values]).tolist()


@pytest.mark.parametrize("seed", [3, 0])
def test_the_callers_random_state_is_restored(seed):
    def run(build):
        ms.set_seed(seed)
        ms.manual_seed(seed)
        draw()
        build()
        return draw()

    assert run(weights) == run(lambda: None)
    assert ms.get_seed() == seed


def test_a_caller_without_a_seed_stays_without(monkeypatch):
    import sys

    monkeypatch.setattr(sys.modules["mindspore.common.seed"], "_GLOBAL_SEED", None)
    data_seed = ms.dataset.config.get_seed()
    with seeded(1, "x"):
        assert ms.get_seed() is not None
    assert ms.get_seed() is None and ms.dataset.config.get_seed() == data_seed


def test_random_state_is_restored_after_an_error():
    np.random.seed(1)
    expected = np.random.RandomState(1).rand()
    with pytest.raises(ZeroDivisionError), seeded(1, "x"):
        _ = 1 / 0
    assert np.random.rand() == expected


def layer(name, part="a", **more):
    return Layer(name, part, nn.Cell, **more)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        pytest.param([], "the model has no layers", id="none"),
        pytest.param([layer("a"), layer("a")], "layer 1 is named 'a' like layer 0", id="same name"),
        pytest.param(
            [layer("a", "a"), layer("b", "b"), layer("c", "a")],
            "layer 2 ('c') returns to part 'a' after part 'b'",
            id="part",
        ),
        pytest.param(
            [layer("a", metrics=("n",)), layer("b")], "'a' declares metrics ('n',); only the last", id="metrics"
        ),
        pytest.param(
            [layer("a"), layer("b", tied={"w": "nope.w"})], "parameter 'nope.w' belongs to no layer", id="unknown tie"
        ),
        pytest.param(
            [layer("a", tied={"w": "b.w"}), layer("b")], "ties 'w' to 'b.w' of layer 1, but is layer 0", id="later tie"
        ),
        pytest.param([layer("a", tied={"w": "a.v"})], "tie to an earlier layer", id="tie to itself"),
        pytest.param(
            [layer("a"), layer("b", tied={"w": "a.w"}), layer("c", tied={"w": "b.w"})],
            "layer 'c' ties 'w' to 'b.w', which is tied itself; tie both to the same parameter",
            id="tie of a tie",
        ),
        pytest.param(
            [layer("a", trainable=False), layer("b", tied={"w": "a.w"})],
            "but 'a' is frozen and the other",
            id="half frozen",
        ),
    ],
)
def test_refused_layer_lists(layers, words):
    with pytest.raises(ModelError) as error:
        model_spec(layers)
    assert words in str(error.value)


def test_a_parameter_belongs_to_the_layer_with_the_longest_name():
    layers = [layer("a"), layer("a.b"), layer("a.bc")]
    assert [layer_of(name, layers) for name in ("a.w", "a.b.w", "a.bc.w")] == [0, 1, 2]
