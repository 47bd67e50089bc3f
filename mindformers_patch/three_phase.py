"""A step in three phases, each its own graph: encoder, MindFormers' own graph of the LLM, encoder backward and update.

No bubble of the pipeline is filled: all workers encode before the pipeline starts, and wait for it before the encoder's
backward. It is for models that need MindFormers' own semi-automatic parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore as ms
from mindspore import Parameter, nn

from hyperparallel.algebra import parse
from hyperparallel.errors import ConfigError
from mindformers_patch.block import NAME, Job
from mindformers_patch.three_phase_encoder import Encode, EncodeBack
from mindformers_patch.three_phase_llm import LlmPhase
from mindformers_patch.three_phase_update import Update

SCHEDULE = "transpose(vision) >> 1f1b(llm)"
"""The schedule that comes closest to what this route does, and the only one it takes."""


def check_job(config: Mapping[str, Any], job: Job) -> None:
    """Refuse what this route cannot run.

    Args:
        config: a prepared MindFormerConfig.
        job: its block and layout.

    Raises:
        ConfigError: one sentence with the fix.
    """
    block, layout = job.block, job.topology
    if str(parse(block.schedule)) != SCHEDULE:
        raise ConfigError(
            f"{NAME}.schedule is {block.schedule!r}; {NAME}.run three_phase has no order of its own, MindFormers' pipeline "
            f"has: write {SCHEDULE!r}, or set run: graph"
        )
    runner, parallel = config.get("runner_config") or {}, config.get("parallel") or {}
    if runner.get("sink_mode"):
        raise ConfigError(
            f"runner_config.sink_mode is True; {NAME}.run three_phase runs several graphs a step, which the device cannot "
            "chain by itself: set sink_mode: False"
        )
    if int(runner.get("gradient_accumulation_steps") or 1) > 1:
        raise ConfigError(
            f"runner_config.gradient_accumulation_steps is {runner['gradient_accumulation_steps']}; {NAME}.run "
            "three_phase has 1 only: raise micro_batches"
        )
    if layout.ranks == 1 and block.micro_batches > 1:
        raise ConfigError(
            f"{NAME}.micro_batches is {block.micro_batches} with pipeline_stage 1, where MindFormers has no "
            "micro-batches: set micro_batches: 1 and raise runner_config.batch_size"
        )
    if block.micro_batches < layout.ranks:
        raise ConfigError(
            f"{NAME}.micro_batches is {block.micro_batches} with pipeline_stage {layout.ranks}; MindSpore's pipeline "
            f"needs at least as many micro-batches as stages: set micro_batches: {layout.ranks} or more"
        )
    if parallel.get("enable_parallel_optimizer"):
        raise ConfigError(
            f"parallel.enable_parallel_optimizer is True; {NAME}.run three_phase updates whole slices of parameters: set "
            "enable_parallel_optimizer: False"
        )
    scheduler = (parallel.get("pipeline_config") or {}).get("pipeline_scheduler", "1f1b")
    if scheduler != "1f1b":
        raise ConfigError(
            f"parallel.pipeline_config.pipeline_scheduler is {scheduler}; the schedule says 1f1b: leave it out or set 1f1b"
        )
    for key in ("recompute", "sources"):
        if getattr(block, key) is not None:
            raise ConfigError(
                f"{NAME}.{key} is for run graph; leave it out, and use MindFormers' recompute_config for the LLM"
            )
    _check_cpu(config, job)


def _check_cpu(config: Mapping[str, Any], job: Job) -> None:
    """Refuse layouts that a trial without devices cannot stand in for."""
    if not on_cpu(config):
        return
    if job.topology.data_parallel > 1:
        raise ConfigError(
            f"parallel_config.data_parallel is {job.topology.data_parallel}; on a CPU MindFormers' parallelism does not run "
            f"and {NAME}.run three_phase tries the encoder's with data_parallel 1 only"
        )


def on_cpu(config: Mapping[str, Any]) -> bool:
    """Tell whether a job runs on CPUs, where MindFormers' parallel modes do not: then each worker has the whole LLM."""
    return (config.get("context") or {}).get("device_target") == "CPU"


