"""Compile every worker's step for Ascend on this machine, and check all workers against the plan and each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hyperparallel.algebra.program import Program, parse_action
from hyperparallel.algebra.topology import Topology
from hyperparallel.dryrun import (
    Event,
    RankRun,
    check_execution,
    check_ranks,
    comm_only,
    compute_only,
    final_ir,
    gist,
    read_order,
    run_ranks,
    unforced,
)
from hyperparallel.dryrun.proof import compare, read_step, repeated_forwards
from hyperparallel.errors import DryRunError, HyperParallelError

MARK = "hyperparallel dry run: "
"""Starts the line in which a worker says what came of it: `seconds`, `peak`, `groups`, and `programs` if asked to."""


@dataclass
class WorkerReport:
    """What compiling one worker's step gave.

    Args:
        worker: its number in the job.
        error: the compiler's message cut to the point; "" if it compiled.
        seconds: compile time.
        operators: number of operators, bookkeeping not counted.
        messages: number of sends and receives.
        collectives: number of other communication operators.
        problems: where the graph differs from the plan's program.
        peak: simulated peak memory in bytes, at level 1.
        predicted: what the plan's memory model says of it.
        events: of its graph.
    """

    worker: int
    error: str = ""
    seconds: float = 0.0
    operators: int = 0
    messages: int = 0
    collectives: int = 0
    problems: list[str] = field(default_factory=list)
    peak: int | None = None
    predicted: int | None = None
    events: list[Event] = field(default_factory=list, repr=False)


@dataclass
class DryRun:
    """What compiling a job gave.

    Args:
        workers: a report per worker that was asked for.
        together: problems of all workers together; None if not all were compiled.
        level: 0 or 1.
    """

    workers: list[WorkerReport]
    together: list[str] | None
    level: int

    @property
    def passed(self) -> bool:
        """Whether everything compiled and nothing is wrong."""
        return not (self.together or any(one.error or one.problems for one in self.workers))


def dry_run(
    command: Sequence[str],
    programs: Sequence[Program] | None,
    topology: Topology,
    folder: Path,
    *,
    which: Sequence[int] | None = None,
    level: int = 0,
    recomputed: Sequence[int] = (),
    engine: bool = False,
    timeout: float = 600.0,
    cwd: Path | None = None,
    jobs: int = 2,
) -> DryRun:
    """Compile the step of each worker in its own process and read the graphs back.

    Args:
        command: starts one worker: a Python interpreter and what follows it. It prints `MARK` and its facts.
        programs: of every pipeline rank, which graphs are compared with; None: those that the workers say.
        topology: P x D x T.
        folder: where graphs and orders of execution are written, `rank_R` for worker R.
        which: workers to compile; default: all.
        level: 0 compiles the front end, 1 the back end too, with simulated memory.
        recomputed: stages whose forward may run again.
        engine: MindSpore's engine chooses the order, so it is not compared with the plan's programs.
        timeout: seconds for one worker.
        cwd: where the workers run; default: here.
        jobs: workers compiled at a time.

    Raises:
        DryRunError: a worker does not exist, or a compiler is missing on this machine.

    Returns:
        The reports.
    """
    chosen = sorted(set(which)) if which is not None else list(range(topology.workers))
    last = topology.workers - 1
    for worker in chosen:
        if not 0 <= worker <= last:
            raise DryRunError(f"--ranks names worker {worker}; the job has the workers 0 to {last}")
    where = {"level": level, "save_graphs": folder, "timeout": timeout, "cwd": cwd, "jobs": jobs}
    runs = run_ranks(command, topology.workers, chosen, **where)
    workers = [_report(run, programs, topology, folder, set(recomputed), engine) for run in runs]
    complete = len(chosen) == topology.workers and not any(one.error for one in workers)
    together = _together(workers, folder, level) if complete else None
    return DryRun(workers, together, level)


def _report(
    run: RankRun,
    programs: Sequence[Program] | None,
    topology: Topology,
    folder: Path,
    recomputed: set[int],
    engine: bool,
) -> WorkerReport:
    """Read what one worker said and its graph."""
    said = next((line for line in run.output.splitlines() if line.startswith(MARK)), None)
    if not run.passed or said is None:
        return WorkerReport(run.rank, gist(run.output) if run.returncode is not None else "took too long and was ended")
    facts = json.loads(said.removeprefix(MARK))
    events = read_order(final_ir(folder / f"rank_{run.rank}"), groups=facts["groups"])
    messages = [event for event in comm_only(events) if event.op in ("Send", "Receive")]
    report = WorkerReport(
        run.rank,
        seconds=facts["seconds"],
        operators=len(compute_only(events)),
        messages=len(messages),
        collectives=len(comm_only(events)) - len(messages),
        peak=facts["peak"],
        events=events,
    )
    loose = unforced(events)
    if loose:
        report.problems.append(f"nothing makes '{loose[0][1]}' wait for '{loose[0][0]}' ({len(loose)} such pairs)")
    if engine:
        return report  # MindSpore chooses the order
    try:
        step = read_step(events)
    except HyperParallelError as error:
        report.problems.append(str(error))
        return report
    rank = topology.coordinates(run.rank)[0]
    program = programs[rank] if programs else [parse_action(text) for text in facts["programs"][rank]]
    report.problems += compare(step, program)
    report.problems += [
        f"{action} runs a forward again, which was not asked for"
        for action in repeated_forwards(step)
        if action.stage not in recomputed
    ]
    return report


def _together(workers: Sequence[WorkerReport], folder: Path, level: int) -> list[str]:
    """Play all workers against each other."""
    problems = check_ranks([one.events for one in workers])
    if level == 1:
        problems += check_execution([folder / f"rank_{one.worker}" for one in workers])
    return problems
