"""What `checkpoint.json` says of a checkpoint, as typed models: one that contradicts itself is none."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from hyperparallel.algebra import parse
from hyperparallel.errors import ScheduleSyntaxError
from hyperparallel.limits import MAX_NUMBER, MAX_WORKERS, Seed
from hyperparallel.schema import Items, Strict
from hyperparallel.tensors import MOMENTS, Shard

_File = Annotated[str, Field(pattern=r"^worker_[0-9]+\.safetensors$", max_length=100)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Count = Annotated[int, Field(ge=0, le=2**53)]  # what JSON holds exactly everywhere
_Size = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
_Scale = Annotated[float, Field(ge=1, le=MAX_NUMBER)]
_Crc32 = Annotated[int, Field(ge=0, lt=2**32)]


class Facts(Strict):
    """What a job needs to go on besides its tensors."""

    seed: Seed
    samples: _Count = Field(description="of the data, that the job has taken")
    loss_scale: Annotated[tuple[_Scale, _Count], Field(strict=False)] = Field(description="see `LossScale.state`")
    data: dict[_Name, JsonValue] | None = Field(None, description="what the samples follow from; None: not noted")


class Cut(Strict):
    """How a tensor was cut over T workers, see `Shard`."""

    axis: _Count
    blocks: Annotated[Items[_Count], Field(min_length=1)]

    @property
    def shard(self) -> Shard:
        """Return what the model calls it."""
        return Shard(self.axis, self.blocks)


class Entry(Strict):
    """Where one tensor is: shape of the whole, and file and checksum of every part, most have one."""

    shape: Annotated[Items[_Count], Field(max_length=64)]
    files: Annotated[Items[_Name], Field(min_length=1)]
    crc32: Items[_Crc32]
    cut: Cut | None = None

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Shape of what one file holds."""
        if self.cut is None:
            return self.shape
        axis = self.cut.axis
        return (*self.shape[:axis], self.shape[axis] // len(self.files), *self.shape[axis + 1 :])

    def check_parts(self, name: str) -> None:
        """Refuse parts that do not make up the tensor.

        Raises:
            ValueError: says what does not fit.
        """
        parts, cut = len(self.files), self.cut
        if len(self.crc32) != parts:
            raise ValueError(f"{name} has {parts} files and {len(self.crc32)} checksums")
        if cut is None and parts > 1:
            raise ValueError(f"{name} is in {parts} files, but is not cut")
        if cut is not None and (cut.axis >= len(self.shape) or sum(cut.blocks) != self.shape[cut.axis]):
            raise ValueError(f"{name} of shape {self.shape} is not made of blocks {cut.blocks} along axis {cut.axis}")
        if cut is not None and any(block % parts for block in cut.blocks):
            raise ValueError(f"{name} has blocks {cut.blocks}, which {parts} parts cannot share")


class Index(Strict):
    """What `checkpoint.json` says. Of format 1 are those that were written before there was a seal."""

    format: Literal[1, 2] = 2
    step: _Count
    updates: _Count
    schedule: str = Field(max_length=10_000)
    ranks: _Size
    data_parallel: _Size
    tensor_parallel: _Size
    facts: Facts
    tied: dict[_Name, _Name]
    bytes: dict[_File, _Count]
    tensors: dict[_Name, Entry]
    sha256: str = Field("", description="see `hyperparallel.json_file.seal`")

    @property
    def all_facts(self) -> dict[str, Any]:
        """What the job gave, and what every checkpoint says."""
        own = ("step", "updates", "schedule", "ranks", "data_parallel", "tensor_parallel")
        facts = self.facts.model_dump(mode="json")
        if facts["data"] is None:
            del facts["data"]  # of an earlier version
        return {**facts, **{name: getattr(self, name) for name in own}}

    @field_validator("schedule")
    @classmethod
    def _is_a_line(cls, schedule: str) -> str:
        try:
            parse(schedule)
        except ScheduleSyntaxError:  # whose message shows the place, in several lines
            raise ValueError("this is no schedule line") from None
        return schedule

    @model_validator(mode="after")
    def _agrees(self) -> Index:
        if self.updates > self.step:
            raise ValueError(f"{self.updates} updates were made in {self.step} steps, and a step makes at most one")
        if self.facts.samples < self.step:
            raise ValueError(f"facts.samples = {self.facts.samples} were taken in {self.step} steps of one at least")
        for name, entry in self.tensors.items():
            entry.check_parts(name)
            if not set(entry.files) <= set(self.bytes):
                raise ValueError(f"{name} is in files that it does not list")
            if entry.cut is not None and len(entry.files) != self.tensor_parallel:
                raise ValueError(f"{name} is in {len(entry.files)} parts of {self.tensor_parallel} workers of a stage")
            weight = next((name.removeprefix(one) for one in MOMENTS if name.startswith(one)), name)
            if weight not in self.tensors or self.tensors[weight].shape != entry.shape:
                raise ValueError(f"{name} is a moment of no weight of its shape")
        workers = self.ranks * self.data_parallel * self.tensor_parallel
        if late := [file for file in self.bytes if int(file[len("worker_") :].partition(".")[0]) >= workers]:
            raise ValueError(f"{late[0]} is of none of its {workers} workers")
        if idle := set(self.bytes) - {file for entry in self.tensors.values() for file in entry.files}:
            raise ValueError(f"{min(idle)} holds no tensor")
        for name, target in self.tied.items():
            if name in self.tensors or target not in self.tensors:
                raise ValueError(f"{name} is tied to {target}, of which exactly the latter should be there")
        return self
