"""How many parameters a worker holds of each layer, found by building one layer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from hyperparallel.cells.layer import Layer


class Count(NamedTuple):
    """Parameters of one layer on one worker: all of them, and those that are trained."""

    parameters: int
    trainable: int


def count_parameters(layers: Sequence[Layer], shards: int = 1) -> list[Count]:
    """Build each layer, count and drop it, so that no more than one is in memory.

    Args:
        layers: whole ones, as for T = 1; where T > 1, with the `sharded` of the layers that will run.
        shards: T, workers among which what is listed in `sharded` is cut evenly.

    Returns:
        One count per layer.

    Example:
        >>> from mindspore import nn
        >>> from hyperparallel import Layer
        >>> count_parameters([Layer("net.first", "net", lambda: nn.Dense(3, 4))])
        [Count(parameters=16, trainable=16)]
    """
    counts = []
    for layer in layers:
        parameters = trainable = 0
        for name, parameter in layer.build().parameters_and_names():
            size = prod(parameter.shape) // (shards if name in layer.sharded else 1)
            parameters += size
            trainable += size * (layer.trainable and parameter.requires_grad)
        counts.append(Count(parameters, trainable))
    return counts
