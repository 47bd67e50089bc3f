"""Steps that must change nothing: what two ranks saw when gradients did not fit into float16, or were no numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cells_case import SEED, SETTINGS, STEPS, TRANSPOSE, Case, layers_of, plan_of
from cells_record import own_columns
from graph_case import columns_of, static_batch

from hyperparallel import Runner, Transport
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.loss_scale import LossScale

CASE = Case(TRANSPOSE, 2)
TOO_LARGE = 2.0**23  # of the gradients of a mean over 60 tokens, far more than 65504
WINDOW = 2  # steps without overflow after which the factor doubles
BROKEN = 1  # the step whose images hold a NaN

Make = Callable[[Transport, str, LossScale], Runner | GraphRunner]


def stepwise_runner(transport: Transport, dtype: str, scale: LossScale) -> Runner:
    """Make a stepwise runner of the case."""
    layers = layers_of(CASE)
    settings = {"transport": transport, "optimizer": SETTINGS, "seed": SEED}
    return Runner(plan_of(CASE, layers), layers, **settings, dtype=dtype, scale=scale)


def graph_runner(transport: Transport, dtype: str, scale: LossScale) -> GraphRunner:
    """Make a graph runner of the case, which leaves steps out."""
    layers = layers_of(CASE)
    settings = {"transport": transport, "optimizer": SETTINGS, "seed": SEED, "wires": "pair_sum", "skips": True}
    return GraphRunner(plan_of(CASE, layers), layers, columns_of(CASE), **settings, dtype=dtype, scale=scale)


def overflow(make: Make, transport: Transport) -> list[dict[str, Any]]:
    """Train in float16 with a factor that is too large at first; say what each step did."""
    scale = LossScale(TOO_LARGE, WINDOW)
    runner = make(transport, "float16", scale)
    return [_step(runner, step % STEPS, scale) for step in range(16)]


def not_a_number(make: Make, transport: Transport) -> dict[str, list[dict[str, Any]]]:
    """Train with a step of broken images, and without that step."""
    broken = make(transport, "float32", LossScale())
    seen = {"with": [_step(broken, step, broken.scale, breaks=step == BROKEN) for step in range(STEPS)]}
    # Made after the other is through, as runners may share their compiled stages in tests.
    clean = make(transport, "float32", LossScale())
    return {**seen, "without": [_step(clean, step, clean.scale) for step in range(STEPS) if step != BROKEN]}


def _step(runner: Runner | GraphRunner, step: int, scale: LossScale, breaks: bool = False) -> dict[str, Any]:
    batch = static_batch(step, CASE, 0)
    if breaks:
        batch[1]["pixel_values"][0] = np.nan  # micro-batch 1 has an image, which rank 1 encodes
    before, factor = _state(runner), scale.value
    result = runner.step(own_columns(runner, batch))
    after = _state(runner)
    return {
        "loss": result.loss,
        "norm": result.grad_norm,
        "updated": result.updated,
        "scale": [factor, scale.value],
        "kept": all(np.array_equal(one, other) for one, other in zip(before, after, strict=True)),
    }


def _state(runner: Runner | GraphRunner) -> list[np.ndarray]:
    """Copy parameters and moments."""
    of_graph = isinstance(runner, GraphRunner)
    moments = runner.update.moments() if of_graph else runner.optimizer.moments()
    return [*runner.parameters().values(), *(moment.asnumpy().copy() for pair in moments for moment in pair)]
