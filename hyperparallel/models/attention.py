"""Rotary positions and attention, shared by the ViT and the decoder.

Shapes: B rows, A query heads, K key and value heads (K divides A), S positions, E features per head.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops


def rotary_tables(position_SX: np.ndarray, head: int, theta: float) -> tuple[ms.Tensor, ms.Tensor]:
    """Tabulate the rotary factors of each position.

    The head's pairs are shared out evenly over the X axes (1 for text, 2 for rows and columns of an image).
    Both tables carry a factor head**-0.25: with queries and keys rotated by them, the product comes out
    divided by sqrt(head), which saves an operator.

    Args:
        position_SX: (S, X) whole numbers, a position on each axis.
        head: E, features per head, a multiple of 2 X.
        theta: base of the wavelengths.

    Returns:
        Two (S, E) float32 Tensors, for `rotate`.
    """
    axes = position_SX.shape[1]
    pairs = head // 2 // axes
    frequency = theta ** -(np.arange(pairs) / pairs)
    angle = np.concatenate([position_SX[:, axis, None] * frequency for axis in range(axes)], axis=1)
    # Feature i pairs with i + E/2: the first gets -sin of its partner, the second +sin.
    cos_SE = np.concatenate([np.cos(angle), np.cos(angle)], axis=1) * head**-0.25
    sin_SE = np.concatenate([-np.sin(angle), np.sin(angle)], axis=1) * head**-0.25
    return ms.Tensor(cos_SE.astype(np.float32)), ms.Tensor(sin_SE.astype(np.float32))


def rotate(x_BASE: ms.Tensor, cos_SE: ms.Tensor, sin_SE: ms.Tensor) -> ms.Tensor:
    """Turn each pair of features by its position's angle."""
    half = x_BASE.shape[-1] // 2
    swapped = ops.concat((x_BASE[..., half:], x_BASE[..., :half]), -1)
    return x_BASE * cos_SE + swapped * sin_SE
