"""Device files: peak speed, memory and links of a device, in YAML; and how files of the product are found and read.

Peak figures are what the maker states. `achievable` and `memory_achievable` are the fractions of them that training
reaches; the roofline uses the products. They are assumptions of the file, to be replaced by a measurement
(`hyperparallel profile`) where one can be made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from hyperparallel.algebra.expression import did_you_mean
from hyperparallel.cost.roofline import Rate
from hyperparallel.errors import ConfigError
from hyperparallel.limits import MAX_WORKERS, Time
from hyperparallel.limits import Rate as Figure
from hyperparallel.paths import expand_home
from hyperparallel.schema import Strict, first_problem, say_problem
from hyperparallel.yaml_file import read_yaml

ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element, by type."""

_YAML = Path(__file__).resolve().parents[2] / "yaml"


class Link(Strict):
    """A message takes alpha + bytes x beta."""

    alpha_us: Time = Field(description="time of a message of zero bytes, microseconds")
    gbytes_per_s: Figure = Field(description="1e9 bytes per second in one direction, between two devices")

    @property
    def alpha(self) -> float:
        """Seconds of a message of zero bytes."""
        return self.alpha_us * 1e-6

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 1 / (self.gbytes_per_s * 1e9)


class Device(Strict):
    """One device as a rank uses it."""

    name: str = Field(description="what people call it")
    peak_tflops: dict[str, Figure] = Field(description="type of the elements -> 1e12 floating-point operations per s")
    achievable: float = Field(ge=1e-6, le=1, description="fraction of the peak that matrix products reach in training")
    memory_gbytes_per_s: Figure = Field(description="1e9 bytes per second between memory and cores")
    memory_achievable: float = Field(ge=1e-6, le=1, description="fraction of that bandwidth that is reached")
    memory_gib: Figure = Field(description="memory of the device, 2^30 bytes")
    devices_per_node: int = Field(ge=1, le=MAX_WORKERS, description="devices that the inside link joins")
    inside: Link = Field(description="between two devices of a node")
    between: Link = Field(description="between two devices of different nodes")

    def rate(self, dtype: str) -> Rate:
        """Return what is reached with elements of a type.

        Raises:
            ConfigError: the file has no peak for it.
        """
        if dtype not in self.peak_tflops or dtype not in ELEMENT:
            raise ConfigError(
                f"device {self.name!r} has no peak_tflops for {dtype!r}; it has {', '.join(self.peak_tflops)}: add it "
                "to the device file, or compute in another type"
            )
        flops = self.peak_tflops[dtype] * 1e12 * self.achievable
        return Rate(flops, self.memory_gbytes_per_s * 1e9 * self.memory_achievable, ELEMENT[dtype])

    def link(self, workers: int) -> Link:
        """Return the link of a job's messages: inside a node if all workers fit into one, else between nodes."""
        return self.inside if workers <= self.devices_per_node else self.between

    @property
    def memory_bytes(self) -> int:
        """Memory of the device."""
        return int(self.memory_gib * 2**30)


def load_device(name: str | Path) -> Device:
    """Read a device file.

    Args:
        name: a path, or the bare name of a file in the repository's yaml/devices, such as `ascend_910b`.

    Raises:
        ConfigError: there is no such file, or it is not one of a device.

    Example:
        >>> load_device("ascend_910b").memory_gib
        64.0
    """
    return read_checked(find_yaml(name, "devices", "device"), Device)


def find_yaml(name: str | Path, folder: str, what: str) -> Path:
    """Find a YAML file by path, or by its bare name in a folder of the repository's yaml/.

    Args:
        name: what the user wrote.
        folder: of yaml/.
        what: the word for the message.

    Raises:
        ConfigError: there is none; says which there are.
    """
    text = str(name)
    try:
        path = Path(expand_home(text) if text.startswith("~") else text)
    except ValueError as error:
        raise ConfigError(f"{what} {text!r}: {error}") from None
    bare = path.suffix == "" and path.name == text
    candidates = [_YAML / folder / f"{text}.yaml"] if bare else [path, _YAML.parent / path]
    for candidate in candidates:
        if os.path.isfile(candidate):  # Path.is_file raises where a name is too long
            return candidate
    known = sorted(file.stem for file in (_YAML / folder).glob("*.yaml"))
    there = f"; yaml/{folder} has {', '.join(known)}" if known else f"; {_YAML / folder} has no files"
    raise ConfigError(f"{what} {text!r} is not a file{there}{did_you_mean(path.stem, known)}")


Checked = TypeVar("Checked", bound=BaseModel)


def read_checked(path: Path, schema: type[Checked]) -> Checked:
    """Read a YAML file and check it.

    Args:
        path: the file; read with a safe loader.
        schema: what it must be.

    Raises:
        ConfigError: it cannot be read, is not YAML, gives a key twice, or does not fit; names file and key.
    """
    values, lines = read_yaml(path)
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        keys: tuple[str, ...] = ()
        for word in map(str, first_problem(error.errors(include_url=False))["loc"]):
            keys = (*keys, word) if (*keys, word) in lines else keys  # some words name a choice of pydantic's
        where = f"{path}, line {lines[keys]}" if keys else f"{path}"
        raise ConfigError(f"{where}: {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """Say the first problem of a file in one sentence, with its key."""
    problems = error.errors(include_url=False)
    problem = first_problem(problems)
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        missing = [str(one["loc"][-1]) for one in problems if one["type"] == "missing"]
        hint = did_you_mean(str(problem["loc"][-1]), missing) if missing else ""
        return f"unknown key {name!r:.100}{hint}; remove it or correct it"
    return say_problem(name, problem)