def adapt(config: MutableMapping[str, Any], job: Job) -> None:
    """Put our settings into a configuration, before MindFormers builds its context from it.

    Args:
        config: changed in place.
        job: its block and layout.
    """
    if not config.get("parallel"):
        config["parallel"] = type(config)()
    parallel = config["parallel"]
    parallel["full_batch"] = False
    if on_cpu(config):
        parallel["parallel_mode"] = "STAND_ALONE"
        return
    # Of the batch as it is read; the inputs of the LLM's graph have their own, see `input_strategy`.
    parallel["dataset_strategy"] = [[job.topology.data_parallel, 1]]
    config["parallel_config"]["micro_batch_num"] = job.block.micro_batches


@contextmanager
def alone() -> Iterator[None]:
    """Compile and run graphs without MindSpore's automatic parallelism; what they exchange is written in them."""
    names = ("parallel_mode", "pipeline_stages")
    before = {name: ms.get_auto_parallel_context(name) for name in names}
    ms.set_auto_parallel_context(parallel_mode="stand_alone", pipeline_stages=1)
    try:
        yield
    finally:
        ms.set_auto_parallel_context(**before)


class ThreePhaseStep(nn.Cell):
    """A training step of a worker. It is a Cell for MindFormers' sake and no graph itself: its phases are.

    Args:
        encode: phase 1.
        llm: phase 2.
        back: phase 3; None for a frozen encoder.
        update: after them.
        names: columns of the batch in the order in which they come.
        kept: parameters that this worker holds, to save and to load.
    """

    def __init__(
        self,
        encode: Encode,
        llm: LlmPhase,
        back: EncodeBack | None,
        update: Update,
        names: Sequence[str],
        kept: Sequence[Parameter],
    ) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer, self.scale_sense = update.optimizer, llm.scale
        # In a tuple they are no children, so parameters of other workers' stages are not saved from here.
        self.phases = (encode, llm, back, update)
        self.names = list(names)
        for parameter in kept:
            self.insert_param_to_cell(parameter.name, parameter, check_name_contain_dot=False)
        self.nothing = ms.Tensor([0.0], ms.float32)
        self.set_train(True)

    def set_train(self, mode: bool = True) -> ThreePhaseStep:
        """Set the phases to training, which is all they do."""
        super().set_train(mode)
        for phase in self.phases:
            if phase is not None:
                phase.set_train(mode)
        return self

    def __call__(self, *batch):
        """Run a step.

        Args:
            batch: columns of all M micro-batches of this replica, one below the other.

        Returns:
            Loss, overflow, loss scale, learning rate, global norm: as MindFormers' own wrappers.
        """
        encode, llm, back, update = self.phases
        ids, labels, pixels = self.columns(batch)
        with alone():
            placed = encode(ids, pixels)
        loss, norm, factor, gradient, of_llm = llm(ids, labels, *placed)
        with alone():
            square, of_encoder = (self.nothing, ()) if back is None else back(pixels, gradient, self.scale(), factor)
            return update(loss, norm, factor, square, of_llm, of_encoder)

    def scale(self) -> ms.Tensor:
        """Return the loss scale of this step."""
        return ms.Tensor(self.scale_sense.asnumpy())

    def columns(self, batch: Sequence[ms.Tensor]) -> list[ms.Tensor]:
        """Return token ids, labels and images."""
        return [batch[self.names.index(name)] for name in ("input_ids", "labels", "pixel_values")]

    def compile(self, *batch) -> None:
        """Compile all graphs for a batch, and run none."""
        encode, llm, back, update = self.phases
        ids, labels, pixels = self.columns(batch)
        features, rows, keep = feature_inputs(encode, ids, pixels)
        llm.compile(ids, labels, features, rows, keep)
        one, scale = ms.Tensor([1.0], ms.float32), ms.Tensor(1.0, ms.float32)
        of_llm = () if llm.sums is not None else tuple(ms.Tensor(p.asnumpy()) for p in llm.weights)
        of_encoder = () if back is None else tuple(ms.Tensor(p.asnumpy()) for p in back.weights)
        with alone():
            encode.compile(ids, pixels)
            if back is not None:
                back.compile(pixels, features, scale, one)
            update.compile(one, one, one, one, of_llm, of_encoder)


def feature_inputs(encode: Encode, ids: ms.Tensor, pixels: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor, ms.Tensor]:
    """Return zeros like the outputs of phase 1 for a batch."""
    rows, length = ids.shape
    width, dtype = encode.width, encode.dtype
    return (
        ms.ops.zeros((rows, 1 + pixels.shape[1] * encode.tokens, width), dtype),
        ms.ops.zeros((rows, length), ms.int32),
        ms.ops.zeros((rows, length, 1), ms.float32),
    )
