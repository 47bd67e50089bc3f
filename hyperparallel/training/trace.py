"""The trace of one real step, beside the predicted one (`run.trace_step`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.stepwise import Runner
from hyperparallel.cells.transport import Transport
from hyperparallel.cells.walk import Record
from hyperparallel.cost import simulate
from hyperparallel.data.loads import KEPT, Loads
from hyperparallel.training.build import estimate_costs
from hyperparallel.training.config import Config
from hyperparallel.views.files import write_files
from hyperparallel.views.loading import Loading
from hyperparallel.views.perfetto import later, side_by_side, to_bytes, trace, trace_of_records

MEASURED, PREDICTED, BOTH = "trace.json", "predicted.json", "side_by_side.json"
"""Files in the run folder."""

_COLUMNS = ("start", "end", "number")
"""Of the table that is gathered: nanoseconds since 1970; bytes of a message, or the step of a load."""
_BITS = 21  # of an integer that a float32 carries exactly, in sums with zeros too
_DIGITS = 3


def write_step_traces(
    config: Config,
    layers: Sequence[Layer],
    runner: Runner,
    folder: Path | None,
    loads: Loads | None = None,
    step: int = 0,
) -> None:
    """Bring the records of the step that just ran to rank 0, which writes the traces; every rank calls this.

    Args:
        config: gives the predicted costs (those of `hyperparallel plan CONFIG.yaml`).
        layers: the model.
        runner: recorded its last step; with replicas, the first one is shown.
        folder: where rank 0 writes; other ranks may have none.
        loads: when this rank's data were made, to be shown beside the step; all ranks give them, or none does.
        step: which one ran, as `loads` counts.
    """
    records, loading = gather_records(runner, loads, step)
    if runner.transport.rank != 0:
        return
    assert folder is not None, "rank 0 has no run folder"
    plan, costs = runner.plan, estimate_costs(config, runner.plan, layers)
    measured = trace_of_records(plan, records, loading)
    predicted = trace(plan, costs, simulate(plan, costs), "ms")
    began = min((record.start for own in records for record in own), default=0.0)  # after data that were waited for
    both = side_by_side({"predicted": later(predicted, began), "measured": measured})
    contents = {MEASURED: measured, PREDICTED: predicted, BOTH: both}
    write_files({folder / name: to_bytes(content) for name, content in contents.items()})


def gather_records(
    runner: Runner, loads: Loads | None = None, step: int = 0
) -> tuple[list[list[Record]], list[Loading]]:
    """Return the records of every rank of the first replica and shard, on one clock.

    A table with a place for every action of every rank is summed over the job: it needs no shared folder and works
    however the job was started.

    Args:
        runner: recorded its last step.
        loads, step: see `write_step_traces`.

    Returns:
        By rank, its records and what its loading thread did; seconds since the first of all that began.
    """
    plan = runner.plan
    width = max(map(len, plan.programs))
    table = np.zeros((plan.ranks, width + KEPT + 1, len(_COLUMNS)), np.int64)
    if runner.replica == runner.shard == 0:
        _fill(table[runner.rank], width, runner, loads, step)
    table = sum_integers(runner.transport, table)
    first = min((int(start) for start in table[..., 0].flat if start), default=0)
    rows = [
        [
            ((int(start) - first) / 1e9, (int(end) - first) / 1e9, int(number)) if start else None
            for start, end, number in own
        ]
        for own in table
    ]
    records = [
        [Record(action, *times) for action, times in zip(program, own, strict=False) if times]
        for program, own in zip(plan.programs, rows, strict=True)
    ]
    return records, [] if loads is None else [_loading(own[width:]) for own in rows]


def _fill(own: np.ndarray, width: int, runner: Runner, loads: Loads | None, step: int) -> None:
    """Write a rank's rows: its actions in the order of the program, from `width` on its loads, and last its wait."""
    records = runner.records
    assert records is not None, "the step was not recorded"
    epoch = time.time_ns() - round(time.perf_counter() * 1e9)

    def row(start: float, end: float, number: int) -> tuple[int, int, int]:
        return epoch + round(start * 1e9), epoch + round(end * 1e9), number

    # The last record ended when the rank was through; so much for the zero of its clock.
    began = runner.walked - max((record.end for record in records), default=0.0)
    place = {action: index for index, action in enumerate(runner.plan.programs[runner.rank])}
    for action, start, end, size in records:
        own[place[action]] = row(began + start, began + end, size)
    if loads is None:
        return
    wait = loads.wait_of(step)
    if wait is not None:
        own[-1] = row(wait.start, wait.end, step)
    first = began if wait is None else wait.start
    beside = [load for load in loads.made() if load.end > first]
    for index, load in enumerate(beside[-KEPT:], start=width):
        own[index] = row(load.start, load.end, load.step)


def _loading(rows: list[tuple[float, float, int] | None]) -> Loading:
    """Name a rank's loads and its wait."""
    *loads, wait = rows
    return Loading(
        [(f"load step {number}", start, end) for start, end, number in filter(None, loads)],
        [] if wait is None else [("wait for data", *wait[:2])],
    )


def sum_integers(transport: Transport, values: np.ndarray) -> np.ndarray:
    """Sum integers from 0 to 2^63 - 1 over the job, where at most one rank has something other than 0 in a place.

    Args:
        transport: sums float32, so every integer travels as digits that float32 holds exactly.
        values: int64, the same shape on every rank.
    """
    shifts = np.arange(_DIGITS, dtype=np.int64) * _BITS
    digits = (values[..., None] >> shifts) & ((1 << _BITS) - 1)
    summed = transport.sum(digits.astype(np.float32), range(transport.size))
    return (summed.astype(np.int64) << shifts).sum(-1)
