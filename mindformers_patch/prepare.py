"""Check a MindFormers configuration that has our block, and point MindFormers to our trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from hyperparallel.algebra import ModelSpec
from hyperparallel.errors import ConfigError
from mindformers_patch.block import NAME, Job, read_job
from mindformers_patch.versions import check_versions

MODELS = ("qwen3_mllm", "deepseek_v3_mllm")
"""Values of `model_type` that have an encoder."""
ROUTES = {"graph": "RankTrainer", "three_phase": "ThreePhaseTrainer"}
"""`hyperparallel.run` -> the trainer that runs it."""


def prepare(config: MutableMapping[str, Any]) -> Job | None:
    """Make a configuration train by its block; one without a block stays as it is.

    Call it before MindFormers builds its context, as `python -m mindformers_patch` does.

    Args:
        config: a MindFormerConfig; changed in place.

    Raises:
        HyperParallelError: the block, the layout, the model or the schedule do not fit; before anything is built.

    Returns:
        The job, or None without a block.
    """
    if NAME not in config:
        return None
    check_versions()
    job = read_job(config[NAME], config.get("parallel_config") or {}, _workers())
    for section in ("trainer", "runner_config", "model", "train_dataset"):
        if not isinstance(config.get(section), Mapping):
            raise ConfigError(f"{section}: is {config.get(section)!r}; expected a section, as MindFormers' YAMLs have")
    check_model(config["model"].get("model_config") or {}, job)
    job.keep(config)
    config["trainer"]["type"] = ROUTES[job.block.run]
    config["runner_config"]["sink_mode"] = False  # a step's batch comes from the host
    if (config.get("context") or {}).get("device_target") == "CPU":
        from mindformers_patch.cpu import stand_in

        stand_in()
    if job.block.run == "graph":
        if not config.get("parallel"):
            config["parallel"] = type(config)()
        config["parallel"]["parallel_mode"] = "STAND_ALONE"
        config["parallel"]["full_batch"] = False
        config["parallel"]["enable_parallel_optimizer"] = False  # it cuts parameters for semi-automatic parallelism
    return job


def check_model(values: Mapping[str, Any], job: Job) -> None:
    """Refuse a model that the schedule does not fit, by numbers of layers alone.

    Args:
        values: what stands under `model.model_config`.
        job: the block and the layout.

    Raises:
        ConfigError: no model of ours, no encoder, or what only semi-automatic parallelism does.
        HyperParallelError: the schedule does not fit the model.
    """
    kind = str(values.get("model_type"))
    if kind not in MODELS:
        raise ConfigError(
            f"model_config.model_type is {kind!r}: no encoder can be found in it; use one of {', '.join(MODELS)} with "
            "the section model_config.vision (docs/mindformers.md)"
        )
    encoder = values.get("vision")
    if not encoder:
        raise ConfigError(
            "model_config.vision is missing, so there is no encoder to schedule; add its sizes (docs/mindformers.md), "
            f"or leave the block {NAME}: out to train the text model as before"
        )
    # DeepSeek-V3's own default is 1.
    if kind == "deepseek_v3_mllm" and job.block.run == "graph" and values.get("num_nextn_predict_layers", 1):
        raise ConfigError(
            f"model_config.num_nextn_predict_layers is {values.get('num_nextn_predict_layers', 'missing, so 1')}; "
            f"{NAME}.run graph predicts one token at a time: set it to 0"
        )
    for key, wanted in (("mtp_num_layers", 0), ("hidden_dropout", 0.0), ("attention_dropout", 0.0)):
        found = values.get(key, wanted)
        if job.block.run == "graph" and found not in (None, wanted):
            raise ConfigError(f"model_config.{key} is {found}; {NAME}.run graph needs {wanted}")
    if job.block.run == "graph" and str(values.get("params_dtype", "float32")) != "float32":
        raise ConfigError(
            f"model_config.params_dtype is {values['params_dtype']}; {NAME}.run graph keeps parameters, and sums of "
            "gradients, in float32: set params_dtype: float32 (compute_dtype is free)"
        )
    # What a GPT has besides decoder layers: embedding, norm, head; an encoder: patches, merger.
    model = ModelSpec.of({"vision": int(encoder["depth"]) + 2, "llm": int(values["num_hidden_layers"]) + 3})
    job.plan(model)


def _workers() -> int:
    """Return the number of processes of this job, as `msrun` or a dry run says it."""
    return int(os.environ.get("MS_WORKER_NUM") or os.environ.get("RANK_SIZE") or 1)
