"""What a step returns, and what a worker reads for it: the same for all runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hyperparallel.algebra.program import F, Program, micro_batch
from hyperparallel.cells.dropout import RANDOM
from hyperparallel.errors import DataError

if TYPE_CHECKING:
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
