"""A model of three tiny layers whose carries are pairs of tensors, and which tell how often they run forward."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
from mindspore import nn, ops

from hyperparallel import Layer

CALLS: Counter[str] = Counter()
"""Forwards of every layer in this process; only Python sees them, so only where nothing is compiled."""
MARK = "ran forward:"


class Tiny(nn.Cell):
    """A layer that counts its forwards, and prints them from inside the compiled graph if asked."""

    def __init__(self, name: str, prints: bool):
        super().__init__()
        self.line, self.prints = f"{MARK} {name}", prints
        self.name_ = name

    def tell(self):
        """Note one forward."""
        if self.prints:
            ops.print_(self.line)


class Stem(Tiny):
    """x -> (a, b)."""

    def __init__(self, name: str, prints: bool = False):
        super().__init__(name, prints)
        self.left, self.right = nn.Dense(3, 4), nn.Dense(3, 2)

    def construct(self, x_B3):
        self.tell()
        return self.left(x_B3), self.right(x_B3)


class Middle(Tiny):
    """(a, b) -> (a, b)."""

    def __init__(self, name: str, prints: bool = False):
        super().__init__(name, prints)
        self.left, self.right = nn.Dense(4, 4), nn.Dense(2, 4)

    def construct(self, carry):
        self.tell()
        return ops.tanh(self.left(carry[0])), self.right(carry[1])


class Loss(Tiny):
    """(a, b), y -> loss and weight."""

    def __init__(self, name: str, prints: bool = False):
        super().__init__(name, prints)
        self.dense = nn.Dense(4, 1)

    def construct(self, carry, y_B1):
        self.tell()
        error_B1 = self.dense(carry[0] * carry[1]) - y_B1
        return (error_B1 * error_B1).sum(), ops.ones_like(y_B1).sum()


class Counted:
    """A Cell class whose calls are counted by Python."""

    def __init__(self, kind: type[Tiny], name: str):
        self.kind, self.name = kind, name

    def __call__(self) -> Tiny:
        cell = self.kind(self.name)
        construct = cell.construct

        def counting(*inputs):
            CALLS[self.name] += 1
            return construct(*inputs)

        cell.construct = counting
        return cell


def tiny_layers(prints: bool = False, counts: bool = False, frozen: tuple[str, ...] = ()) -> list[Layer]:
    """List the layers: part `stem` with one, part `net` with two."""
    parts = (("stem.a", "stem", Stem, ("x",)), ("net.b", "net", Middle, ()), ("net.c", "net", Loss, ("y",)))
    return [
        Layer(
            name,
            part,
            Counted(kind, name) if counts else partial(kind, name, prints),
            columns=columns,
            trainable=part not in frozen,
        )
        for name, part, kind, columns in parts
    ]


def tiny_batch(micro_batches: int = 4, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Draw micro-batches of 3, 4, 5, ... rows."""
    rng = np.random.default_rng(seed)
    return [
        {
            "x": rng.standard_normal((3 + m, 3)).astype(np.float32),
            "y": rng.standard_normal((3 + m, 1)).astype(np.float32),
        }
        for m in range(micro_batches)
    ]
