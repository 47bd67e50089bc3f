"""What the tests of `models/` share: a tiny config, batches, and slabs run the way the stepwise runner does."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from hyperparallel.cells.layer import Layer, build_layer
from hyperparallel.models import DecoderConfig, MllmConfig, VisionConfig

VISION = VisionConfig(width=16, depth=1, heads=2, ffn=32)
LLM = DecoderConfig(vocab_size=23, width=24, depth=1, heads=4, kv_heads=2, ffn=32, max_length=16)
TINY = MllmConfig(vision=VISION, llm=LLM, image_token=3)
SENS = tuple(ms.Tensor(value, ms.float32) for value in (1.0, 0.0, 0.0, 0.0))

_gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)


class Slab(nn.Cell):
    """Chain layers; called with the carry, unless it holds the model's first layer, then all columns."""

    def __init__(self, layers: tuple[Layer, ...], first: bool, seed: int = 0) -> None:
        # A prefix would rename the parameters, which have their global names already.
        super().__init__(auto_prefix=False)
        self.chain = nn.CellList([build_layer(layer, seed) for layer in layers], auto_prefix=False)
        self.columns = tuple(len(layer.columns) for layer in layers)
        self.carries = 0 if first else 1
        self.set_grad(True)

    def construct(self, *inputs):
        used = self.carries
        carry = inputs[0]
        head = inputs[:used]
        for index in range(len(self.columns)):
            carry = self.chain[index](*head, *inputs[used : used + self.columns[index]])
            used = used + self.columns[index]
            head = (carry,)
        return carry


class JitSlab(Slab):
    """The same as one graph that takes changing shapes."""

    @ms.jit(dynamic=1)
    def construct(self, *inputs):
        return super().construct(*inputs)


def backward(cell: nn.Cell, inputs: tuple, sens) -> tuple[list, list]:
    """Return the gradients of inputs and of trainable parameters, as arrays."""
    cell.set_grad(True)
    of_inputs, of_weights = _gradient(cell, ms.ParameterTuple(cell.trainable_params()))(*inputs, sens)
    return [g.asnumpy() for g in of_inputs], [g.asnumpy() for g in of_weights]


def batch(images: int, rows: int, length: int, placeholders: int, seed: int = 0) -> tuple[ms.Tensor, ...]:
    """Draw (pixel_values, input_ids, labels); half of the labels are -100."""
    rng = np.random.default_rng(seed)
    pixels = rng.standard_normal((images, VISION.channels, VISION.image_size, VISION.image_size))
    ids = rng.integers(4, LLM.vocab_size, (rows, length))
    ids.reshape(-1)[rng.permutation(rows * length)[:placeholders]] = TINY.image_token
    labels = np.where(rng.random((rows, length)) < 0.5, -100, rng.integers(0, LLM.vocab_size, (rows, length)))
    return (
        ms.Tensor(pixels.astype(np.float32)),
        ms.Tensor(ids.astype(np.int32)),
        ms.Tensor(labels.astype(np.int32)),
    )


def check_gradient(cell: nn.Cell, inputs: tuple, sens, seed: int = 0) -> None:
    """Compare each parameter's gradient with a central difference along a half random direction."""
    rng = np.random.default_rng(seed)
    _, gradients = backward(cell, inputs, sens)
    for parameter, gradient in zip(cell.trainable_params(), gradients, strict=True):
        start = parameter.asnumpy().copy()
        noise = rng.standard_normal(start.shape)
        direction = gradient / np.linalg.norm(gradient) + noise / np.linalg.norm(noise)
        step = 1e-2
        values = []
        for sign in (1, -1):
            parameter.set_data(ms.Tensor((start + sign * step * direction).astype(np.float32)))
            values.append(_weighted(cell(*inputs), sens))
        parameter.set_data(ms.Tensor(start))
        expected = float((gradient * direction).sum())
        measured = (values[0] - values[1]) / (2 * step)
        assert abs(measured - expected) <= 0.01 * np.linalg.norm(gradient), (parameter.name, measured, expected)


def _weighted(outputs, sens) -> float:
    if not isinstance(outputs, tuple):
        outputs, sens = (outputs,), (sens,)
    return sum(float((o.asnumpy().astype(np.float64) * s.asnumpy()).sum()) for o, s in zip(outputs, sens, strict=True))
