"""Roofline: how long a layer takes, from what it computes and what it moves; and the costs of stages from their layers.

A pass takes max(FLOPs / speed, bytes / bandwidth). Per layer, with the tensors between its operators written once and
read once:

| pass | FLOPs | bytes |
|---|---|---|
| F | matrix + mixing | weights + activations |
| I | matrix + 2 mixing | weights + 2 activations: what was saved, and a gradient for each |
| W | matrix | weights' gradients + activations |

A whole backward is I + W; where the forward is recomputed, B and I also cost F. `mixing` is what multiplies no weights
(attention among tokens), so W has no part in it. Elements are of the type that the layer computes in, but for those of
`float32`, which belong to the activations.

Source of the roofline: Williams, Waterman, Patterson, Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.algebra.footprint import footprint
from hyperparallel.algebra.program import SEND_B, SEND_F, B, F, I, W
from hyperparallel.cost.weights import Costs

_FLOAT32 = 4  # bytes

Sizes = Mapping[str, float]
"""Sizes of one micro-batch: `images`, `samples` (rows) and `tokens` (rows x padded length)."""


class Traffic(NamedTuple):
    """What a roofline needs to know of a layer's forward besides its FLOPs; elements of one micro-batch.

    Args:
        weights: elements of parameters that it reads.
        activations: elements of other tensors that it reads and writes.
        mixing: those of its FLOPs that multiply no weights.
        float32: elements of tensors beside those, which are float32 whatever the layer computes in.
    """

    weights: float
    activations: float
    mixing: float = 0.0
    float32: float = 0.0


class Count(NamedTuple):
    """All that a roofline needs to know of a layer's forward: its FLOPs, and the fields of `Traffic`."""

    flops: float
    weights: float = 0.0
    activations: float = 0.0
    mixing: float = 0.0
    float32: float = 0.0

    @property
    def traffic(self) -> Traffic:
        """All but the FLOPs."""
        return Traffic(*self[1:])


class Rate(NamedTuple):
    """What a device reaches.

    Args:
        flops: floating-point operations per second.
        bandwidth: bytes of memory per second.
        element: bytes of an element.
    """

    flops: float
    bandwidth: float
    element: int


class LayerTime(NamedTuple):
    """Times of one layer for one micro-batch, in any one unit: forward, and the two parts of its backward."""

    forward: float
    input: float
    weight: float

    @property
    def total(self) -> float:
        """Forward and whole backward."""
        return self.forward + self.input + self.weight


def layer_time(count: Count, rate: Rate) -> LayerTime:
    """Price a layer on a device, in seconds.

    Example:
        >>> layer_time(Count(flops=8e12, weights=1e9, mixing=2e12), Rate(flops=1e12, bandwidth=1e12, element=2))
        LayerTime(forward=8.0, input=10.0, weight=6.0)
    """
    flops, mixing, weights = count.flops, count.mixing, count.weights * rate.element
    activations = count.activations * rate.element + count.float32 * _FLOAT32

    def longest(operations: float, moved: float) -> float:
        return max(operations / rate.flops, moved / rate.bandwidth)

    return LayerTime(
        longest(flops, weights + activations),
        longest(flops + mixing, weights + 2 * activations),
        longest(flops - mixing, weights + activations),
    )


def gated(trainable: Sequence[bool], times: Sequence[LayerTime]) -> list[LayerTime]:
    """Set to zero what a layer never does: the rule of `costs_from_parts`, by layer.

    A frozen layer has no W, and no I unless something before it is trainable.

    Args:
        trainable: of every layer of the model.
        times: as if all were trainable.

    Example:
        >>> [time.total for time in gated([False, True, False], [LayerTime(1, 2, 3)] * 3)]
        [1, 6, 3]
    """
    return [
        LayerTime(time.forward, time.input * gates.receives_gradient, time.weight * gates.reduces)
        for gates, time in zip(footprint(trainable), times, strict=True)
    ]


def by_size(sizes: Sequence[Sizes], make: Callable[[Sizes], list]) -> list[list]:
    """Call `make` once for each different size; returns one result per micro-batch, shared where sizes are equal."""
    made: dict[tuple, list] = {}
    keys = [tuple(sorted(one.items())) for one in sizes]
    for key, one in zip(keys, sizes, strict=True):
        if key not in made:
            made[key] = make(one)
    return [made[key] for key in keys]


