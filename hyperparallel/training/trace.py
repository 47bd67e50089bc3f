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
from hyperparallel.training.build import estimate_costs
from hyperparallel.training.config import Config
from hyperparallel.views.files import write_files
from hyperparallel.views.perfetto import side_by_side, to_bytes, trace, trace_of_records

MEASURED, PREDICTED, BOTH = "trace.json", "predicted.json", "side_by_side.json"
"""Files in the run folder."""

_BITS = 21  # of an integer that a float32 carries exactly, in sums with zeros too
_DIGITS = 3


def write_step_traces(config: Config, layers: Sequence[Layer], runner: Runner, folder: Path | None) -> None:
    """Bring the records of the step that just ran to rank 0, which writes the traces; every rank calls this.

    Args:
        config: gives the predicted costs (those of `hyperparallel plan CONFIG.yaml`).
        layers: the model.
        runner: recorded its last step; with replicas, the first one is shown.
        folder: where rank 0 writes; other ranks may have none.
    """
    records = gather_records(runner)
    if runner.transport.rank != 0:
        return
    assert folder is not None, "rank 0 has no run folder"
    plan, costs = runner.plan, estimate_costs(config, runner.plan, layers)
    measured = trace_of_records(plan, records)
    predicted = trace(plan, costs, simulate(plan, costs), "ms")
    both = side_by_side({"predicted": predicted, "measured": measured})
    contents = {MEASURED: measured, PREDICTED: predicted, BOTH: both}
    write_files({folder / name: to_bytes(content) for name, content in contents.items()})


def gather_records(runner: Runner) -> list[list[Record]]:
    """Return the records of every rank of the first replica and shard, on one clock.

    A table with a place for every action of every rank is summed over the job: it needs no shared folder and works
    however the job was started.

    Args:
        runner: recorded its last step.

    Returns:
        By rank; seconds since the first action of any rank began.
    """
    plan, records = runner.plan, runner.records
    assert records is not None, "the step was not recorded"
    width = max(map(len, plan.programs))
    table = np.zeros((plan.ranks, width, 3), np.int64)  # nanoseconds of start and end since 1970, bytes
    if runner.replica == runner.shard == 0:
        place = {action: index for index, action in enumerate(plan.programs[runner.rank])}
        # The last record ended when the rank was through; so much for the zero of its clock.
        ended = time.time_ns() - round((time.perf_counter() - runner.walked) * 1e9)
        began = ended - round(max((record.end for record in records), default=0.0) * 1e9)
        for record in records:
            times = (began + round(record.start * 1e9), began + round(record.end * 1e9))
            table[runner.rank, place[record.action]] = (*times, record.bytes)
    table = sum_integers(runner.transport, table)
    first = min((int(start) for start in table[..., 0].flat if start), default=0)
    return [
        [
            Record(action, (int(start) - first) / 1e9, (int(end) - first) / 1e9, int(size))
            for action, (start, end, size) in zip(program, rows, strict=False)
            if start
        ]
        for program, rows in zip(plan.programs, table, strict=True)
    ]


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
