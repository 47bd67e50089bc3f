"""MindFormers' trainer with three phases in place of its wrapper (route `run: three_phase`)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import mindspore as ms
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore import Parameter, Tensor, nn

from hyperparallel.cells.layer import Layer, build_layer
from mindformers_patch.block_trainer import BlockTrainer
from mindformers_patch.mllm import vision_config
from mindformers_patch.named_layer import freeze
from mindformers_patch.three_phase import Held, ThreePhaseStep, alone, feature_inputs
from mindformers_patch.three_phase_config import adapt, check_job, on_cpu
from mindformers_patch.three_phase_encoder import Encode, EncodeBack, Encoder, Share
from mindformers_patch.three_phase_llm import SUMS, LlmPhase, input_strategy
from mindformers_patch.three_phase_models import by_features
from mindformers_patch.three_phase_update import Update
from mindformers_patch.vision import vision


@MindFormerRegister.register(MindFormerModuleType.TRAINER)
class ThreePhaseTrainer(BlockTrainer):
    """Train by the block `hyperparallel:` of the configuration, which `prepare.prepare` has checked."""

    def training_process(self, config=None, **kwargs):
        """Train; see MindFormers' `BaseTrainer.training_process`."""
        self.join(config)
        check_job(config, self.job)
        self.cpu = on_cpu(config)
        adapt(config, self.job)
        if self.cpu:
            config.parallel.parallel_mode = "stand_alone"
            ms.set_auto_parallel_context(parallel_mode="stand_alone", pipeline_stages=1, full_batch=False)
        config.print_separate_loss = False
        return super().training_process(config=config, **kwargs)

    def _check_global_batch_size_for_auto_parallel(self) -> None:
        """Read `runner_config.batch_size` as MindFormers does in a pipeline: texts of a micro-batch of a replica."""
        super()._check_global_batch_size_for_auto_parallel()
        parallel = self.config.parallel_config
        if self.cpu:  # each worker has the whole LLM
            for key in ("data_parallel", "model_parallel", "context_parallel", "expert_parallel", "pipeline_stage"):
                setattr(parallel, key, 1)
            parallel.micro_batch_num = 1
            parallel.use_seq_parallel = False
        else:
            parallel.micro_batch_num = self.job.block.micro_batches

    def create_network(self, default_args: dict | None = None) -> nn.Cell:
        """Build the model; its LLM takes features, and its encoder starts equal on all workers."""
        self.config.model.model_config.architectures = [by_features(self.config.model.model_config)]
        network = super().create_network(default_args)
        config, text = network.config, network.transformer_config
        layers = freeze_known(vision(vision_config(config), text.hidden_size, text.compute_dtype), config.freeze)
        with alone():
            network.vision = nn.CellList(
                [build_layer(layer, self.config.seed or 0) for layer in layers], auto_prefix=False
            )
        return network

    def wrap_eval_network_with_tool_cells(self, network):
        """Leave it as it is."""
        return network

    def create_optimizer_scheduler(self, network, model_params) -> nn.Optimizer:
        """Build the phases, compile the LLM's to learn what this worker holds, and build an optimizer for that."""
        self.build_phases(network)
        self.held = Held(network, [*self.llm_parameters, *self.encoder.get_parameters()])
        with alone():
            return super().create_optimizer_scheduler(self.held, model_params)

    def create_optimizer_scheduler_without_param_init(self, network, model_params) -> nn.Optimizer:
        """Build it with values all the same."""
        return self.create_optimizer_scheduler(network, model_params)

    def build_phases(self, network) -> None:
        """Make phases 1 to 3."""
        config, text, layout = network.config, network.transformer_config, self.job.topology
        first, self.manager = self.loss_scale()
        scale = Parameter(Tensor(first, ms.float32), name="scale_sense", requires_grad=False)
        share = self.share()
        self.encoder = Encoder(list(network.vision))
        sizes = vision_config(config)
        self.encode = Encode(
            self.encoder,
            share,
            config.image_token_id,
            tokens=sizes.tokens_per_image,
            width=text.hidden_size,
            dtype=text.compute_dtype,
        )
        self.back = EncodeBack(self.encoder, share, scale) if self.encoder.trainable_params() else None
        # With several stages, the number of labels is known in the last one only.
        across = layout.ranks > 1 and not self.cpu
        chain = tuple(
            layout.worker(stage, *layout.coordinates(self.transport.rank)[1:]) for stage in range(layout.ranks)
        )
        self.llm = LlmPhase(
            network.model,
            scale,
            micro_batches=self.job.block.micro_batches,
            stages=1 if self.cpu else layout.ranks,
            sharded=not self.cpu,
            per_token=bool(getattr(self.config, "calculate_per_token_loss", False)),
            group=self.transport.group(chain) if across else None,
        )
        self.llm.set_train(True)
        self.llm_parameters = self.compile_llm(network.model)

    def share(self) -> Share:
        """Return which images this worker encodes: those of a replica are shared by its P x T workers."""
        layout, rank = self.job.topology, self.transport.rank
        if layout.workers == 1:
            return Share()
        _, replica, _ = layout.coordinates(rank)
        together = tuple(w for w in range(layout.workers) if layout.coordinates(w)[1] == replica)
        everyone = tuple(range(layout.workers))
        return Share(
            size=len(together),
            index=together.index(rank),
            group=self.transport.group(together) if len(together) > 1 else None,
            copies=len(together) if self.cpu else 1,
            gives=self.cpu or layout.coordinates(rank)[0] == 0,
            job=self.transport.group(everyone),
            cpu=self.cpu,
        )

    def compile_llm(self, model: nn.Cell) -> list[Parameter]:
        """Compile phase 2; return the parameters of the LLM that this worker holds, cut to its slices."""
        if not self.cpu:
            ms.set_auto_parallel_context(
                full_batch=False, dataset_strategy=input_strategy(self.job.topology.data_parallel)
            )
        shapes = dict(zip(self.names, self.dataset.output_shapes(), strict=True))
        ids = ms.ops.zeros(tuple(shapes["input_ids"]), ms.int32)
        pixels = ms.ops.zeros(tuple(shapes["pixel_values"]), ms.float32)
        with alone():
            inputs = feature_inputs(self.encode, ids, pixels)
        self.llm.compile(ids, ids, *inputs)
        return [one for one in model.get_parameters() if self.cpu or one.sliced]

    def create_model_wrapper(self, network, optimizer: nn.Optimizer) -> ThreePhaseStep:
        """Put the phases and the update together."""
        held = {one.name for one in self.llm_parameters}
        sums = None
        weights = [one for one in self.llm.weights if one.name in held]
        if self.llm.sums is not None:
            sums = [one for one in self.llm.sums if one.name.removeprefix(f"{SUMS}.") in held]
        of_encoder = [] if self.back is None else list(self.back.weights)
        update = Update(
            optimizer,
            [one.name for one in weights],
            [one.name for one in of_encoder],
            sums=sums,
            scale=self.llm.scale,
            manager=self.manager,
            clip=self.clip_norm(),
        )
        for one in (*self.held.get_parameters(), *optimizer.get_parameters()):
            one.sliced = True  # else MindSpore's checkpoints leave it out in its parallel modes
        step = ThreePhaseStep(self.encode, self.llm, self.back, update, self.names, self.held)
        if not self.cpu:
            step.parameter_layout_dict = self.llm.parameter_layout_dict
        return step


def freeze_known(layers: Sequence[Layer], patterns: Sequence[str]) -> list[Layer]:
    """Freeze the encoder's layers by those patterns that are meant for them."""
    names = [name for layer in layers for name in layer.parameters.values()]
    return freeze(layers, [one for one in patterns if any(fnmatchcase(name, one) for name in names)])
