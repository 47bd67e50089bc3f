"""The table of a plan's placement: which ranks hold each layer, and how much memory the parameters take there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hyperparallel.algebra import Plan

_FLOAT32 = 4  # bytes of a weight
_STATE = 3 * _FLOAT32  # of a trainable one: its gradient and AdamW's two moments


class LayerSize(NamedTuple):
    """How many parameters one worker holds of a layer.

    Args:
        name: of the layer.
        parameters: their number.
        trainable: how many of them are trained.
    """

    name: str
    parameters: int
    trainable: int


def placement_data(plan: Plan, sizes: Sequence[LayerSize]) -> dict[str, list[dict[str, Any]]]:
    """Say where every layer is and what every rank holds, as JSON can.

    Args:
        plan: derived for a model.
        sizes: of all layers of that model, in order.

    Returns:
        `layers`, each with name, part, ranks, parameters and bytes (float32 weights) of one copy, and `ranks`, each
        with parameters, bytes, and `state_bytes`: gradients and optimizer of what is trained.
    """
    parts = [layer.part for layer in plan.model.layers]
    held = [plan.placement.holders(index) for index in range(len(sizes))]
    layers = [
        {
            "name": size.name,
            "part": part,
            "ranks": list(ranks),
            "parameters": size.parameters,
            "bytes": _FLOAT32 * size.parameters,
        }
        for size, part, ranks in zip(sizes, parts, held, strict=True)
    ]
    totals = []
    for rank in range(plan.ranks):
        own = [size for size, ranks in zip(sizes, held, strict=True) if rank in ranks]
        parameters, trainable = sum(size.parameters for size in own), sum(size.trainable for size in own)
        totals.append({"parameters": parameters, "bytes": _FLOAT32 * parameters, "state_bytes": _STATE * trainable})
    return {"layers": layers, "ranks": totals}


def placement_table(plan: Plan, sizes: Sequence[LayerSize]) -> str:
    """Lay out `placement_data` as two tables.

    Args:
        plan: derived for a model.
        sizes: of all layers of that model, in order.

    Returns:
        Lines of text without a last newline.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 1, "llm": 2}, {"vision"}), 2, 2)
        >>> sizes = [LayerSize("vision.patch", 1000, 0), LayerSize("llm.a", 2000, 2000), LayerSize("llm.b", 500, 500)]
        >>> print(placement_table(plan, sizes))
        layer          part     ranks   parameters   bytes
        vision.patch   vision   0-1          1,000   4,000
        llm.a          llm      0            2,000   8,000
        llm.b          llm      1              500   2,000
        <BLANKLINE>
        rank   parameters   weights, bytes   gradients and optimizer, bytes
        0           3,000           12,000                           24,000
        1           1,500            6,000                            6,000
    """
    data = placement_data(plan, sizes)
    layers = [["layer", "part", "ranks", "parameters", "bytes"]]
    for row in data["layers"]:
        layers.append([row["name"], row["part"], _span(row["ranks"]), f"{row['parameters']:,}", f"{row['bytes']:,}"])
    ranks = [["rank", "parameters", "weights, bytes", "gradients and optimizer, bytes"]]
    for rank, row in enumerate(data["ranks"]):
        ranks.append([str(rank), *(f"{value:,}" for value in row.values())])
    return "\n".join([*_aligned(layers, words=3), "", *_aligned(ranks, words=1)])


def _span(ranks: Sequence[int]) -> str:
    """Write ranks shortly: a layer is on one of them or on all."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def _aligned(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Align columns, the first `words` of them to the left and the numbers to the right."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "   ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
