"""The YAML file of a training job: its schema, reading it, and errors that say the place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from hyperparallel.algebra import parse
from hyperparallel.algebra.topology import Topology
from hyperparallel.data import DataConfig, DigitsConfig
from hyperparallel.errors import ConfigError
from hyperparallel.limits import (
    MAX_BATCH,
    MAX_CELLS,
    MAX_IMAGES,
    MAX_NUMBER,
    MAX_RANKS,
    MAX_STEPS,
    MAX_TOKENS,
    MAX_WORKERS,
    Number,
    Rate,
    Seed,
    Time,
    Wait,
    size_problem,
)
from hyperparallel.models.config import MllmConfig
from hyperparallel.paths import PathText, expand_home
from hyperparallel.schema import Items, Strict, first_problem, say_problem
from hyperparallel.yaml_file import NOTHING, parse_value, read_yaml

_Stage = Annotated[int, Field(le=MAX_RANKS)]
_Decay = Annotated[float, Field(ge=0, lt=1)]


class Parallel(Strict):
    """How the job is laid out: P x D x T workers."""

    ranks: int = Field(1, ge=1, le=MAX_RANKS, description="P, ranks of one pipeline")
    data_parallel: int = Field(1, ge=1, le=MAX_WORKERS, description="D, replicas of the pipeline")
    tensor_parallel: int = Field(
        1, ge=1, le=MAX_WORKERS, description="T, workers that share the matrices of each stage"
    )

    @model_validator(mode="after")
    def _has_not_too_many_workers(self) -> Parallel:
        workers = self.ranks * self.data_parallel * self.tensor_parallel
        if workers > MAX_WORKERS:
            raise ValueError(
                f"ranks {self.ranks} x data_parallel {self.data_parallel} x tensor_parallel {self.tensor_parallel} "
                f"makes {workers} workers; at most {MAX_WORKERS} are supported"
            )
        return self

    @property
    def topology(self) -> Topology:
        """The numbering of the job's workers."""
        return Topology(self.ranks, self.data_parallel, self.tensor_parallel)


class Training(Strict):
    """Steps, batch and optimizer."""

    steps: int = Field(ge=1, le=MAX_STEPS, description="optimizer steps")
    batch_size: int = Field(ge=1, le=MAX_BATCH, description="samples of a step over all replicas; divisible by M x D")
    micro_batches: int = Field(ge=1, le=MAX_CELLS, description="M, micro-batches of a step and replica")
    lr: float = Field(1e-3, gt=0, le=MAX_NUMBER, description="peak learning rate")
    warmup_steps: int = Field(10, ge=0, le=MAX_STEPS, description="steps of linear warmup, then cosine to a tenth")
    weight_decay: Number = Field(0.01, description="decoupled decay of matrices")
    betas: tuple[_Decay, _Decay] = Field(
        (0.9, 0.95), strict=False, description="decay rates of Adam's moments, in [0, 1)"
    )
    eps: float = Field(1e-8, gt=0, le=MAX_NUMBER, description="Adam's epsilon")
    clip_norm: Number = Field(1.0, description="largest global gradient norm; 0 turns clipping off")
    seed: Seed = Field(0, description="seed of the initial weights and of dropout")
    accumulate: int = Field(1, ge=1, le=MAX_BATCH, description="passes over the plan per optimizer step (stepwise)")
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop", description="a loss or gradient that is no finite number ends the job, or its step is left out"
    )
    loss_scale: float = Field(
        65536.0, ge=1, le=MAX_NUMBER, description="factor on the loss of a float16 job at its start"
    )
    loss_scale_window: int = Field(
        1000, ge=1, le=MAX_STEPS, description="steps without overflow after which it doubles"
    )


class Evaluation(Strict):
    """The held-out split after training."""

    samples: int = Field(0, ge=0, le=MAX_STEPS, description="held-out samples to read after training; 0 skips it")


class Checkpoint(Strict):
    """What is kept so that a job can go on after it ended."""

    every: int = Field(0, ge=0, le=MAX_STEPS, description="steps from one checkpoint to the next; 0: at the end only")
    keep: int = Field(3, ge=1, le=MAX_STEPS, description="the newest that are kept")


