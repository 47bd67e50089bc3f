"""The training loop of one rank."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.step_result import StepResult
from hyperparallel.cells.transport import Transport
from hyperparallel.data import MicroBatchInfo, StepFeed
from hyperparallel.data.feed import count_skipped, fingerprint
from hyperparallel.errors import DataError
from hyperparallel.training.build import build_feed, build_layers, replicas_fed
from hyperparallel.training.config import Config, Training
from hyperparallel.training.evaluation import evaluate, held_out_feed
from hyperparallel.training.keeper import Keeper
from hyperparallel.training.metrics import MetricsFile, peak_memory_mb, summarise, write_json
from hyperparallel.training.planning import build_plan, check_equal_plans
from hyperparallel.training.runners import AnyRunner, build_runner
from hyperparallel.training.steps import Step, Steps, batches
from hyperparallel.training.stop import StopRequest
from hyperparallel.training.trace import write_step_traces
from hyperparallel.training.untrained import untrained, warning

_logger = logging.getLogger(__name__)


def train(
    config: Config, transport: Transport, folder: Path | None, report: Callable[[dict], None] | None = None
) -> dict:
    """Train and evaluate as the configuration says; every rank of the job calls this.

    Args:
        config: the job.
        transport: this rank's place in it.
        folder: where rank 0 writes `metrics.jsonl` (a line per step), `summary.json`, checkpoints and what
            `run.trace_step` asks; the other ranks' is not used.
        report: called on rank 0 with each line of metrics.

    Raises:
        HyperParallelError: the configuration does not fit together, the job does not have P x D x T workers, or a step
            cannot go on.

    Returns:
        The summary, the same numbers on every rank. After a SIGTERM to any rank it is that of the steps so far.
    """
    with StopRequest() as stop:
        return _Training(config, transport, folder, stop).run(report)


class _Training:
    """One rank's training: what is built once, and the step."""

    def __init__(self, config: Config, transport: Transport, folder: Path | None, stop: StopRequest):
        self.config, self.transport, self.folder, self.stop = config, transport, folder, stop
        transport.timeout_s = config.run.timeout_s
        self.layers = build_layers(config, transport.tensor_parallel(config.parallel.topology))
        self.plan = build_plan(config, self.layers)
        check_equal_plans(self.plan, transport)
        self.runner = build_runner(config, self.plan, self.layers, transport)
        self.keeper = Keeper(config, self.runner, folder)
        # Sizes of the whole step, all replicas together: what throughput is measured in.
        self.feeds = [
            build_feed(config, "train", replica, self.keeper.first_sample) for replica in range(replicas_fed(config))
        ]
        self.feed = self.feeds[self.runner.replica]
        self.feed.beside = [feed for feed in self.feeds if feed is not self.feed]
        self.held_out = held_out_feed(config, self.runner.replica)
        self.passes = config.training.accumulate
        self.lines: list[dict[str, Any]] = []

    def run(self, report: Callable[[dict], None] | None) -> dict[str, Any]:
        """Run all steps, then what follows them."""
        last = self.config.training.steps
        passes = _passes(self.config, self.runner, self.layers, self.feed, self.keeper.first_step, last)
        stopped = False
        with MetricsFile(self.folder / "metrics.jsonl" if self.transport.rank == 0 else None) as metrics:
            for step in range(self.keeper.first_step, last):
                line, stopped = self._step(step, passes)
                self.lines.append(line)
                metrics.write(line)
                if report and self.transport.rank == 0:
                    report(line)
                self.keeper.after_step(line, is_last=stopped or step + 1 == last)
                if stopped:
                    break
        return self._finish(stopped)

    def _step(self, step: int, passes: Iterator[Step]) -> tuple[dict[str, Any], bool]:
        """Run one optimizer step; return its line of metrics, and whether a rank was asked to stop."""
        config, runner = self.config, self.runner
        traced = step == config.run.trace_step
        if config.run.trace_step is not None:
            runner.records = [] if traced else None
        rate = learning_rate(config.training, step)
        start, waited, decided = time.perf_counter(), 0.0, {}
        for number in range(self.passes):
            own_plan, batch, decided, order = next(passes)
            waited += self.feed.loads.waited
            if own_plan is not None:
                runner.follow(own_plan)
            if number + 1 < self.passes:
                runner.accumulate(batch, order)
        result = runner.step(batch, rate) if order is None else runner.step(batch, rate, order)
        seconds = time.perf_counter() - start
        bubble = getattr(runner, "bubble", None)
        table = self._everybody(step, [self.stop.asked, bubble or 0.0, peak_memory_mb(), waited])
        line = {**self._line(step, result, seconds), "lr": rate, **decided}
        if bubble is not None:
            line["bubble"] = [round(share, 4) for share in table[:, 1].tolist()]
        line |= {"memory_peak_mb": round(float(table[:, 2].max()), 1), "data_wait": float(table[:, 3].max())}
        if traced:
            write_step_traces(config, self.layers, runner, self.folder, self.feed.loads, self._parts(step)[-1])
            runner.records = None
        return line, bool(table[:, 0].any())

    def _line(self, step: int, result: StepResult, seconds: float) -> dict[str, Any]:
        infos = self._infos(step)
        line = {
            "step": step,
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "step_time": seconds,
            "tokens": sum(info.tokens for info in infos),
            "images": sum(info.images for info in infos),
            "updated": result.updated and math.isfinite(result.loss),
            "skipped": count_skipped(self.feeds, self._parts(step)[-1]),
        }
        line["tokens_per_s"], line["images_per_s"] = line["tokens"] / seconds, line["images"] / seconds
        if getattr(self.runner, "scale", None) is not None and self.runner.scale.dynamic:
            line["loss_scale"] = self.runner.scale.value
        return line

    def _parts(self, step: int) -> range:
        """Return which steps of the feed make an optimizer step."""
        return range(step * self.passes, (step + 1) * self.passes)

    def _infos(self, step: int) -> list[MicroBatchInfo]:
        return [info for part in self._parts(step) for feed in self.feeds for info in feed.describe(part)]

    def _everybody(self, step: int, own: Sequence[float]) -> np.ndarray:
        """Bring some numbers of every worker to all, (workers, numbers); refuse to go on with different data."""
        table = np.zeros((self.transport.size, len(own) + 1), np.float32)
        table[self.transport.rank] = [*own, fingerprint(self.feeds, self._parts(step)[-1])]
        table = self.transport.sum(table, range(self.transport.size), f"what ranks say after step {step}")
        other = np.flatnonzero(table[:, -1] != table[0, -1])
        if len(other):
            raise DataError(
                f"step {step}: workers 0 and {other[0]} read different samples; give all of them the same files, and "
                "do not change these while a job runs"
            )
        return table

    def _finish(self, stopped: bool) -> dict[str, Any]:
        """Sum up, evaluate unless the job was asked to stop, and write it down."""
        if self.config.planner.replan == "step":
            self.runner.follow(self.plan)
        summary = {"schedule": str(self.plan.schedule), **summarise(self.lines), "stopped": stopped}
        if self.keeper.last is not None:
            summary["checkpoint"] = str(self.keeper.last)
        if self.keeper.keeps and any(line["updated"] for line in self.lines):
            summary["untrained"] = untrained(self.runner)
            if summary["untrained"] and self.transport.rank == 0:
                _logger.warning(warning(summary["untrained"], len(self.lines)))
        if self.held_out is not None and not stopped:
            summary |= evaluate(self.runner, self.held_out, self.transport)
        if self.transport.rank == 0:
            write_json(self.folder / "summary.json", summary)
        return summary


def _passes(
    config: Config, runner: AnyRunner, layers: Sequence[Layer], feed: StepFeed, first: int, last: int
) -> Iterator[Step]:
    """Yield what this rank runs in every pass over its plan, `training.accumulate` of them for a step."""
    span = (first * config.training.accumulate, last * config.training.accumulate)
    if config.planner.reorder or config.planner.replan == "step":
        return Steps(config, runner.plan, layers, feed).stream(runner, *span)
    return (Step(None, batch, {}, None) for batch in batches(runner, feed, *span))


def learning_rate(training: Training, step: int) -> float:
    """Linear warmup, then a cosine down to a tenth of the peak at the last step."""
    if step < training.warmup_steps:
        return training.lr * (step + 1) / training.warmup_steps
    progress = (step - training.warmup_steps) / max(1, training.steps - 1 - training.warmup_steps)
    return training.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