def costs_from_layers(
    plan: Plan,
    times: Sequence[Sequence[LayerTime]],
    *,
    recompute: Collection[int] = (),
    calls: Mapping[str, float] | None = None,
    alpha: float = 0.0,
    beta: float = 0.0,
    carries: Sequence[Sequence[float]] | None = None,
    images: Sequence[float] | None = None,
) -> Costs:
    """Add the layers of every stage up.

    Args:
        plan: gives the slabs and which layers are trainable.
        times: by micro-batch, then by layer of the model; as if all layers were trainable.
        recompute: stages whose forward runs again in the backward.
        calls: F, B -> what every layer after the first of a stage saves, since a stage is called once; default 0.
        alpha: time of a message of zero bytes.
        beta: time per byte.
        carries: by micro-batch, then by layer: bytes that the layer hands on; default: messages of zero bytes.
        images: by micro-batch, from which pieces get their shares of an encode; default: equal shares.

    Returns:
        F, B, I and W of every stage and the bytes of its messages, by micro-batch.
    """
    trainable = [layer.trainable for layer in plan.model.layers]
    backwards = list(accumulate((gates.receives_gradient for gates in footprint(trainable)), initial=0))
    sums = _prefix_sums(trainable, times)
    calls = calls or {}
    compute: dict[tuple[int, str], list[float]] = {}
    for stage, (first, last) in enumerate(plan.placement.slabs):
        saved = calls.get(F, 0.0) * (last - first - 1)
        forward = [max(0.0, one[0][last] - one[0][first] - saved) for one in sums]
        inputs = [one[1][last] - one[1][first] for one in sums]
        weights = [one[2][last] - one[2][first] for one in sums]
        count = backwards[last] - backwards[first]
        if count:
            saved = calls.get(B, 0.0) * (count - 1)
            again = forward if stage in recompute else [0.0] * len(forward)
            inputs = [max(0.0, time - saved) + more for time, more in zip(inputs, again, strict=True)]
        compute[stage, F], compute[stage, I], compute[stage, W] = forward, inputs, weights
        compute[stage, B] = [one + other for one, other in zip(inputs, weights, strict=True)]
    split = plan.placement.split
    shares = [piece_shares(number, split) for number in images or [split] * len(times)] if split > 1 else ()
    return Costs(compute, alpha, beta, {} if carries is None else _message_bytes(plan, carries), shares)


def piece_shares(images: float, pieces: int) -> tuple[float, ...]:
    """Return each piece's share of an encode: images are cut as equally as it goes, and an empty piece encodes one.

    Example:
        >>> piece_shares(4, 2), piece_shares(1, 2)
        ((0.5, 0.5), (1.0, 1.0))
    """
    number = max(1, round(images))
    base, more = divmod(number, pieces)
    return tuple(max(1, base + (index < more)) / number for index in range(pieces))


def _prefix_sums(trainable: Sequence[bool], times: Sequence[Sequence[LayerTime]]) -> list[list[list[float]]]:
    """Sum F, I and W before each layer, by micro-batch; micro-batches that share a list of times share the sums."""
    made: dict[int, list[list[float]]] = {}
    for one in times:
        if id(one) not in made:
            columns = zip(*gated(trainable, one), strict=True)
            made[id(one)] = [list(accumulate(column, initial=0.0)) for column in columns]
    return [made[id(one)] for one in times]


def _message_bytes(plan: Plan, carries: Sequence[Sequence[float]]) -> dict[tuple[int, str], list[float]]:
    """Size the messages: forwards what the last layer of a slab hands on, backwards the gradient of what it got."""
    sizes: dict[tuple[int, str], list[float]] = {}
    for stage, (first, last) in enumerate(plan.placement.slabs):
        if last < len(plan.model.layers):
            sizes[stage, SEND_F] = [one[last - 1] for one in carries]
        if first > 0:
            sizes[stage, SEND_B] = [one[first - 1] for one in carries]
    return sizes
