"""What a rank runs step by step: the batch, and what differs from step to step.

That is the order of the micro-batches, and with `replan=step` the plan. Both follow from the sizes of the step's
micro-batches, which every rank of a pipeline knows, so nothing is sent. The work is done on a thread, beside the step
before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from hyperparallel.algebra import Plan
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.step_result import read_by
from hyperparallel.cells.stepwise import Runner
from hyperparallel.data import StepFeed
from hyperparallel.data.feed import StepData
from hyperparallel.planner.limits import parse_limit
from hyperparallel.planner.reorder import reorder
from hyperparallel.planner.step import replan
from hyperparallel.training import costs
from hyperparallel.training.config import Config
from hyperparallel.training.runners import AnyRunner

MicroBatches = list[dict[str, np.ndarray]]


def batches(runner: AnyRunner, feed: StepFeed, first_step: int, last_step: int) -> Iterator[MicroBatches]:
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


class Step(NamedTuple):
    """What a rank runs in one step.

    Args:
        plan: the step's own, None for the job's.
        batch: M micro-batches with the columns that this rank reads.
        metrics: what deciding it took and gains.
        order: number in the data of the micro-batch in each place; None where they come in order.
    """

    plan: Plan | None
    batch: MicroBatches
    metrics: dict[str, Any]
    order: tuple[int, ...] | None


class Steps:
    """Decide, step by step, order and plan of one pipeline's micro-batches.

    Args:
        config: `planner.reorder`, `planner.replan`.
        plan: the job's.
        layers: the model.
        feed: data of this replica.
    """

    def __init__(self, config: Config, plan: Plan, layers: Sequence[Layer], feed: StepFeed):
        self._config, self._plan, self._layers, self._source = config, plan, layers, feed
        self._price = costs.prices(config, layers)
        limit = config.planner.memory_limit
        self._live_limit = None if limit is None else parse_limit(limit).encodes
        self._orders: dict[int, tuple[int, ...]] = {}
        self.gains: dict[int, float] = {}
        self.feed = feed.ordered(self.order) if config.planner.reorder else feed

    def order(self, step: int) -> tuple[int, ...]:
        """Return which micro-batch of the data goes in each place of a step, and note what it gains."""
        if step not in self._orders:
            if len(self._orders) > 64:  # steps come one after the other; what is behind is not asked for again
                self._orders.clear()
            found = reorder(self._plan, self._costs(self._source, step), self._config.planner.seed)
            self._orders[step] = found.order
            self.gains[step] = 1 - found.after / found.before if found.before else 0.0
        return self._orders[step]

    def plan(self, step: int) -> Plan:
        """Plan a step for its own micro-batches."""
        return replan(self._plan, self._costs(self.feed, step), self._live_limit)

    def _costs(self, feed: StepFeed, step: int) -> costs.Costs:
        return costs.estimate_costs(self._config, self._plan, self._layers, feed.describe(step), self._price)

    def stream(self, runner: Runner, first: int, last: int) -> Iterator[Step]:
        """Yield what a rank runs, made ahead on a thread.

        Args:
            runner: of this rank.
            first: first step.
            last: one past the last step.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            ahead = pool.submit(self._make, runner, first) if first < last else None
            for step in range(first, last):
                assert ahead is not None, "a step was not asked for"
                with self.feed.loads.waiting(step):
                    ready = ahead.result()
                ahead = pool.submit(self._make, runner, step + 1) if step + 1 < last else None
                yield ready

    def _make(self, runner: Runner, step: int) -> Step:
        metrics: dict[str, Any] = {}
        plan, requests, order = None, runner.requests, None
        if self._config.planner.reorder:
            order = self.order(step)
            metrics["reorder_gain"] = round(self.gains.pop(step), 4)
        if self._config.planner.replan == "step":
            start = time.perf_counter()
            plan = self.plan(step)
            metrics["replan_ms"] = round(1e3 * (time.perf_counter() - start), 3)
            requests = read_by(runner.slabs, plan.programs[runner.rank])
        batch: MicroBatches = [{} for _ in range(self._plan.micro_batches)]
        for mb, columns in self.feed.load(step, requests).items():
            batch[mb] = columns
        return Step(plan, batch, metrics, order)
