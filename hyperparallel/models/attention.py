"""Rotary positions and attention, shared by the ViT and the decoder.

Shapes: B rows, A query heads, K key and value heads (K divides A), S positions, E features per head,
X = A/K x S queries that share one key head, N axes that positions are counted on.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops


def rotary_tables(position_SN: np.ndarray, head: int, theta: float) -> tuple[ms.Tensor, ms.Tensor]:
    """Tabulate the rotary factors of each position.

    The head's pairs are shared out evenly over the N axes: 1 for text, 2 for rows and columns of an image.
    Both tables carry a factor head**-0.25: with queries and keys rotated by them, the product comes out
    divided by sqrt(head), which saves an operator.

    Args:
        position_SN: (S, N) whole numbers, a position on each axis.
        head: E, features per head, a multiple of 2 N.
        theta: base of the wavelengths.

    Returns:
        Two (S, E) float32 Tensors, for `rotate`.
    """
    axes = position_SN.shape[1]
    pairs = head // 2 // axes
    frequency = theta ** -(np.arange(pairs) / pairs)
    angle = np.concatenate([position_SN[:, axis, None] * frequency for axis in range(axes)], axis=1)
    # Feature i pairs with i + E/2: the first gets -sin of its partner, the second +sin.
    cos_SE = np.concatenate([np.cos(angle), np.cos(angle)], axis=1) * head**-0.25
    sin_SE = np.concatenate([-np.sin(angle), np.sin(angle)], axis=1) * head**-0.25
    return ms.Tensor(cos_SE.astype(np.float32)), ms.Tensor(sin_SE.astype(np.float32))


def rotate(x_BASE: ms.Tensor, cos_SE: ms.Tensor, sin_SE: ms.Tensor) -> ms.Tensor:
    """Turn each pair of features by its position's angle."""
    half = x_BASE.shape[-1] // 2
    swapped = ops.concat((x_BASE[..., half:], x_BASE[..., :half]), -1)
    return x_BASE * cos_SE + swapped * sin_SE


def attend(q_BASE: ms.Tensor, k_BASE: ms.Tensor, v_BASE: ms.Tensor) -> ms.Tensor:
    """Mix the values of all positions; the scale is already in `rotary_tables`."""
    scores_BASS = ops.BatchMatMul(transpose_b=True)(q_BASE, k_BASE)
    return ops.BatchMatMul()(ops.softmax(scores_BASS, -1), v_BASE)


def attend_causal(q_BASE: ms.Tensor, k_BKSE: ms.Tensor, v_BKSE: ms.Tensor, mask_SS: ms.Tensor) -> ms.Tensor:
    """Mix the values of each query's own and earlier positions, in groups of A / K query heads.

    Args:
        q_BASE: rotated queries; heads of one group are neighbours.
        k_BKSE: rotated keys.
        v_BKSE: values.
        mask_SS: added to the scores: 0 where a query (row) may look, very negative where it may not.

    Returns:
        (B, A, S, E).
    """
    _, heads, length, head = q_BASE.shape
    groups = k_BKSE.shape[1]
    # The queries of a group stand below one another, so no key or value is repeated in memory.
    q_BKXE = q_BASE.reshape(-1, groups, heads // groups * length, head)
    scores_BKXS = ops.BatchMatMul(transpose_b=True)(q_BKXE, k_BKSE)
    scores_BASS = scores_BKXS.reshape(-1, heads, length, length) + mask_SS
    share_BKXS = ops.softmax(scores_BASS, -1).reshape(-1, groups, heads // groups * length, length)
    return ops.BatchMatMul()(share_BKXS, v_BKSE).reshape(-1, heads, length, head)
