"""The layers of models by their shapes: parameters, FLOPs, tensors and what is kept, without building anything.

This is the one rule by which layers are counted, those of `models/` and those of files of yaml/models:

* FLOPs of a forward: 2 x rows x parameters that a row multiplies, and, as `mixing`, what attention multiplies: 2 x rows
  x context x (query + value features of all heads). The context is how many others a row looks at: the patches of the
  image or of the window; of a text half of its tokens, since attention is causal, as in FlashAttention-2 (arXiv
  2307.08691, section 4.1). An embedding counts one for each element of its result. Norms, biases and activations count
  only by the memory that they move.
* Elements moved: the weights once, and every tensor between two operators once written and once read. Attention is one
  operator, so its scores never reach memory; so is an activation with its gate, and a lookup with the choice between
  text and image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hyperparallel.cost.roofline import Count, Sizes


@dataclass(frozen=True)
class LayerShape:
    """One layer; elements, of one micro-batch where it depends on `Sizes`. Equal layers share their functions.

    Args:
        name: like `vision.blocks.3`.
        part: like `vision`.
        trainable: whether it is.
        parameters: its parameters on one device.
        largest: the largest single one of those.
        count: FLOPs and traffic of a forward.
        saved: what is kept for its backward, its input included.
        scratch: what its backward holds beyond that.
        carry: what it hands on; 0 for the last layer.
    """

    name: str
    part: str
    trainable: bool
    parameters: float
    largest: float
    count: Callable[[Sizes], Count]
    saved: Callable[[Sizes], float]
    scratch: Callable[[Sizes], float]
    carry: Callable[[Sizes], float]


class Spread(NamedTuple):
    """Devices that hold a layer together.

    Args:
        tensor: T, that share the matrices of a block.
        experts: that share the experts of a block, each with its own tokens.
    """

    tensor: int = 1
    experts: int = 1


class Block(NamedTuple):
    """One transformer block, per row (token or patch): elements, T taken into account."""

    parameters: float
    largest: float
    active: float  # parameters that one row multiplies
    mixing: float  # multiply-adds of a row with another one
    tensors: float  # between two operators
    saved: float
    scratch: float


Functions = tuple[Callable[[Sizes], Count], Callable[[Sizes], float], Callable[[Sizes], float]]
"""`count`, `saved` and `scratch` of a layer."""


def block_functions(block: Block, rows: Callable[[Sizes], float], context: Callable[[Sizes], float]) -> Functions:
    """Make `count`, `saved` and `scratch` of a block."""

    def count(sizes: Sizes) -> Count:
        number = rows(sizes)
        mixing = 2 * number * block.mixing * context(sizes)
        # Of many experts a few rows touch a few; of all other matrices each row touches all.
        weights = min(block.parameters, number * block.active)
        return Count(2 * number * block.active + mixing, weights, 2 * number * block.tensors, mixing)

    return count, lambda sizes: rows(sizes) * block.saved, lambda sizes: rows(sizes) * block.scratch


def block_layers(
    part: str, trainable: bool, blocks: Sequence[tuple[Block, Functions]], carry: Callable[[Sizes], float]
) -> list[LayerShape]:
    """List the blocks of a part as layers `part.blocks.0`, `part.blocks.1`, ..."""
    return [
        LayerShape(f"{part}.blocks.{index}", part, trainable, block.parameters, block.largest, *functions, carry=carry)
        for index, (block, functions) in enumerate(blocks)
    ]
