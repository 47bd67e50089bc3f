"""The block `hyperparallel:` of a MindFormers YAML: its schema and what it means. No MindSpore here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from hyperparallel.algebra import ModelSpec, Plan, derive, validate
from hyperparallel.algebra.topology import Topology
from hyperparallel.errors import ConfigError
from hyperparallel.limits import MAX_CELLS, MAX_RANKS
from hyperparallel.paths import PathText
from hyperparallel.planner.plan_file import read_plan_file
from hyperparallel.schema import Items, Strict, first_problem, say_problem

NAME = "hyperparallel"
"""The key of the block in the YAML."""
LAYOUT = "hyperparallel_layout"
"""The key under which a prepared configuration has P, D and T."""


class Block(Strict):
    """What a user adds to the YAML."""

    schedule: str = Field(description="schedule line")
    micro_batches: int = Field(ge=1, le=MAX_CELLS, description="M, micro-batches of a step and replica")
    run: Literal["graph", "three_phase"] = Field(
        "graph",
        description="graph: our order of all actions, which fills bubbles; three_phase: MindFormers' own pipeline "
        "between the encoder's forwards and backwards, which fills none",
    )
    recompute: Items[Annotated[int, Field(le=MAX_RANKS)]] | Literal["all"] | None = Field(
        None, description="stages whose forward runs again in the backward (graph); default: recompute_config.recompute"
    )
    wires: Literal["native", "pair_sum"] = Field(
        "native", description="Send and Receive; pair_sum stands in for them in tests on CPU (graph)"
    )
    plan: PathText | None = Field(
        None, description="file of hyperparallel plan --out, for a schedule with owner=balanced or place=fill (graph)"
    )
    sources: PathText | None = Field(None, description="folder that keeps the generated source of each step (graph)")


@dataclass(frozen=True)
class Job:
    """A block with the layout of the job that it is in.

    Args:
        block: what the user wrote.
        topology: P x D x T, from `parallel_config`.
    """

    block: Block
    topology: Topology

    def plan(self, model: ModelSpec) -> Plan:
        """Derive and validate the plan of the job, or read what a planner decided.

        Args:
            model: the layers, in parts.

        Raises:
            HyperParallelError: schedule, model and layout do not fit, or the file is of another plan.
        """
        schedule, ranks, micro_batches = self.block.schedule, self.topology.ranks, self.block.micro_batches
        if self.block.plan is not None:
            return read_plan_file(Path(self.block.plan), schedule, model, ranks, micro_batches).plan
        return validate(derive(schedule, model, ranks, micro_batches))

    def keep(self, config: MutableMapping[str, Any]) -> None:
        """Note the layout in a configuration: MindFormers' trainer forgets its own outside of its parallel modes."""
        config[LAYOUT] = [self.topology.ranks, self.topology.data_parallel, self.topology.tensor_parallel]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Job:
        """Return the job that `keep` noted in a configuration.

        Raises:
            ConfigError: nobody did.
        """
        if LAYOUT not in config:
            raise ConfigError(
                f"the block {NAME}: was not prepared; start with python -m mindformers_patch --config X.yaml, or call "
                "mindformers_patch.prepare.prepare(config) before MindFormers' Trainer"
            )
        return cls(read_block(config[NAME]), Topology(*config[LAYOUT]))


def read_block(values: Mapping[str, Any]) -> Block:
    """Check a block.

    Args:
        values: what stands under `hyperparallel:`.

    Raises:
        ConfigError: an unknown key, a missing one, or a value that does not fit; one sentence with the fix.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{NAME}: is {values!r}; expected the keys schedule and micro_batches below it")
    try:
        return Block.model_validate(dict(values))
    except ValidationError as error:
        problem = first_problem(error.errors(include_url=False))
    key = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Block.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(Block.model_fields)}"
        raise ConfigError(f"{NAME}: unknown key {key!r}; {hint}")
    if problem["type"] == "missing":
        example = Block.model_fields[key].description
        raise ConfigError(f"{NAME}: {key!r} is missing; add it ({example})")
    raise ConfigError(say_problem(f"{NAME}.{key}", problem))


def read_job(values: Mapping[str, Any], parallel: Mapping[str, Any], workers: int) -> Job:
    """Check a block against the layout of its job.

    Args:
        values: what stands under `hyperparallel:`.
        parallel: what stands under `parallel_config:`.
        workers: number of processes of the job.

    Raises:
        ConfigError: as `read_block`, a layout that has another number of workers, or one that this route cannot run.
    """
    block = read_block(values)
    ranks, replicas, shards = (
        int(parallel.get(key) or 1) for key in ("pipeline_stage", "data_parallel", "model_parallel")
    )
    for key, why in (("context_parallel", "texts are not cut"), ("expert_parallel", "experts are not spread")):
        if int(parallel.get(key) or 1) > 1 and block.run == "graph":
            raise ConfigError(
                f"parallel_config.{key} = {parallel[key]}: {NAME}.run graph has {key} 1 only, {why} there"
            )
    if ranks * replicas * shards != workers:
        raise ConfigError(
            f"parallel_config has pipeline_stage {ranks} x data_parallel {replicas} x model_parallel {shards} = "
            f"{ranks * replicas * shards} workers, the job has {workers}; start it with msrun --worker_num="
            f"{ranks * replicas * shards}, or change pipeline_stage"
        )
    return Job(block, Topology(ranks, replicas, shards))
