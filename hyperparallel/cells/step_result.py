"""What a step returns, and what a worker reads for it: the same for all runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hyperparallel.algebra.program import F, Program, micro_batch
from hyperparallel.cells.dropout import RANDOM
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.errors import DataError

if TYPE_CHECKING:
    from hyperparallel.cells.layer import Layer
    from hyperparallel.cells.slab import Slab

MicroBatch = Mapping[str, np.ndarray]
"""Column -> array."""


class StepResult(NamedTuple):
    """Numbers of one step, the same on every rank."""

    loss: float
    """Mean over all terms (tokens) of the global batch."""
    weight: float
    """Number of those terms."""
    metrics: dict[str, float]
    """Sums that the last layer declares."""
    grad_norm: float
    """Global gradient norm before clipping; 0.0 when nothing is trainable, or in a graph without clipping."""
    updated: bool = True
    """False where loss or gradient was no finite number, so that the step changed no parameter, on no rank."""


def summarise(sums: np.ndarray, metrics: Sequence[str], grad_norm: float) -> StepResult:
    """Turn the sums over the global batch into the result of a step.

    Args:
        sums: (2 + metrics,) loss, weight and metrics.
        metrics: their names.
        grad_norm: global norm before clipping.
    """
    loss = sums[0] / sums[1] if sums[1] else 0.0
    return StepResult(float(loss), float(sums[1]), dict(zip(metrics, map(float, sums[2:]), strict=True)), grad_norm)


def check_count(batch: Sequence[MicroBatch], micro_batches: int) -> None:
    """Refuse a batch that is not cut as the plan is.

    Raises:
        DataError: it has not M micro-batches.
    """
    if len(batch) != micro_batches:
        raise DataError(f"the batch has {len(batch)} micro-batches; the plan has {micro_batches}")


def check_batch(batch: Sequence[MicroBatch], layers: Sequence[Layer]) -> None:
    """Refuse columns that no operator takes, or that do not fit what layers hand on, before a step.

    Args:
        batch: M micro-batches with the columns that a worker has.
        layers: the whole model; `Layer.check` of each that has one is asked where its columns are there.

    Raises:
        DataError: a column has an axis of length 0, or what a layer's check says; names the micro-batch.
    """
    read = {column for layer in layers for column in layer.columns}
    for mb, columns in enumerate(batch):
        shapes = {name: np.shape(array) for name, array in columns.items()}
        for name, shape in shapes.items():
            if name in read and 0 in shape:
                raise DataError(
                    f"micro-batch {mb}: column {name!r} has the shape {shape}, which is empty; give it a blank row "
                    "that nothing refers to, as the feed does for a micro-batch without images"
                )
        for before, layer in zip(layers, layers[1:], strict=False):
            if layer.check is None or before.carry is None or not columns.keys() >= set(layer.columns):
                continue
            try:
                handed = before.carry(shapes)
            except KeyError:  # of a column that only another rank reads
                continue
            check_carry(layer, [tuple(one[0]) if isinstance(one, TensorSpec) else one for one in handed], columns, mb)


def check_carry(layer: Layer, shapes: Sequence[tuple[int, ...]], columns: MicroBatch, mb: object) -> None:
    """Ask a layer's check whether what it is handed fits its columns.

    Args:
        layer: with a `check`.
        shapes: of the carry's tensors.
        columns: of the micro-batch.
        mb: its number, for the message.

    Raises:
        DataError: it does not.
    """
    try:
        layer.check(shapes, columns)
    except DataError as error:
        raise DataError(f"micro-batch {mb}: {error}") from None


def check_weight(result: StepResult, step: int) -> None:
    """Refuse a step of which no label is known.

    Raises:
        DataError: its weight is 0.
    """
    if result.weight == 0:
        raise DataError(f"step {step}: no label in the whole batch, so there is no loss to train on")


def read_by(slabs: Mapping[int, Slab], program: Program) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
    """List what a worker reads: stage -> (its micro-batches, its columns)."""
    needs = {}
    for stage, slab in slabs.items():
        own = {micro_batch(action.mb) for action in program if action.stage == stage and action.kind == F}
        columns = tuple(column for column in slab.columns if column != RANDOM)  # which the runner makes
        if columns:
            needs[stage] = (tuple(sorted(own)), columns)
    return needs
