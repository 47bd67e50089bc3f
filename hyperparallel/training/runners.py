"""Choose and build the runner that a configuration asks for; refuse what the device cannot do, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms

from hyperparallel.algebra import Plan
from hyperparallel.cells.annotate import check_annotate, check_net
from hyperparallel.cells.annotate_runner import AnnotateRunner
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.loss_scale import LossScale
from hyperparallel.cells.stepwise import Runner
from hyperparallel.cells.transport import Transport
from hyperparallel.errors import ConfigError
from hyperparallel.planner import Planned
from hyperparallel.training.build import (
    build_feed,
    build_layers,
    build_optimizer,
    column_specs,
    label_count,
)
from hyperparallel.training.config import Config
from hyperparallel.training.planning import plan_job

AnyRunner = Runner | GraphRunner | AnnotateRunner


def check(config: Config) -> Planned:
    """Find now all mistakes that can be known before a rank starts, so nobody reads them in the logs of the ranks.

    Raises:
        HyperParallelError: schedule, model, data, layout and device do not fit each other.

    Returns:
        The plan that is to run.
    """
    build_feed(config, "train")
    layers = build_layers(config)
    planned = plan_job(config, layers)
    check_runner(config, planned.plan)
    if config.run.mode == "annotate":
        check_net(planned.plan, layers, column_specs(config), config.parallel.topology)
    return planned


def build_runner(config: Config, plan: Plan, layers: Sequence[Layer], transport: Transport) -> AnyRunner:
    """Build this worker's runner.

    Args:
        config: `run.mode` names the runner.
        plan: what it runs.
        layers: listed for this worker's shard.
        transport: the job.

    Raises:
        ConfigError: the device or the plan does not fit the runner.
    """
    check_runner(config, plan)
    if config.run.mode == "stepwise":
        return Runner(
            plan,
            layers,
            transport=transport,
            data_parallel=config.parallel.data_parallel,
            tensor_parallel=config.parallel.tensor_parallel,
            optimizer=build_optimizer(config),
            seed=config.training.seed,
            jit=config.run.jit,
            dtype=config.run.dtype,
            recompute=recomputed(config, plan),
            scale=_loss_scale(config),
        )
    ms.set_context(mode=ms.GRAPH_MODE)
    settings = {
        "transport": transport,
        "topology": config.parallel.topology,
        "optimizer": build_optimizer(config),
        "seed": config.training.seed,
    }
    if config.run.mode == "annotate":
        return AnnotateRunner(plan, layers, column_specs(config), weigh=label_count, **settings)
    return GraphRunner(
        plan,
        layers,
        column_specs(config),
        **settings,
        dtype=config.run.dtype,
        recompute=recomputed(config, plan),
        wires=config.run.wires,
        scale=_loss_scale(config),
        skips=config.training.on_nonfinite == "skip",
    )


def _loss_scale(config: Config) -> LossScale:
    """Return the factor on the loss; of types with the range of float32 it stays 1."""
    value = config.training.loss_scale if config.run.dtype == "float16" else 1.0
    return LossScale(value, config.training.loss_scale_window)


def recomputed(config: Config, plan: Plan) -> tuple[int, ...]:
    """Return the stages of `run.recompute`.

    Raises:
        ConfigError: the plan has no such stage.
    """
    stages = plan.placement.stages
    found = config.run.recomputed(stages)
    for stage in found:
        if not 0 <= stage < stages:
            raise ConfigError(
                f"run.recompute names stage {stage}; {plan.schedule} on {plan.ranks} ranks has the stages "
                f"0 to {stages - 1} (hyperparallel plan shows what each is)"
            )
    return found


def check_runner(config: Config, plan: Plan, device: str | None = None) -> None:
    """Refuse a runner that cannot run this plan on this device.

    Args:
        config: `run.mode`, `run.dtype`, `run.recompute`, `run.wires`.
        plan: what is to run.
        device: "CPU" or "Ascend"; default: what MindSpore found on this machine.

    Raises:
        ConfigError: says what cannot be done here, why, and what can.
    """
    run, device = config.run, device or ms.get_context("device_target")
    workers = config.parallel.topology.workers
    recomputed(config, plan)
    _check_steps(config, plan)
    if run.mode == "annotate":
        _check_annotated(config, plan, device)
    if run.mode == "stepwise":
        if run.dtype == "bfloat16":
            raise ConfigError(
                "run.dtype: bfloat16 needs run.mode: graph on Ascend; stepwise hands tensors over as numpy arrays, "
                "which have no such type: use float16 or float32"
            )
        if run.dtype != "float32" and not run.jit:
            raise ConfigError(
                f"run.dtype: {run.dtype} needs run.jit: true; op by op MindSpore would compute the loss in it too"
            )
        return
    if config.training.accumulate > 1:
        passes, count = config.training.accumulate, config.training.micro_batches
        raise ConfigError(
            f"training.accumulate = {passes} needs run.mode: stepwise; a graph ({run.mode}) is a whole step: set "
            f"training.micro_batches to {passes * count} and leave accumulate out, which gives the same numbers"
        )
    if run.trace_step is not None:
        raise ConfigError(
            f"run.trace_step needs run.mode: stepwise; a graph ({run.mode}) has no Python between its actions to read "
            "the clock. On Ascend use MindSpore's profiler"
        )
    if run.mode == "graph" and device == "CPU" and run.wires == "native" and workers > 1:
        raise ConfigError(
            "run.mode: graph sends with Send and Receive, which have no CPU kernel, and this machine has no Ascend; "
            "use run.mode: stepwise here, hyperparallel dryrun to compile it for Ascend, or run.wires: pair_sum to "
            "test the graph on CPU"
        )
    if run.dtype == "bfloat16" and device == "CPU":
        raise ConfigError("run.dtype: bfloat16 has no CPU kernels; use float16 or float32 here")


def _check_steps(config: Config, plan: Plan) -> None:
    """Refuse what cannot change from step to step."""
    section, mode = config.planner, config.run.mode
    if section.replan == "step" and mode != "stepwise":
        raise ConfigError(
            f"planner.replan: step needs run.mode: stepwise; {mode} compiles a graph for one plan. Leave it out: "
            "split=4 in the schedule evens images out while the plan stays"
        )
    if section.replan == "step" and ("place", "fill") not in plan.schedule.regions[0].options:
        raise ConfigError(
            f"planner.replan: step plans encodes again, but {plan.schedule} does not leave their places open; "
            "write place=fill, or leave planner.replan out"
        )
    if section.reorder and mode == "annotate":
        raise ConfigError("planner.reorder needs run.mode: stepwise or graph; with annotate MindSpore cuts the batch")


def _check_annotated(config: Config, plan: Plan, device: str) -> None:
    """Refuse what MindSpore's engine cannot do."""
    check_annotate(plan)
    run, model = config.run, config.model
    dropout = max(model.llm.dropout, model.vision.dropout if model.vision else 0.0)
    for key, value, default in (
        ("run.dtype", run.dtype, "float32"),
        ("run.recompute", run.recompute, ()),
        ("checkpoint.every", config.checkpoint.every, 0),
        ("resume", config.resume, None),
        ("init_from", config.init_from, None),
        ("training.on_nonfinite", config.training.on_nonfinite, "stop"),
        ("model dropout", dropout, 0.0),
    ):
        if value != default:
            raise ConfigError(f"{key} = {value!r} needs run.mode: graph or stepwise; annotate does not have it")
    if config.evaluation.samples:
        raise ConfigError(
            f"evaluation.samples = {config.evaluation.samples} needs run.mode: graph or stepwise; annotate only "
            "trains: set it to 0"
        )
    if device == "CPU":
        raise ConfigError(
            "run.mode: annotate hands the order to MindSpore's pipeline engine, whose messages have no CPU kernel; "
            "use run.mode: stepwise here, and hyperparallel dryrun to compile it for Ascend"
        )