class Run(Strict):
    """Where and how the job runs."""

    mode: Literal["stepwise", "graph", "annotate"] = Field(
        "stepwise",
        description="the runner: Python walks the plan (any device), one graph per rank (Ascend), or MindSpore's own "
        "pipeline engine (Ascend, Sharded regions only)",
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="type that the layers compute in; weights stay float32"
    )
    recompute: Items[_Stage] | Literal["all"] = Field(
        (), description="stages whose forward runs again in the backward instead of being kept"
    )
    max_images: int | None = Field(
        None, ge=1, le=MAX_BATCH * MAX_IMAGES, description="images a micro-batch is padded to (graph); default: most"
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="tokens a text is padded to (graph); default: most"
    )
    wires: Literal["native", "pair_sum"] = Field(
        "native", description="graph: Send and Receive; pair_sum stands in for them in tests on CPU"
    )
    out: PathText = Field("runs/train", description="folder for runs; each start makes a new one inside")
    jit: bool = Field(True, description="false runs op by op, for debugging")
    timeout_s: Wait = Field(600.0, description="seconds that a rank waits for another before it gives up")
    trace_step: int | None = Field(
        None, ge=0, le=MAX_STEPS, description="step whose trace is written, beside the predicted one"
    )

    def recomputed(self, stages: int) -> tuple[int, ...]:
        """Return the stages of `recompute`, of as many as there are."""
        return tuple(range(stages)) if self.recompute == "all" else self.recompute


class Cost(Strict):
    """What `hyperparallel plan CONFIG.yaml` and `slabs=balanced` assume: a rate, a device file or a measurement."""

    gflops: Rate = Field(20.0, description="speed of one rank, 1e9 floating-point operations per second")
    backward: Rate = Field(2.0, description="time of a backward in forwards")
    message_ms: Time = Field(4.0, description="time of one message, milliseconds")
    device: PathText | None = Field(
        None, description="device file, or its bare name in yaml/devices; instead of the three"
    )
    measured: PathText | None = Field(None, description="file of `hyperparallel profile`; instead of the three")

    @model_validator(mode="after")
    def _one_source(self) -> Cost:
        if self.device is not None and self.measured is not None:
            raise ValueError(f"device {self.device!r} and measured {self.measured!r} are both given; give one of them")
        return self


class Planner(Strict):
    """How the planner decides what `owner=balanced` and `place=fill` leave open; once, before the job starts."""

    engine: Literal["auto", "list", "search", "exact"] = Field("auto", description="list takes milliseconds")
    work_limit: Wait | None = Field(
        5.0, description="bound by work, about seconds: the same plan every time; null: by the clock"
    )
    time_limit_s: Wait = Field(10.0, description="seconds of the clock, where work_limit is null")
    seed: Seed = Field(0, description="seed of the search")
    memory_limit: str | None = Field(None, description="for every rank: '6 encodes' that it may hold, or '8 GiB'")
    reorder: bool = Field(False, description="order the micro-batches of every step so that the plan takes less time")
    replan: Literal["never", "step"] = Field(
        "never", description="step: every rank plans every step for its own sizes, nothing is sent (stepwise)"
    )
    file: PathText | None = Field(None, description="plan of `hyperparallel plan --out`, taken as it is")


