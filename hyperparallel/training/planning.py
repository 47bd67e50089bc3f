"""The plan of a configuration: from its schedule line, its costs and the section `planner`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hyperparallel.algebra import Plan, normal_form, parse, to_text
from hyperparallel.algebra.regions import fill_parts, needs_planner
from hyperparallel.cells.layer import Layer, model_spec
from hyperparallel.cells.transport import Transport
from hyperparallel.cost import Costs
from hyperparallel.cost.memory_bytes import peak_of
from hyperparallel.data import MicroBatchInfo
from hyperparallel.errors import ConfigError, PlanError
from hyperparallel.planner import Planned, Settings, plan_line
from hyperparallel.planner.limits import parse_limit, plan_within
from hyperparallel.planner.plan_file import read_plan_file, to_plan_file
from hyperparallel.planner.recheck import certify_anew, check_held
from hyperparallel.training import costs
from hyperparallel.training.build import build_feed, layer_times
from hyperparallel.training.config import Config
from hyperparallel.training.launch import is_worker
from hyperparallel.training.live_memory import curves
from hyperparallel.views.files import write_files

SAMPLED_STEPS = 8
"""Steps whose micro-batches make the mean one, for which a static plan is made."""


def build_plan(config: Config, layers: Sequence[Layer]) -> Plan:
    """Derive and validate the plan of a configuration; see `plan_job`."""
    return plan_job(config, layers).plan


def plan_job(config: Config, layers: Sequence[Layer], options: Mapping[str, Any] | None = None) -> Planned:
    """Plan a configuration: read the plan from its file, or make it.

    Args:
        config: schedule line, P, M, and the section `planner`.
        layers: the model; costs are those of the mean micro-batch (section `cost`).
        options: values of `Settings` that replace those of the section.

    Raises:
        HyperParallelError: the line does not fit, no plan keeps the memory limit, or that of the file does not.

    Returns:
        The validated plan; the certificate is for the mean micro-batch.
    """
    model = model_spec(layers, layer_times(config, layers))
    ranks, micro_batches = config.parallel.ranks, config.training.micro_batches
    section = config.planner
    limit = None if section.memory_limit is None else parse_limit(section.memory_limit)
    settings = replace(settings_of(config), **(options or {}))
    if section.file and is_planned(config, layers):
        read = read_plan_file(Path(section.file), config.schedule, model, ranks, micro_batches)
        # Encodes on the command line stand for the limit of the section; who starts the ranks has looked at bytes.
        given = limit is None or settings.live_limit is not None or is_worker()
        return _certified(config, layers, read, settings.live_limit, None if given else limit.bytes)

    def plan_at(live_limit: int | None) -> Planned:
        return plan_line(
            config.schedule,
            model,
            ranks,
            micro_batches,
            lambda plan: mean_costs(config, plan, layers),
            replace(settings, live_limit=live_limit),
        )

    # Encodes on the command line stand for the limit of the section.
    if limit is None or limit.bytes is None or settings.live_limit is not None:
        return plan_at(settings.live_limit)
    encodes = 0  # what the planner may hold fewer of
    if is_planned(config, layers):
        encodes = micro_batches * max(1, int(parse(config.schedule).regions[0].option("split")))
    return plan_within(limit.bytes, encodes, plan_at, lambda plan: _peaks(config, plan, layers))


def _certified(
    config: Config, layers: Sequence[Layer], read: Planned, encodes: int | None, most: int | None
) -> Planned:
    """Give a plan of a file the certificate that it has under the costs of now, and hold it to the memory limit.

    Args:
        config: of the job.
        layers: the model.
        read: of `read_plan_file`.
        encodes: that a rank may hold; None for no limit.
        most: bytes that a rank may hold, as far as they are predicted; None for no limit.
    """
    planned = certify_anew(read, lambda plan: mean_costs(config, plan, layers))
    try:
        check_held(planned, encodes)
        peaks = [] if most is None else _peaks(config, planned.plan, layers)
        if most is not None and max(peaks) > most:
            rank = peaks.index(max(peaks))
            raise PlanError(
                f"rank {rank} holds {peaks[rank]:,} bytes, and the memory limit is {most:,}; plan again within it"
            )
    except PlanError as error:
        raise PlanError(f"{config.planner.file}: {error}") from None
    return planned


def settings_of(config: Config) -> Settings:
    """Take the planner's settings out of the section `planner`; a limit in bytes is not among them."""
    section = config.planner
    encodes = None if section.memory_limit is None else parse_limit(section.memory_limit).encodes
    return Settings(section.time_limit_s, section.work_limit, section.seed, section.engine, encodes)


def is_planned(config: Config, layers: Sequence[Layer]) -> bool:
    """Tell whether the line leaves owners or places to the planner."""
    return needs_planner(normal_form(fill_parts(parse(config.schedule), model_spec(layers))).regions[0])


def mean_costs(config: Config, plan: Plan, layers: Sequence[Layer]) -> Costs:
    """Estimate the costs of a plan whose micro-batches are all the mean one, in milliseconds."""
    feed = build_feed(config, "train")
    infos = [info for step in range(SAMPLED_STEPS) for info in feed.describe(step)]
    return costs.estimate_costs(config, plan, layers, [_mean(infos)] * plan.micro_batches)


def _mean(infos: Sequence[MicroBatchInfo]) -> MicroBatchInfo:
    """Average the sizes of micro-batches, in whole numbers."""
    return MicroBatchInfo(*(round(sum(column) / len(infos)) for column in zip(*map(_sizes, infos), strict=True)))


def _sizes(info: MicroBatchInfo) -> tuple[int, ...]:
    return info.images, info.samples, info.tokens, info.targets, info.padded_tokens


def _peaks(config: Config, plan: Plan, layers: Sequence[Layer]) -> list[int]:
    """Predict the peak of every rank from the bytes of the layers, measured first where they were not yet."""
    return [peak_of(curve).bytes for curve in curves(config, plan, layers)]


def hand_over(planned: Planned, folder: Path) -> list[str]:
    """Write a plan for the ranks of a job, so that they need not make it again.

    Args:
        planned: with a certificate where the planner decided something.
        folder: of the run.

    Returns:
        What to change in the ranks' configuration, as `section.key=value`.
    """
    if planned.certificate is None:
        return []
    path = folder / "plan.json"
    write_files({path: to_plan_file(planned).encode()})
    return [f"planner.file={json.dumps(str(path.absolute()))}"]


def check_equal_plans(plan: Plan, transport: Transport) -> None:
    """Refuse a job whose ranks follow different plans; all of them call this.

    Args:
        plan: this rank's.
        transport: the job.

    Raises:
        ConfigError: they differ.
    """
    digest = hashlib.sha256(to_text(plan.compute).encode()).digest()[:2]
    table = np.zeros(transport.size, np.float32)
    table[transport.rank] = int.from_bytes(digest, "little")
    if len(set(transport.sum(table, range(transport.size), "the plans").tolist())) > 1:
        raise ConfigError(
            f"the ranks planned {plan.schedule} differently; let hyperparallel train start them, give planner.file, or "
            "bound the planner by planner.work_limit instead of the clock"
        )
