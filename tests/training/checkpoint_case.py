"""What the tests of checkpoints share: a runner of a model of three tiny layers, in one process."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "cells"))

from cells_tiny import tiny_batch, tiny_layers  # noqa: E402

from hyperparallel import AdamW, Runner, derive, model_spec  # noqa: E402
from hyperparallel.cells.state import state_of  # noqa: E402

FACTS = {"seed": 1, "samples": 24, "loss_scale": [1.0, 0]}


def tiny_runner(schedule: str = "1f1b(stem+net)", seed: int = 1, frozen: tuple[str, ...] = ()) -> Runner:
    """Build a runner; the seed is of its first weights."""
    layers = tiny_layers(frozen=frozen)
    settings = AdamW(lr=0.05, weight_decay=0.1)
    return Runner(derive(schedule, model_spec(layers), 1, 4), layers, optimizer=settings, seed=seed, jit=False)


def train(runner: Runner, first: int, last: int) -> list[float]:
    """Run some steps, each with a batch of its own; return the losses."""
    return [runner.step(tiny_batch(seed=step)).loss for step in range(first, last)]


def values(runner: Runner) -> dict[str, np.ndarray]:
    """Return the state by name, as copies."""
    return {one.name: one.copies[0].asnumpy().copy() for one in state_of(runner)}