class Config(Strict):
    """A whole training job."""

    schedule: str = Field(description="schedule line")
    parallel: Parallel = Field(default_factory=Parallel)
    model: MllmConfig
    data: DataConfig = Field(default_factory=DigitsConfig)
    training: Training
    evaluation: Evaluation = Field(default_factory=Evaluation)
    cost: Cost = Field(default_factory=Cost)
    planner: Planner = Field(default_factory=Planner)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    run: Run = Field(default_factory=Run)
    init_from: PathText | None = Field(
        None, description="weights to start from: a file of hyperparallel export, or a run"
    )
    resume: PathText | None = Field(None, description="run folder, or one checkpoint of it, to go on from")

    @model_validator(mode="after")
    def _starts_once(self) -> Config:
        if self.init_from is not None and self.resume is not None:
            raise ValueError(
                f"init_from = {self.init_from!r} and resume = {self.resume!r} are both given; resume takes weights, "
                "optimizer and place in the data from its run, so leave init_from out"
            )
        return self

    @model_validator(mode="after")
    def _traces_a_step_that_runs(self) -> Config:
        step, steps = self.run.trace_step, self.training.steps
        if step is not None and step >= steps:
            raise ValueError(f"run.trace_step = {step} is not a step; training.steps = {steps} runs 0 to {steps - 1}")
        return self


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and change values in it.

    Args:
        path: the file, YAML 1.2.
        overrides: `section.key=value`, each value in YAML notation; later ones win.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown or given twice, or a value does not fit;
            names file, line and key and says what was expected.

    Returns:
        The checked configuration.
    """
    path = _existing(path)
    values, lines = read_yaml(path)
    if not isinstance(values, dict):
        what = "nothing" if values is NOTHING else type(values).__name__
        raise ConfigError(f"{path}: holds {what}; expected sections such as 'schedule:' and 'model:'")
    given: dict[tuple[str, ...], str] = {}
    for override in overrides:
        keys = _apply(values, override)
        given[keys] = override
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, path, lines, given)) from None
    _check_size(config)
    return config


def _existing(path: str | Path) -> Path:
    try:
        return Path(expand_home(str(path)))
    except ValueError as error:
        raise ConfigError(f"{str(path)!r}: {error}; give an existing YAML file") from None


def _check_size(config: Config) -> None:
    """Refuse a plan that would only fill the memory."""
    count = max(region.count for region in parse(config.schedule).regions)
    names = ("parallel.ranks", "training.micro_batches")
    problem = size_problem(config.parallel.ranks, config.training.micro_batches, count, names)
    if problem is not None:
        raise ConfigError(problem)


def _apply(values: dict[str, Any], override: str) -> tuple[str, ...]:
    """Put one `section.key=value` into the values."""
    name, sign, text = override.partition("=")
    keys = tuple(name.split("."))
    if not sign or not all(keys):
        raise ConfigError(f"override {override!r} is not of the form section.key=value")
    try:
        value = parse_value(text)
    except ConfigError as error:
        raise ConfigError(f"override {override!r}: {error}") from None
    if value is NOTHING:
        raise ConfigError(
            f"override {override!r} has no value after the =; write {name}=null to turn the key off, or leave it out"
        )
    for key in keys[:-1]:
        inside = values.setdefault(key, {})
        if inside is None or inside is NOTHING:
            inside = values[key] = {}
        if not isinstance(inside, dict):
            raise ConfigError(f"override {override!r}: {key!r} is a value, not a section")
        values = inside
    values[keys[-1]] = value
    return keys


def _explain(
    error: ValidationError, path: Path, lines: dict[tuple[str, ...], int], given: dict[tuple[str, ...], str]
) -> str:
    """Say the first problem in one sentence with its place."""
    problem = first_problem(error.errors(include_url=False))
    keys, legal = _place(problem["loc"])
    if problem["type"] == "union_tag_invalid":  # of `source`, which says what else the section holds
        keys, problem["input"] = (*keys, "source"), problem["ctx"]["tag"]
        problem["msg"] = f"unknown source{_hint(problem['input'], _SOURCES)}"
    name = ".".join(keys)
    heads = [keys[:end] for end in range(len(keys), 0, -1)]
    override = next((given[head] for head in heads if head in given), None)
    if override is not None:
        where = f"override {override!r}"
    else:
        known = next((lines[head] for head in heads if head in lines), None)
        where = f"{path}, line {known}" if known else f"{path}"
        inside = [text for place, text in given.items() if place[: len(keys)] == keys]
        where += f" with override {inside[-1]!r}" if inside else ""
    if problem["type"] == "extra_forbidden":
        other = next((source for source, model in _SOURCES.items() if keys[-1] in model.model_fields), None)
        if keys[:-1] == ("data",) and other:
            return f"{where}: {name!r} is a key of source: {other}; add 'source: {other}' to data, or leave it out"
        return f"{where}: unknown key {name!r}{_hint(keys[-1], legal)}"
    return f"{where}: {say_problem(name, problem)}"


def _place(loc: Sequence[int | str]) -> tuple[tuple[str, ...], list[str]]:
    """Turn pydantic's place of a problem into keys of the file, and list the legal keys of the section it is in.

    Pydantic also names which choice of a union it tried, which is no key.
    """
    keys: list[str] = []
    model, legal = Config, list(Config.model_fields)
    rest = list(loc)
    while rest:
        key = rest.pop(0)
        if model is None:  # inside a value: only positions in a list are of the file
            keys += [str(key)] if isinstance(key, int) else []
            continue
        keys.append(str(key))
        legal = list(model.model_fields)
        field = model.model_fields.get(str(key))
        sections = _sections(field.annotation) if field else {}
        model = next(iter(sections.values()), None)
        if len(sections) > 1 and rest:
            model = sections[rest.pop(0)]
    return tuple(keys), legal


def _sections(annotation: Any) -> dict[str, type[BaseModel]]:
    """Find the models that a key can hold, by their `source` where there are several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        source = annotation.model_fields.get("source")
        return {source.default if source else "": annotation}
    return {name: model for part in get_args(annotation) for name, model in _sections(part).items()}


def _hint(word: str, legal: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(legal)}"


_SOURCES = _sections(Config.model_fields["data"].annotation)
