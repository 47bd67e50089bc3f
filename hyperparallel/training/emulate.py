"""The ranks' side of `bench --emulate`: real processes, messages and runner, but a stage computes by sleeping.

What such a step takes beyond its prediction is what the runtime costs: Python, messages, waking up.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn

from hyperparallel.algebra import Action, ModelSpec, Plan, check_table, from_text, parse
from hyperparallel.algebra.program import RECEIVES, B, F, Unit
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.stepwise import Runner
from hyperparallel.cells.transport import Transport
from hyperparallel.training.bench import measure_messages, processor
from hyperparallel.training.emulated_lines import JOB, PROGRESS, RESULT
from hyperparallel.training.metrics import MetricsFile, write_json
from hyperparallel.training.trace import sum_integers

_LEAD = 0.03  # seconds between agreeing on a common start and starting
_PART = "emulated"  # of the made-up model; its layers are never built


class Timed(NamedTuple):
    """One step by the clock that all processes of a machine share.

    Args:
        walk: seconds from the common start until the last rank was through with its program.
        step: until the last rank had the loss of the step.
    """

    walk: float
    step: float


class EmulatedSlab:
    """Stand in for a slab whose device takes a given time: sleep, then hand on a real tensor.

    Args:
        stage: its index.
        seconds: by action, for the F and B of this stage.
        elements: by unit of work, float32 numbers that a forward hands on, and a backward.
        is_last: whether it ends in the loss.
        backward: whether it has backwards.
    """

    columns: tuple[str, ...] = ()
    weights: tuple[Tensor, ...] = ()

    def __init__(
        self,
        stage: int,
        seconds: Mapping[Action, float],
        elements: Mapping[Unit, tuple[int, int]],
        is_last: bool,
        backward: bool,
    ):
        self.stage, self.trains, self.chain = stage, backward, nn.Cell()  # which has no parameters to write
        self._seconds, self._is_last = seconds, is_last
        self._loss = Tensor(np.array([0, 1], np.float32))
        # Made once: what a device computes is there when it is done, without time of the host.
        self._results = {
            unit: [Tensor(np.zeros(count, np.float32)) for count in counts] for unit, counts in elements.items()
        }

    def inputs(self, carry: object, micro_batch: object, unit: Unit, pieces: int = 1) -> tuple[Unit]:
        """Keep of the arguments only what it works on; what came over the wire has come."""
        return (unit,)

    def forward(self, inputs: tuple[Unit], train: bool, keep: bool = True) -> Tensor:
        """Take the time of a forward."""
        start = time.perf_counter()
        sleep_until(start + self._seconds[Action(self.stage, F, *inputs)])
        return self._loss if self._is_last else self._results[inputs[0]][0]

    def backward(self, inputs: tuple[Unit], gradient: object) -> tuple[Tensor, tuple[()]]:
        """Take the time of a backward."""
        start = time.perf_counter()
        sleep_until(start + self._seconds[Action(self.stage, B, *inputs)])
        return self._results[inputs[0]][1], ()

    @staticmethod
    def loss_gradient(packed: Tensor, scale: float = 1.0) -> Tensor:
        """Return what starts a backward; nobody reads it."""
        return packed


def sleep_until(deadline: float) -> None:
    """Sleep until `time.perf_counter()` says so, leaving the core to others.

    The system wakes a process some 0.1 to 0.3 ms late. To stay awake at the end instead makes the others late.
    """
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


def work(folder: Path) -> None:
    """Run the job file of a folder on this rank; rank 0 writes the result there.

    Args:
        folder: holds what `emulated_lines.write_job` wrote.
    """
    transport = Transport.start()
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    with MetricsFile(folder / PROGRESS if transport.rank == 0 else None) as progress:
        result = emulate(job, transport, lambda doing: progress.write({"doing": doing}))
    if transport.rank == 0:
        write_json(folder / RESULT, result)
    transport.leave()


def emulate(job: Mapping[str, Any], transport: Transport, progress: Callable[[str], None]) -> dict[str, Any]:
    """Let the lines of a job take turns, step by step; every rank calls this.

    Args:
        job: see `emulated_lines.job_of`.
        transport: this rank's place in the job.
        progress: told what is being done, on every rank.

    Returns:
        The measured alpha, beta and step times, the same on every rank.
    """
    progress("measuring messages")
    measure_messages(transport)  # the first messages of a job also open connections
    alpha, beta = measure_messages(transport)
    progress("running every line once, without its compute")
    entries = [_enter(line, transport) for line in job["lines"]]
    steps: list[list[Timed]] = [[] for _ in entries]
    for number in range(job["steps"]):
        progress(f"measuring steps, round {number + 1} of {job['steps']}")
        for (runner, _), own in zip(entries, steps, strict=True):
            own.append(_timed_step(runner))
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "alpha": alpha,
        "beta": beta,
        "rows": [
            {
                "measured": [timed.step for timed in own],
                "walk": [timed.walk for timed in own],
                "in_order": in_order,
            }
            for (_, in_order), own in zip(entries, steps, strict=True)
        ],
    }


def emulated_runner(
    plan: Plan, seconds: Mapping[Action, float], sizes: Mapping[Action, int], transport: Transport
) -> Runner:
    """Build the runner of a plan with emulated slabs.

    Args:
        plan: only its programs and its placement are read.
        seconds: how long every F and B takes, by action.
        sizes: bytes that every F hands on; a backward hands on as much as came in.
        transport: this rank's place in the job.
    """
    placement = plan.placement
    count = {(stage, unit): max(1, -(-size // 4)) for (stage, _, unit), size in sizes.items()}
    slabs = {}
    for stage in range(transport.rank, placement.stages, plan.ranks):
        elements = {
            unit: (count[stage, unit], max(1, sum(count[node] for node in before)))
            for (own, unit), (before, _) in placement.neighbours.items()
            if own == stage
        }
        is_last, backward = stage == placement.paths[0][-1], placement.gates[stage].receives_gradient
        slabs[stage] = EmulatedSlab(stage, seconds, elements, is_last, backward)
    model = [Layer(_PART, _PART, _never_built)]
    return Runner(plan, model, transport=transport, optimizer=AdamW(clip_norm=0), slabs=slabs)


def _never_built() -> None:
    raise AssertionError("an emulated layer has no Cell")


def _enter(line: Mapping[str, Any], transport: Transport) -> tuple[Runner, bool]:
    """Build a line's runner and run it once without its compute, which opens its connections.

    Returns:
        The runner, and whether all ranks did what their programs say, in that order.
    """
    placement, programs = check_table(from_text(line["programs"], JOB), transport.size, line["micro_batches"])
    compute = tuple(tuple(action for action in program if action.is_compute) for program in programs)
    plan = Plan(parse(line["schedule"]), ModelSpec.of({_PART: 1}), (), placement, (), compute)
    actions = [action for program in programs for action in program]
    seconds = dict.fromkeys(actions, 0.0)
    sizes = {action: line["bytes"][str(action)] for action in actions if action.kind == F}
    runner = emulated_runner(plan, seconds, sizes, transport)
    runner.records = []
    _timed_step(runner)
    in_order = _all_agree(_in_order(runner), transport)
    runner.records = None
    # The slabs look their times up in this dictionary.
    seconds |= {action: line["seconds"][str(action)] for action in actions if action.is_compute}
    return runner, in_order


def _timed_step(runner: Runner) -> Timed:
    """Run one step from a start that all ranks agree on."""
    transport = runner.transport
    agreed = np.array([time.perf_counter_ns() + round(_LEAD * 1e9) if transport.rank == 0 else 0], np.int64)
    start = int(sum_integers(transport, agreed)[0]) / 1e9
    sleep_until(start)
    runner.step([{}] * runner.plan.micro_batches)
    ends = np.zeros((transport.size, 2), np.int64)
    ends[transport.rank] = [round((end - start) * 1e9) for end in (runner.walked, time.perf_counter())]
    return Timed(*(float(end) / 1e9 for end in sum_integers(transport, ends).max(axis=0)))


def _in_order(runner: Runner) -> bool:
    """Tell whether this rank's recorded step did its program's actions in the program's order."""
    program = [action for action in runner.program if action.kind not in RECEIVES]
    assert runner.records is not None
    return [record.action for record in runner.records] == program


def _all_agree(own: bool, transport: Transport) -> bool:
    return bool(transport.sum(np.array([own], np.float32), range(transport.size))[0] == transport.size)
