"""The training loop of one rank."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.transport import Transport
from hyperparallel.data import StepFeed
from hyperparallel.data.feed import StepData
from hyperparallel.training.build import build_feed, build_layers, replicas_fed
from hyperparallel.training.config import Config, Training
from hyperparallel.training.planning import build_plan, check_equal_plans
from hyperparallel.training.runners import AnyRunner, build_runner
from hyperparallel.training.steps import MicroBatches, Step, Steps
from hyperparallel.training.trace import write_step_traces


def train(config: Config, transport: Transport, folder: Path, report: Callable[[dict], None] | None = None) -> dict:
    """Train and evaluate as the configuration says; every rank of the job calls this.

    Args:
        config: the job.
        transport: this rank's place in it.
        folder: where rank 0 writes `metrics.jsonl` (a line per step), `summary.json` and what `run.trace_step` asks.
        report: called on rank 0 with each line of metrics.

    Raises:
        HyperParallelError: the configuration does not fit together, or the job does not have P x D x T workers.

    Returns:
        The summary, the same numbers on every rank.
    """
    layers = build_layers(config, transport.tensor_parallel(config.parallel.topology))
    plan = build_plan(config, layers)
    check_equal_plans(plan, transport)
    runner = build_runner(config, plan, layers, transport)
    # Sizes of the whole step, all replicas together: what throughput is measured in.
    feeds = [build_feed(config, "train", replica) for replica in range(replicas_fed(config))]
    steps = _steps(config, runner, layers, feeds[runner.replica])
    lines: list[dict[str, Any]] = []
    with MetricsFile(folder / "metrics.jsonl" if transport.rank == 0 else None) as metrics:
        for step, (own_plan, batch, decided) in enumerate(steps):
            if own_plan is not None:
                runner.follow(own_plan)
            if config.run.trace_step is not None:
                runner.records = [] if step == config.run.trace_step else None
            start = time.perf_counter()
            result = runner.step(batch, learning_rate(config.training, step))
            infos = [info for feed in feeds for info in feed.describe(step)]
            line = {
                "step": step,
                "loss": result.loss,
                "grad_norm": result.grad_norm,
                "lr": learning_rate(config.training, step),
                "step_time": time.perf_counter() - start,
                "tokens": sum(info.tokens for info in infos),
                "images": sum(info.images for info in infos),
                **decided,
            }
            line["tokens_per_s"] = line["tokens"] / line["step_time"]
            lines.append(line)
            metrics.write(line)
            if report and transport.rank == 0:
                report(line)
            if step == config.run.trace_step:
                write_step_traces(config, layers, runner, folder)
                runner.records = None
    if config.planner.replan == "step":
        runner.follow(plan)
    summary = {"schedule": str(plan.schedule), **_summarise(lines), **evaluate(config, runner)}
    if transport.rank == 0:
        write_json(folder / "summary.json", summary)
    return summary


def _steps(config: Config, runner: AnyRunner, layers: Sequence[Layer], feed: StepFeed) -> Iterator[Step]:
    """Yield what this rank runs in every step."""
    if config.planner.reorder or config.planner.replan == "step":
        return Steps(config, runner.plan, layers, feed).stream(runner, 0, config.training.steps)
    return (Step(None, batch, {}) for batch in batches(runner, feed, 0, config.training.steps))


def evaluate(config: Config, runner: AnyRunner) -> dict[str, float]:
    """Read held-out samples and count those without a single wrong word.

    With the right words before it given, every word of a sample is predicted right if and only if greedy
    generation reads the whole sample right, so one forward per micro-batch measures exact reading.

    Returns:
        `held_out_loss`, `exact` and `samples`; nothing when `evaluation.samples` is 0.
    """
    steps = math.ceil(config.evaluation.samples / config.training.batch_size)
    if steps == 0:
        return {}
    feed = build_feed(config, "held_out", runner.replica)
    loss = weight = exact = samples = 0.0
    for batch in batches(runner, feed, 0, steps):
        result = runner.evaluate(batch)
        loss, weight = loss + result.loss * result.weight, weight + result.weight
        exact, samples = exact + result.metrics["exact"], samples + result.metrics["samples"]
    return {"held_out_loss": loss / weight, "exact": exact / samples, "samples": samples}


def batches(runner: AnyRunner, feed: StepFeed, first_step: int, last_step: int):
    """Yield, step by step, the M micro-batches with just the columns this rank's stages read."""
    for data in feed.stream(runner.requests, first_step, last_step):
        yield merge(data, runner.plan.micro_batches)


def merge(data: StepData, micro_batches: int) -> MicroBatches:
    """Turn stage -> micro-batch -> columns into one dictionary of columns per micro-batch."""
    merged: MicroBatches = [{} for _ in range(micro_batches)]
    for by_micro_batch in data.values():
        for mb, columns in by_micro_batch.items():
            merged[mb].update(columns)
    return merged


def learning_rate(training: Training, step: int) -> float:
    """Linear warmup, then a cosine down to a tenth of the peak at the last step."""
    if step < training.warmup_steps:
        return training.lr * (step + 1) / training.warmup_steps
    progress = (step - training.warmup_steps) / max(1, training.steps - 1 - training.warmup_steps)
    return training.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


class MetricsFile:
    """Append JSON lines; without a path (ranks other than 0) do nothing."""

    def __init__(self, path: Path | None):
        self._file = path.open("w", encoding="utf-8") if path else None

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        """Write one line at once, so whoever follows the file sees whole lines only."""
        if self._file:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file beside its place and rename it, so it is never seen half-written."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _summarise(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Losses, and the median step time without the first steps, which compile."""
    settled = lines[len(lines) // 4 :]
    return {
        "steps": len(lines),
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "step_time": float(np.median([line["step_time"] for line in settled])),
        "tokens_per_s": float(np.median([line["tokens_per_s"] for line in settled])),
        **{
            key: float(np.mean([line[key] for line in settled]))
            for key in ("reorder_gain", "replan_ms")
            if key in lines[0]
        },
    }
