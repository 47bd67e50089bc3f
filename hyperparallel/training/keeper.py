"""Where a run begins, what it keeps, and when it must not go on: checkpoints around the training loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperparallel.cells.annotate_runner import AnnotateRunner
from hyperparallel.errors import CheckpointError, TrainingError
from hyperparallel.training.build import data_facts
from hyperparallel.training.checkpoint import Checkpoints, find_checkpoint, load_weights, restore
from hyperparallel.training.checkpoint_files import read_facts
from hyperparallel.training.config import Config
from hyperparallel.training.runners import AnyRunner
from hyperparallel.training.stored import find_weights

_logger = logging.getLogger(__name__)


def check_start(config: Config) -> None:
    """Find now whether `resume` or `init_from` can be read, before a rank starts.

    Raises:
        CheckpointError: there is nothing to read, or nothing left to train.
    """
    if config.init_from is not None:
        find_weights(config.init_from)
    if config.resume is not None:
        facts = read_facts(config.resume)
        _check_facts(config, facts, data_facts(config))
        if "data" not in facts:
            _logger.warning(
                f"resume = {config.resume!r} is of an earlier version, which did not note its data: whether section "
                "data is still the one that it was trained on is not checked"
            )


def _check_facts(config: Config, facts: dict[str, Any], data: dict[str, Any]) -> None:
    if facts["step"] >= config.training.steps:
        raise CheckpointError(
            f"resume = {config.resume!r} has done {facts['step']} steps, and training.steps is "
            f"{config.training.steps}: raise training.steps to go on"
        )
    if facts["seed"] != config.training.seed:
        raise CheckpointError(
            f"resume = {config.resume!r} was made with training.seed = {facts['seed']}, now it is "
            f"{config.training.seed}; set it to {facts['seed']}, as dropout goes on from it"
        )
    traced = config.run.trace_step
    if traced is not None and traced < facts["step"]:
        raise CheckpointError(
            f"run.trace_step = {traced} is before step {facts['step']}, the first after resume = {config.resume!r}; "
            f"give one from {facts['step']} to {config.training.steps - 1}"
        )
    if "data" in facts:
        _check_data(config.resume, facts["data"], data)


def _check_data(resume: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on in another stream of samples than the one that a checkpoint has a place in."""
    for key in (*before, *now):
        if key != "file" and before.get(key) != now.get(key):
            raise CheckpointError(
                f"resume = {resume!r} was trained on {_say_fact(key, before)}, now it is {_say_fact(key, now)}; go on "
                f"with the data that it has a place in, or begin anew with its weights: init_from={resume}"
            )


def _say_fact(key: str, data: Mapping[str, Any]) -> str:
    if key in ("lines", "digest") and "file" in data:
        return f"{data['file']!s:.200} ({data.get('lines')!s:.20} lines, digest {data.get('digest')!s:.20})"
    return f"data.{key:.100} = {data.get(key)!r:.200}{' (a check sum)' if key == 'tokenizer' else ''}"


class Keeper:
    """Put a runner where the run begins, and keep its checkpoints.

    Args:
        config: `resume`, `init_from`, `checkpoint`, `training.on_nonfinite`.
        runner: just built; every worker makes its Keeper.
        folder: of the run, on rank 0.

    Raises:
        CheckpointError: what the run is to start from cannot be read or does not fit.
    """

    def __init__(self, config: Config, runner: AnyRunner, folder: Path | None):
        self.config, self.runner = config, runner
        self.first_step, self.first_sample = 0, 0
        self._data = data_facts(config)
        before: Path | None = None  # the checkpoint that the run goes on from
        # MindSpore's pipeline engine (annotate) has its own way to keep parameters.
        self.keeps = not isinstance(runner, AnnotateRunner)
        if config.resume is not None:
            before = self._resume(config.resume)
        elif config.init_from is not None:
            load_weights(config.init_from, runner)
        if self.keeps:
            self._checkpoints = Checkpoints(folder, config.checkpoint.keep, runner.transport, before)

    @property
    def last(self) -> Path | None:
        """The newest checkpoint of the run, or the one that it went on from."""
        return self._checkpoints.last if self.keeps else None

    def _resume(self, path: str) -> Path:
        found = find_checkpoint(path)
        facts = restore(path, self.runner)
        _check_facts(self.config, facts, self._data)
        self.runner.scale.restore(*facts["loss_scale"])
        self.first_step = facts["step"]
        # With another batch size the data go on where they were, at a step that counts other samples.
        self.first_sample = facts["samples"] - self.first_step * self.config.training.batch_size
        return found

    def after_step(self, line: dict[str, Any], is_last: bool) -> None:
        """Refuse to go on from a step that is no number; save when it is time.

        Args:
            line: metrics of the step.
            is_last: whether no other step follows.

        Raises:
            TrainingError: loss or gradient is no finite number, and the configuration says to stop.
            CheckpointError: it cannot be saved.
        """
        step, every = line["step"], self.config.checkpoint.every
        if not line["updated"]:
            self._left_out(line)
        if self.keeps and (is_last or (every and (step + 1) % every == 0)):
            self._checkpoints.save(self.runner, self._facts(step + 1))

    def _facts(self, steps: int) -> dict[str, Any]:
        training = self.config.training
        return {
            "seed": training.seed,  # all randomness follows from it and the step: dropout is computed from keys
            "samples": self.first_sample + steps * training.batch_size,
            "data": self._data,
            "loss_scale": list(self.runner.scale.state()),
        }

    def _left_out(self, line: dict[str, Any]) -> None:
        loss, norm, step = line["loss"], line["grad_norm"], line["step"]
        scale = line.get("loss_scale", 1.0)
        if math.isfinite(loss) and scale > 1:
            return  # an overflow of float16, which lowered the factor; that is how the factor is found
        what = f"step {step}: the loss is {loss}, the gradient norm {norm}"
        if self.config.training.on_nonfinite == "skip":
            if self.runner.transport.rank == 0:
                _logger.warning(f"{what}; the step was left out (training.on_nonfinite: skip)")
            return
        good = (
            f"go on from the last good checkpoint with resume={self.last}"
            if self.last
            else "there is no checkpoint yet"
        )
        raise TrainingError(
            f"{what}, so the job stops; {good}. Lower training.lr, look at the data of this step, or leave such steps "
            "out with training.on_nonfinite: skip"
        )
