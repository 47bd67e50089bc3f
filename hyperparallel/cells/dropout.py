"""Dropout whose mask depends on (seed, step, micro-batch, layer) and the place in the tensor, on nothing else.

MindSpore's own dropout counts calls, so a mask would depend on the rank, on the order of the plan and on whether a
forward runs again. Here the mask is computed from a key: by the same whole numbers on every device, the same in a
forward and in its recompute, the same for every P, schedule and padding.

Shapes: R rows (samples or images), S positions of a row, D features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

RANDOM = "random"
"""Column that a runner makes for every micro-batch: (2,) int32, its key and the number of its first row, which is not 0
in a piece. A Layer that lists it gets it like any other column."""


def random_key(seed: int, step: int, mb: int) -> np.ndarray:
    """Make the column `RANDOM` of one micro-batch.

    Args:
        seed: of the job.
        step: optimizer step, from 0.
        mb: number of the micro-batch in the step, over all replicas and passes.

    Returns:
        (2,) int32.

    Example:
        >>> random_key(0, 3, 1).tolist() == random_key(0, 3, 1).tolist() != random_key(0, 3, 2).tolist()
        True
    """
    return np.array([_number(f"{seed}:{step}:{mb}"), 0], np.int32)


def random_from(column: np.ndarray, row: int) -> np.ndarray:
    """Return the column `RANDOM` of the rows of a micro-batch from `row` on."""
    return np.array([column[0], row], np.int32)


def with_random(
    batch: Sequence[Mapping[str, np.ndarray]],
    seed: int,
    step: int,
    numbers: Sequence[int] | None = None,
    before: int = 0,
) -> list[dict]:
    """Give every micro-batch its column `RANDOM`.

    Args:
        batch: the micro-batches of one pass of a replica.
        seed: of the job.
        step: optimizer step.
        numbers: of each among them; default: as they stand.
        before: micro-batches of the step in other passes and replicas that are counted first.
    """
    numbers = range(len(batch)) if numbers is None else numbers
    return [
        {**columns, RANDOM: random_key(seed, step, before + mb)} for columns, mb in zip(batch, numbers, strict=True)
    ]


class Dropout(nn.Cell):
    """Set a share of the elements to zero and scale the others up, while training.

    Each element's hash (multiply, xor, shift: 32 bits, as in Murmur's finalizer) of key, name, row, position and
    feature is compared with the rate; 24 bits of it are used.

    Args:
        rate: share that is dropped, 0 <= rate < 1.
        width: D.
    """

    def __init__(self, rate: float, width: int) -> None:
        super().__init__()
        self.threshold, self.scale = rate * 2.0**24, 1.0 / (1.0 - rate)
        self.salt = 0
        # int32 throughout: products wrap around, and shifts of negative numbers are cut to their own bits.
        self.feature_D = Tensor((np.arange(width, dtype=np.int64) * 0x1B873593).astype(np.uint32).view(np.int32))

    def call_it(self, name: str) -> None:
        """Give it a name that is unique in the model; `build_layer` does, by layer and place in it."""
        self.salt = _number(name)

    def construct(self, x_RSD: Tensor, key_2: Tensor) -> Tensor:
        """Drop elements of (R, S, D); `key_2` is the column `RANDOM`."""
        if not self.training:
            return x_RSD
        key_2 = ops.stop_gradient(key_2)
        ones_RS1 = ops.ones_like(ops.stop_gradient(x_RSD)[:, :, :1]).astype(ms.int32)
        place_RS1 = (ops.cumsum(ones_RS1, 0) + key_2[1]) * 0x3504F333 + ops.cumsum(ones_RS1, 1)
        place_RS1 = ops.bitwise_xor(_mixed(place_RS1), _mixed(key_2[0] + self.salt))
        bits_RSD = ops.bitwise_and(_mixed(place_RS1 + self.feature_D), 0xFFFFFF)
        kept_RSD = ops.stop_gradient(bits_RSD).astype(ms.float32) >= self.threshold
        return x_RSD * kept_RSD.astype(x_RSD.dtype) * self.scale


def _mixed(x: Tensor) -> Tensor:
    """Spread every bit of 32 over all others."""
    x = ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 16), 0xFFFF)) * 0x7FEB352D
    x = ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 15), 0x1FFFF)) * -0x7B935975
    return ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 16), 0xFFFF))


def _number(text: str) -> int:
    """Hash a text to 0 .. 2^31 - 1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1
