"""MindFormers' trainer with a rank's program in place of its pipeline (route `run: graph`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mindspore as ms
from mindformers.models.build_config import get_model_config
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore import nn

from hyperparallel.algebra import Plan
from hyperparallel.cells.graph_rank import RankGraph
from hyperparallel.cells.layer import model_spec
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.tensor_parallel import WHOLE
from hyperparallel.errors import ConfigError
from mindformers_patch.block import NAME
from mindformers_patch.block_trainer import BlockTrainer
from mindformers_patch.mllm import mllm_layers, transformer_config
from mindformers_patch.rank_step import RankNetwork, rank_step


@MindFormerRegister.register(MindFormerModuleType.TRAINER)
class RankTrainer(BlockTrainer):
    """Train by the block `hyperparallel:` of the configuration, which `prepare.prepare` has checked."""

    def training_process(self, config=None, **kwargs):
        """Train; see MindFormers' `BaseTrainer.training_process`."""
        self.join(config)
        # By the other spelling MindFormers takes parameters for those of its own inference, and writes a strategy file.
        config.parallel.parallel_mode = "stand_alone"
        return super().training_process(config=config, **kwargs)

    def create_network(self, default_args: dict | None = None) -> RankNetwork:
        """Build this worker's layers."""
        config = get_model_config(self.config.model, default_args={**(default_args or {}), **self.config.moe_config})
        text = transformer_config(config)
        eager = ms.get_context("device_target") == "CPU"
        topology, block = self.job.topology, self.job.block
        parallel = self.transport.tensor_parallel(topology) if topology.tensor_parallel > 1 else WHOLE
        layers = mllm_layers(config, text, parallel=parallel, eager=eager)
        plan = self.job.plan(model_spec(layers))
        graph = RankGraph(
            plan,
            layers,
            self.column_specs(),
            transport=self.transport,
            topology=topology,
            seed=self.config.seed or 0,
            recompute=recomputed(block.recompute, self.config.recompute_config, plan),
            wires=block.wires,
            sources=Path(block.sources) / f"rank_{self.transport.rank}" if block.sources else None,
            clip_norm=self.clip_norm(),
            scaled=True,
        )
        self.real_model = RankNetwork(graph, config, text)
        return self.real_model

    def create_model_wrapper(self, network: RankNetwork, optimizer: nn.Optimizer) -> nn.Cell:
        """Put this worker's program around its layers and the optimizer."""
        # With more, MindSpore would look for its own pipeline in the graph.
        ms.set_auto_parallel_context(pipeline_stages=1)
        rows = self.config.runner_config.mini_batch_size
        return rank_step(network, optimizer, self.names, rows, *self.loss_scale())

    def column_specs(self) -> dict[str, TensorSpec]:
        """Return shape and type of each column of a micro-batch, as the data set says."""
        rows = self.config.runner_config.mini_batch_size
        shapes, types = self.dataset.output_shapes(), self.dataset.output_types()
        if len(shapes) != len(self.names):
            raise ConfigError(
                f"train_dataset gives {len(shapes)} columns, construct_args_key names {len(self.names)}: "
                f"{', '.join(self.names)}; name as many as input_columns"
            )
        return {
            name: TensorSpec((rows, *shape[1:]), str(dtype))
            for name, shape, dtype in zip(self.names, shapes, types, strict=True)
        }


def recomputed(stages: Sequence[int] | str | None, settings, plan: Plan) -> tuple[int, ...]:
    """Return the stages whose forward runs again: the block's, or all if MindFormers' `recompute_config` says so.

    Raises:
        ConfigError: the plan has no such stage.
    """
    count = plan.placement.stages
    if stages is None:
        stages = "all" if getattr(settings, "recompute", False) else ()
    if stages == "all":
        return tuple(range(count))
    for stage in stages:
        if not 0 <= stage < count:
            raise ConfigError(f"{NAME}.recompute names stage {stage}; {plan.schedule} has the stages 0 to {count - 1}")
    return tuple(stages)
