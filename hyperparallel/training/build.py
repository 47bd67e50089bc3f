"""From a configuration to what runs: layers, costs, plan and feed, checked together before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hyperparallel.algebra import Plan, parse
from hyperparallel.cells.dropout import RANDOM
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.shapes import RANDOM_SPEC, TensorSpec
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.cost import Costs
from hyperparallel.data import IGNORE, Digits, Files, FilesConfig, StepFeed, make_source
from hyperparallel.data.collate import Room, padded_length
from hyperparallel.errors import ConfigError
from hyperparallel.models import mllm
from hyperparallel.training import costs
from hyperparallel.training.config import Config

PAD_TO_MULTIPLE = 8
"""Texts are padded to a multiple of this many tokens, so few shapes are compiled."""


def build_layers(config: Config, tensor_parallel: TensorParallel | None = None) -> tuple[Layer, ...]:
    """List the model's layers; without a `model.vision` section the model is text-only.

    Args:
        config: gives the model, and T.
        tensor_parallel: a worker's place among the T workers of its stage; without, the list serves for planning, and
            for building only if T is 1.

    Raises:
        ConfigError: model, data and T do not fit each other.
    """
    _check_data(config)
    return mllm(config.model, tensor_parallel or TensorParallel(config.parallel.tensor_parallel))


def build_feed(config: Config, split: str, replica: int = 0, first_sample: int = 0) -> StepFeed:
    """Build the data of one replica; a step of it is a pass over the plan, `training.accumulate` to an optimizer step.

    Args:
        config: gives source, batch and model.
        split: `train` or `held_out`.
        replica: 0..D-1.
        first_sample: sample that step 0 begins with, or would.

    Raises:
        ConfigError: the ids of the data do not fit the model.
        DataError: files are missing, or the batch cannot be cut into M x D.
    """
    vision, data, training = config.model.vision, config.data, config.training
    if isinstance(data, FilesConfig) and data.max_tokens is None:
        data = data.model_copy(update={"max_tokens": _longest(config)})
    source = make_source(data, vision.tokens_per_image if vision else 1, split)
    _check_ids(config, source)
    room = None if config.run.mode == "stepwise" else room_of(config)
    if training.batch_size % training.accumulate:
        raise ConfigError(
            f"training.batch_size = {training.batch_size} cannot be cut into training.accumulate = "
            f"{training.accumulate} passes; make it a multiple"
        )
    return StepFeed(
        source,
        training.batch_size // training.accumulate,
        training.micro_batches,
        replicas_fed(config),
        replica,
        PAD_TO_MULTIPLE,
        room,
        first_sample,
    )


def data_facts(config: Config) -> dict[str, Any]:
    """Say what the training samples follow from, as JSON holds it.

    Raises:
        DataError: files are missing.
    """
    return build_feed(config, "train").source.facts


def replicas_fed(config: Config) -> int:
    """Return D; 1 with `annotate`, where every worker is given the global batch and MindSpore cuts it."""
    return 1 if config.run.mode == "annotate" else config.parallel.data_parallel


def samples_of(config: Config) -> int:
    """Return the samples of one micro-batch as it is fed; of the largest where they are not equal."""
    training = config.training
    return -(-training.batch_size // (training.accumulate * training.micro_batches * replicas_fed(config)))


def label_count(batch: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Count the terms of the loss in a batch: labels that are to be predicted."""
    return float(sum(np.count_nonzero(columns["labels"] != IGNORE) for columns in batch))


def room_of(config: Config) -> Room:
    """Say how large every micro-batch is where a graph fixes the shapes: as the largest that the data can give."""
    images = max(1, samples_of(config) * config.data.max_images)
    # Pieces of a graph are all of one shape.
    split = dict(parse(config.schedule).regions[0].options).get("split", 1)
    images = -(-images // split) * split
    return Room(config.run.max_images or images, config.run.max_tokens or _longest(config))


def column_specs(config: Config) -> dict[str, TensorSpec]:
    """Give shape and type of every column of a micro-batch of a graph, by name."""
    room = room_of(config)
    texts = dict.fromkeys(("input_ids", "labels"), TensorSpec((samples_of(config), room.tokens), "int32"))
    vision = config.model.vision
    if config.model.llm.dropout or (vision and vision.dropout):
        texts[RANDOM] = RANDOM_SPEC
    if vision is None:
        return texts
    size = (vision.channels, vision.image_size, vision.image_size)
    return {"pixel_values": TensorSpec((room.images, *size)), "image_mask": TensorSpec((room.images,)), **texts}


def build_optimizer(config: Config) -> AdamW:
    """Take the optimizer's settings out of the section `training`."""
    training = config.training
    return AdamW(training.lr, training.weight_decay, training.betas, training.eps, training.clip_norm)


def layer_times(config: Config, layers: Sequence[Layer]) -> list[float]:
    """Estimate forward + backward time of each layer for the mean micro-batch of step 0, in milliseconds."""
    return costs.layer_times(config, layers, build_feed(config, "train").describe(0))


def estimate_costs(config: Config, plan: Plan, layers: Sequence[Layer]) -> Costs:
    """Estimate the costs of a plan for the micro-batches of step 0, in milliseconds."""
    return costs.estimate_costs(config, plan, layers, build_feed(config, "train").describe(0))


def _check_data(config: Config) -> None:
    """Refuse a model that the data do not fit."""
    llm, vision, data = config.model.llm, config.model.vision, config.data
    if vision is None:
        if data.max_images > 0:
            raise ConfigError(
                f"model.vision is missing but data.max_images is {data.max_images}; add the section or set it to 0"
            )
    elif (vision.channels, vision.image_size) != (data.channels, data.image_size):
        key = "image_size" if vision.image_size != data.image_size else "channels"
        raise ConfigError(
            f"model.vision takes {vision.channels} x {vision.image_size} x {vision.image_size} images, the data give "
            f"{data.channels} x {data.image_size} x {data.image_size}; make model.vision.{key} and data.{key} equal"
        )
    longest = _longest(config)
    if llm.max_length < longest:
        limits = "max_tokens" if isinstance(data, FilesConfig) else "max_images"
        raise ConfigError(
            f"model.llm.max_length is {llm.max_length}; a sample with data.{limits} = {getattr(data, limits)} has up "
            f"to {longest} tokens: raise max_length or lower {limits}"
        )


def _check_ids(config: Config, source: Digits | Files) -> None:
    """Refuse a model whose vocabulary is not that of the data."""
    model, name = config.model, config.data.source
    if model.llm.vocab_size < source.vocabulary_size:
        raise ConfigError(
            f"model.llm.vocab_size is {model.llm.vocab_size}; the {name} data have {source.vocabulary_size} words"
        )
    if model.vision and source.image_id is not None and model.image_token != source.image_id:
        raise ConfigError(f"model.image_token is {model.image_token}; the {name} data use {source.image_id}")


def _longest(config: Config) -> int:
    """Return the padded length of the longest text; that of the model where the data set no limit."""
    vision, length = config.model.vision, config.model.llm.max_length
    tokens = config.data.longest(vision.tokens_per_image if vision else 0)
    if tokens is None:
        tokens = max(1, length // PAD_TO_MULTIPLE * PAD_TO_MULTIPLE)
    return padded_length([tokens], PAD_TO_MULTIPLE)
