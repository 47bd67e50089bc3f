"""Layers whose forward writes a parameter, in front of a tiny loss."""

from __future__ import annotations

from functools import partial

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from hyperparallel import Layer

WIDTH = 4


class Norm(nn.Cell):
    """A projection and BatchNorm, whose statistics no training forward reads."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def construct(self, x_BD):
        return self.norm(self.dense(x_BD))


class Average(nn.Cell):
    """A projection that keeps a moving average of its output and subtracts it."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, WIDTH)
        self.mean = Parameter(Tensor(np.zeros(WIDTH, np.float32)), requires_grad=False)

    def construct(self, x_BD):
        h_BD = self.dense(x_BD)
        if self.training:
            ops.assign(self.mean, self.mean * 0.9 + h_BD.mean(0) * 0.1)
        return h_BD - self.mean


class Codebook(nn.Cell):
    """A projection whose weight is trained and drifts by itself."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.random.standard_normal((WIDTH, WIDTH)).astype(np.float32)))

    def construct(self, x_BD):
        if self.training:
            ops.assign(self.weight, self.weight * 0.99)
        return ops.matmul(x_BD, self.weight)


class Counter(nn.Cell):
    """A projection that counts its forwards, those of evaluation too."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, WIDTH)
        self.count = Parameter(Tensor(0, ms.int32), requires_grad=False)

    def construct(self, x_BD):
        ops.assign_add(self.count, Tensor(1, ms.int32))
        return self.dense(x_BD)


class EvalCounter(Counter):
    """A projection that counts its forwards of evaluation only."""

    def construct(self, x_BD):
        if not self.training:
            ops.assign_add(self.count, Tensor(1, ms.int32))
        return self.dense(x_BD)


class Groups(nn.Cell):
    """A projection and GroupNorm, which writes nothing."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(WIDTH, WIDTH), nn.GroupNorm(2, WIDTH)

    def construct(self, x_BD):
        return self.norm(self.dense(x_BD).expand_dims(-1).expand_dims(-1)).reshape(x_BD.shape)


class Loss(nn.Cell):
    """Squared distance."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(WIDTH, 1)

    def construct(self, h_BD, y_B1):
        error_B1 = self.dense(h_BD) - y_B1
        return (error_B1 * error_B1).sum(), ops.ones_like(y_B1).sum()


def writer_layers(kind: type[nn.Cell], trainable: bool = True) -> list[Layer]:
    """List a layer of part `enc`, and two of part `net`, the last of which is the loss."""
    return [
        Layer("enc.a", "enc", kind, columns=("x",), trainable=trainable, carry=lambda shapes: [shapes["x"]]),
        Layer("net.between", "net", partial(nn.Dense, WIDTH, WIDTH), carry=lambda shapes: [shapes["x"]]),
        Layer("net.loss", "net", Loss, columns=("y",)),
    ]


def writer_batch(micro_batches: int = 4, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Draw micro-batches of 6 rows."""
    rng = np.random.default_rng(seed)
    draw = partial(rng.standard_normal, dtype=np.float32)
    return [{"x": draw((6, WIDTH)), "y": draw((6, 1))} for _ in range(micro_batches)]
