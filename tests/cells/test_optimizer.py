"""AdamW against the formula, what is decayed, and the settings of a step."""

import mindspore as ms
import numpy as np
import pytest
from cells_tiny import tiny_batch, tiny_layers

from hyperparallel import AdamW, Runner, derive, model_spec
from hyperparallel.cells.optimizer import Optimizer

SHAPES = {"matrix": (3, 4), "vector": (5,), "table": (2, 2, 3), "scalar": (1,)}


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    draw = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return [ms.Parameter(ms.Tensor(value), name=name) for name, value in draw.items()]


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def adamw_in_numpy(values, settings, rates):
    """Loshchilov and Hutter, Algorithm 2, in float64; only matrices are decayed."""
    one, two = settings.betas
    values = [value.astype(np.float64) for value in values]
    first, second = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values]
    for step, lr in enumerate(rates):
        for index, g in enumerate(gradients(step)):
            decay = settings.weight_decay if values[index].ndim >= 2 else 0.0
            values[index] *= 1 - lr * decay
            first[index] = one * first[index] + (1 - one) * g
            second[index] = two * second[index] + (1 - two) * g.astype(np.float64) ** 2
            m, v = first[index] / (1 - one ** (step + 1)), second[index] / (1 - two ** (step + 1))
            values[index] -= lr * m / (np.sqrt(v) + settings.eps)
    return values


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        pytest.param(AdamW(lr=0.1, weight_decay=0.3), [0.1] * 3, id="constant"),
        pytest.param(AdamW(lr=0.1, weight_decay=0.3), [0.1, 0.02, 0.5], id="another rate every step"),
        pytest.param(AdamW(lr=0.1, weight_decay=0.0, betas=(0.5, 0.99), eps=1e-2), [0.1] * 3, id="betas and eps"),
        pytest.param(AdamW(lr=0.1, weight_decay=0.3), [0.0] * 3, id="rate 0"),
    ],
)
def test_equals_the_formula(settings, rates):
    own = parameters()
    expected = adamw_in_numpy([p.asnumpy().copy() for p in own], settings, rates)
    optimizer = Optimizer(settings, own)
    for step, lr in enumerate(rates):
        optimizer.update(gradients(step), lr)
    for parameter, value in zip(own, expected, strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), value, rtol=2e-5, atol=1e-6, err_msg=parameter.name)


def test_only_matrices_decay():
    own = parameters()
    before = [p.asnumpy().copy() for p in own]
    Optimizer(AdamW(weight_decay=0.5), own).update([np.zeros(shape, np.float32) for shape in SHAPES.values()], 0.1)
    for parameter, value in zip(own, before, strict=True):
        kept = 0.95 if parameter.name in ("matrix", "table") else 1.0
        np.testing.assert_allclose(parameter.asnumpy(), kept * value, rtol=1e-6, err_msg=parameter.name)


def test_without_parameters_nothing_happens():
    optimizer = Optimizer(AdamW(), [])
    optimizer.update([], 0.1)
    assert optimizer.moments() == []


def test_moments_belong_to_the_given_parameters_in_their_order():
    moments = Optimizer(AdamW(), parameters()).moments()
    assert [[moment.name.split(".")[-1] for moment in pair] for pair in moments] == [[name, name] for name in SHAPES]


def first_step(clip_norm, lr=None):
    """Take one step of the tiny model without Adam's memory; return the result and how far the weights moved."""
    # With a huge eps the step is lr * gradient / eps, so the size of the gradient shows.
    settings = AdamW(lr=1e6, weight_decay=0.0, betas=(0.0, 0.0), eps=1e6, clip_norm=clip_norm)
    layers = tiny_layers()
    runner = Runner(derive("1f1b(stem+net)", model_spec(layers), 1, 4), layers, optimizer=settings, jit=False)
    before = runner.parameters()
    result = runner.step(tiny_batch(), lr)
    moved = np.concatenate([(before[name] - value).ravel() for name, value in runner.parameters().items()])
    return result, moved


def test_clipping_scales_all_gradients_to_the_norm():
    free, moved_freely = first_step(clip_norm=1e9)
    assert free.grad_norm == pytest.approx(np.linalg.norm(moved_freely), rel=1e-3)
    clipped, moved = first_step(clip_norm=free.grad_norm / 4)
    assert clipped.grad_norm == free.grad_norm
    np.testing.assert_allclose(moved, moved_freely / 4, rtol=1e-2, atol=1e-6)


def test_clip_norm_0_turns_clipping_off():
    result, moved = first_step(clip_norm=0)
    loose, as_far = first_step(clip_norm=1e9)
    assert result.grad_norm == loose.grad_norm > 0
    np.testing.assert_array_equal(moved, as_far)


def test_the_rate_of_a_step_overrides_the_settings():
    moved = first_step(0)[1]
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose(first_step(0, lr=5e5)[1], moved / 2, rtol=1e-2, atol=1e-6)
