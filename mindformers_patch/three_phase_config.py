"""What the route `run: three_phase` takes, and what it changes in a configuration. Imports nothing of MindFormers."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from hyperparallel.algebra import parse
from hyperparallel.errors import ConfigError
from mindformers_patch.block import NAME, Job

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
    block = job.block
    if str(parse(block.schedule)) != SCHEDULE:
        raise ConfigError(
            f"{NAME}.schedule is {block.schedule!r}; {NAME}.run three_phase has no order of its own, MindFormers' "
            f"pipeline has: write {SCHEDULE!r}, or set run: graph"
        )
    runner, parallel = config.get("runner_config") or {}, config.get("parallel") or {}
    if int(runner.get("gradient_accumulation_steps") or 1) > 1:
        raise ConfigError(
            f"runner_config.gradient_accumulation_steps is {runner['gradient_accumulation_steps']}; {NAME}.run "
            "three_phase has 1 only: raise micro_batches"
        )
    _check_micro_batches(config, job)
    if parallel.get("enable_parallel_optimizer"):
        raise ConfigError(
            f"parallel.enable_parallel_optimizer is True; {NAME}.run three_phase updates whole slices of parameters: "
            "set enable_parallel_optimizer: False"
        )
    if parallel.get("gradients_mean"):
        raise ConfigError(
            f"parallel.gradients_mean is True; losses are means already, and {NAME}.run three_phase sums gradients "
            "over workers as MindFormers' own configurations do: set gradients_mean: False"
        )
    scheduler = (parallel.get("pipeline_config") or {}).get("pipeline_scheduler", "1f1b")
    if scheduler != "1f1b":
        raise ConfigError(
            f"parallel.pipeline_config.pipeline_scheduler is {scheduler}; the schedule says 1f1b: leave it out "
            "or set 1f1b"
        )
    for key in ("recompute", "sources"):
        if getattr(block, key) is not None:
            raise ConfigError(
                f"{NAME}.{key} is for run graph; leave it out, and use MindFormers' recompute_config for the LLM"
            )


def _check_micro_batches(config: Mapping[str, Any], job: Job) -> None:
    """Refuse numbers of micro-batches that MindFormers' pipeline cannot run, and layouts that CPUs cannot try."""
    count, layout = job.block.micro_batches, job.topology
    if on_cpu(config) and layout.data_parallel > 1:
        raise ConfigError(
            f"parallel_config.data_parallel is {layout.data_parallel}; MindFormers' parallelism does not run on a CPU, "
            f"and {NAME}.run three_phase stands in for it with data_parallel 1 only"
        )
    where = "on a CPU" if on_cpu(config) else "with pipeline_stage 1"
    if count > 1 and (on_cpu(config) or layout.ranks == 1):
        raise ConfigError(
            f"{NAME}.micro_batches is {count} {where}, where MindFormers has no pipeline and no micro-batches: set "
            "micro_batches: 1 and raise runner_config.batch_size"
        )
    if count < layout.ranks and not on_cpu(config):
        raise ConfigError(
            f"{NAME}.micro_batches is {count} with pipeline_stage {layout.ranks}; MindSpore's pipeline needs at least "
            f"as many micro-batches as stages: set micro_batches: {layout.ranks} or more"
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
