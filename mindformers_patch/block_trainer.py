"""What the trainers of both routes do alike around MindFormers' own: the job, its data, its loss scale and clipping."""

from __future__ import annotations

from collections.abc import Sequence

from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindformers.trainer.causal_language_modeling import CausalLanguageModelingTrainer
from mindspore import nn
from mindspore.communication import get_group_size, get_rank

from hyperparallel.cells.transport import Transport
from mindformers_patch.block import Job


class BlockTrainer(CausalLanguageModelingTrainer):
    """Train by the block `hyperparallel:` of the configuration, which `prepare.prepare` has checked."""

    def join(self, config) -> None:
        """Read the job from a configuration, and take this worker's place in it; before anything is built."""
        self.job = Job.of(config)
        workers = self.job.topology.workers
        self.transport = Transport(get_rank(), get_group_size()) if workers > 1 else Transport()
        columns = config.train_dataset
        self.names: Sequence[str] = list(columns.get("construct_args_key") or columns.get("input_columns"))

    def _check_global_batch_size_for_auto_parallel(self) -> None:
        """Read `runner_config.batch_size` as MindFormers does in a pipeline: texts of a micro-batch of a replica."""
        runner = self.config.runner_config
        if "mini_batch_size" not in runner:  # MindFormers comes here several times
            runner.mini_batch_size = runner.batch_size
        runner.batch_size = runner.mini_batch_size * self.job.block.micro_batches
        self.global_batch_size = runner.batch_size * self.job.topology.data_parallel
        runner.global_batch_size = self.global_batch_size

    def create_train_dataset(self, default_args: dict | None = None):
        """Build the data set of this worker's replica; all workers of a replica read the same texts."""
        _, replica, _ = self.transport.place(self.job.topology)
        for part in (self.config.train_dataset, self.config.train_dataset_task.dataset_config):
            part.data_loader.replicas, part.data_loader.replica = self.job.topology.data_parallel, replica
            part.batch_size = self.config.runner_config.batch_size
        self.dataset = super().create_train_dataset(default_args)
        return self.dataset

    def create_network_without_param_init(self, default_args: dict | None = None) -> nn.Cell:
        """Build it with values all the same: parts and copies of parameters are made from these."""
        return self.create_network(default_args)

    def warp_data_order_with_tool_cells(self, network, construct_args_key):
        """Leave the network as it is; the step picks columns by name."""
        return network

    def wrap_network_with_tool_cells(self, network):
        """Leave it as it is: micro-batches are a matter of the step."""
        return network

    def clip_norm(self) -> float:
        """Return the largest global gradient norm of `runner_wrapper`; 0 turns clipping off."""
        wrapper = self.config.runner_wrapper
        return float(wrapper.get("max_grad_norm", 1.0)) if wrapper.get("use_clip_grad", True) else 0.0

    def loss_scale(self) -> tuple[float, nn.Cell | None]:
        """Return the first loss scale of `runner_wrapper`, and the Cell that adapts it, if one does."""
        scale = self.config.runner_wrapper.get("scale_sense", 1.0)
        if not isinstance(scale, dict):
            return float(scale), None
        manager = MindFormerRegister.get_instance_from_cfg(scale, MindFormerModuleType.WRAPPER)
        return float(manager.get_loss_scale()), manager
