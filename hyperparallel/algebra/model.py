"""The model as the algebra sees it: a sequence of layers in named parts, and cuts of that sequence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hyperparallel.errors import ModelError


@dataclass(frozen=True)
class LayerSpec:
    """One layer: its part, whether it is trainable and its weight for balanced cuts.

    Args:
        part: name used in schedule lines.
        trainable: False when frozen.
        cost: forward + backward time of one micro-batch in any unit, >= 0; only ratios matter.
    """

    part: str
    trainable: bool = True
    cost: float = 1.0


@dataclass(frozen=True)
class ModelSpec:
    """A sequence of layers from input to loss.

    Example:
        >>> ModelSpec.of({"vision": 2, "llm": 4}, frozen={"vision"}).parts
        ('vision', 'llm')
    """

    layers: tuple[LayerSpec, ...]

    @classmethod
    def of(cls, counts: dict[str, int], frozen: Collection[str] = ()) -> ModelSpec:
        """Build a model from layer counts by part; parts in `frozen` are not trainable."""
        return cls(tuple(LayerSpec(part, part not in frozen) for part, count in counts.items() for _ in range(count)))

    @property
    def parts(self) -> tuple[str, ...]:
        """Part names in order of the sequence."""
        return tuple(dict.fromkeys(layer.part for layer in self.layers))

    def span(self, part: str) -> tuple[int, int]:
        """Return (first layer, one past the last layer) of a part."""
        indices = [index for index, layer in enumerate(self.layers) if layer.part == part]
        return indices[0], indices[-1] + 1

    def __post_init__(self) -> None:
        runs = [
            layer.part
            for index, layer in enumerate(self.layers)
            if index == 0 or self.layers[index - 1].part != layer.part
        ]
        if not runs or len(runs) != len(set(runs)):
            raise ModelError(f"the model's parts come as {runs}; expected at least one layer and each part in one run")


Span = tuple[int, int]
"""Contiguous layers: (first, one past the last)."""


def cut_evenly(span: Span, pieces: int) -> list[Span]:
    """Cut a span into consecutive pieces whose layer counts differ by at most one, larger ones first."""
    first, last = span
    base, extra = divmod(last - first, pieces)
    return cut_by_counts(first, [base + (piece < extra) for piece in range(pieces)])


def cut_by_counts(first: int, counts: Sequence[int]) -> list[Span]:
    """Cut consecutive pieces with these layer counts, starting at layer `first`."""
    spans = []
    for count in counts:
        spans.append((first, first + count))
        first += count
    return spans


def cut_balanced(span: Span, pieces: int, costs: Sequence[float]) -> list[Span]:
    """Cut a span into non-empty consecutive pieces whose largest cost is as small as possible.

    Args:
        span: the layers to cut; must hold at least `pieces` layers.
        pieces: number of pieces >= 1.
        costs: cost of every layer of the model, indexed like the model's layers.

    Returns:
        The optimal cut, by dynamic programming; among equals, the one that fills earlier pieces last.
    """
    first, last = span
    prefix = [0.0]
    for layer in range(first, last):
        prefix.append(prefix[-1] + costs[layer])
    size = last - first
    best = [prefix[:]]  # best[k][n]: smallest possible maximum when k + 1 pieces hold the first n layers
    where: list[list[int]] = []
    for _ in range(1, pieces):
        row, cuts = [float("inf")] * (size + 1), [0] * (size + 1)
        for end in range(len(where) + 2, size + 1):
            # The first pieces' cost grows with the start of the last piece, the last piece's falls: they cross once.
            starts, before = range(len(where) + 1, end), best[-1]
            at = bisect_left(starts, True, key=lambda start: before[start] >= prefix[end] - prefix[start])
            row[end] = min(max(before[start], prefix[end] - prefix[start]) for start in starts[max(0, at - 1) : at + 1])
            first_such = bisect_left(starts, True, key=lambda start: prefix[end] - prefix[start] <= row[end])
            cuts[end] = starts[first_such]
        best.append(row)
        where.append(cuts)
    bounds = [size]
    for cuts in reversed(where):
        bounds.append(cuts[bounds[-1]])
    bounds.append(0)
    bounds.reverse()
    return [(first + bounds[k], first + bounds[k + 1]) for k in range(pieces)]
