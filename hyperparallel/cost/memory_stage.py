"""What a stage of the graph runner needs in memory, added up from its layers. Counts only; no order yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class LayerBytes(NamedTuple):
    """What one layer needs; bytes, of one micro-batch where it depends on the data.

    Args:
        weights: its parameters.
        trained: those of them that get a gradient.
        largest: the largest of those.
        constants: tables and masks that its Cell holds.
        saved: what is kept between its forward and its backward, its input included where the backward needs it;
            0 where no backward passes through it.
        forward: the most that a forward alone holds, input and output included.
        backward: the most that its backward holds beyond `saved`, `weights` and the gradient of its output.
    """

    weights: int
    trained: int
    largest: int
    constants: int
    saved: int
    forward: int
    backward: int


@dataclass(frozen=True)
class StageBytes:
    """What one stage needs; bytes, of one micro-batch where it depends on the data.

    Args:
        weights: its parameters.
        trained: those of them that get a gradient.
        largest: the largest of those.
        constants: tables and masks.
        saved: kept between F and B (or I).
        forward: the most that an F holds, if that is more than what it saves and hands on.
        backward: what a B holds beyond what was live when it started.
        adding: what it then holds where its weight gradients are added to earlier ones.
        carry: what it hands on.
        keeps_input: whether its input carry is part of `saved`.
    """

    weights: int
    trained: int
    largest: int
    constants: int
    saved: int
    forward: int
    backward: int
    adding: int
    carry: int
    keeps_input: bool = True


def stage_bytes(layers: Sequence[LayerBytes], carry: int, *, trains: bool, recompute: bool = False) -> StageBytes:
    """Add up the layers of a stage.

    Args:
        layers: those of the stage, in order.
        carry: bytes that it hands on, 0 for the last.
        trains: whether it has backwards.
        recompute: whether its backward runs the forward again; only its input is then kept, as a carry.

    Example:
        >>> layer = LayerBytes(weights=8, trained=8, largest=4, constants=1, saved=100, forward=30, backward=20)
        >>> stage_bytes([layer, layer], 10, trains=True).saved
        200
    """
    weights, trained, constants, saved = (
        sum(getattr(one, name) for one in layers) for name in ("weights", "trained", "constants", "saved")
    )
    largest = max(one.largest for one in layers)
    if not trains:
        forward = max(one.forward for one in layers)
        return StageBytes(weights, 0, 0, constants, 0, forward, 0, 0, carry, keeps_input=False)
    backward, adding = _backward(layers), _backward(layers, adds=True)
    if recompute:
        return StageBytes(weights, trained, largest, constants, 0, saved, saved + backward, saved + adding, carry)
    first = next(index for index, one in enumerate(layers) if one.saved or one.trained)
    forward = max([one.forward for one in layers[:first]], default=0)
    keeps_input = first == 0
    return StageBytes(weights, trained, largest, constants, saved, forward, backward, adding, carry, keeps_input)


def _backward(layers: Sequence[LayerBytes], adds: bool = False) -> int:
    """Find the most that the backward of a chain adds to what it started with: it frees as it goes up.

    A weight gradient that is added takes the place of the earlier sum; both and the new one are there for a moment.
    """
    most = grown = 0
    for one in reversed(layers):
        most = max(most, grown + one.backward + (one.largest if adds else 0))
        grown += (0 if adds else one.trained) - one.saved
    return max(most, grown)
