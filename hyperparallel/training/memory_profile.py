"""Bytes per layer, measured once for every kind of layer in the dry run and kept in a file; and peaks from them.

Two layers are of one kind when they are built by the same function with the same arguments and see the same shapes:
40 equal blocks are measured once. The file grows; other shapes, types or versions of MindSpore are other entries.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

from pydantic import Field, RootModel, model_validator

from hyperparallel.algebra import Plan
from hyperparallel.cells.layer import Layer, trained
from hyperparallel.cells.shapes import Columns, TensorSpec, carries
from hyperparallel.cells.tensor_parallel import TensorParallel
from hyperparallel.cost.memory_bytes import Peak, predict_peaks
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.dryrun import default_folder, gist, run_ranks
from hyperparallel.errors import DryRunError, JsonError
from hyperparallel.json_file import read_json
from hyperparallel.schema import Strict

_Bytes = Annotated[int, Field(ge=0, le=2**53)]

Profile = Mapping[str, LayerBytes]
"""Kind of layer -> its bytes."""


class Probe(NamedTuple):
    """One layer as it is to be measured.

    Args:
        index: the layer's number in the model.
        kind: what its bytes depend on; equal layers have equal kinds.
        carry: what it gets.
        output: what it hands on; of the last layer its packed losses.
        backward: whether a backward passes through it.
        sends_gradient: whether that backward returns the gradient of the carry.
    """

    index: int
    kind: str
    carry: tuple[TensorSpec, ...]
    output: tuple[TensorSpec, ...]
    backward: bool
    sends_gradient: bool


def probes(layers: Sequence[Layer], columns: Columns, dtype: str = "float32") -> list[Probe]:
    """List what is to be known of every layer of a model.

    Args:
        layers: the whole model; each but the last declares its carry.
        columns: of a micro-batch.
        dtype: type that the layers compute in.

    Raises:
        ModelError: a layer does not declare its carry.
    """
    handed = carries(layers, columns, dtype)
    found, upstream = [], False
    for index, (layer, trains) in enumerate(zip(layers, trained(layers), strict=True)):
        carry = handed[index - 1] if index else ()
        output = handed[index] or (TensorSpec((2 + len(layer.metrics),)),)
        sends, backward = upstream, upstream or trains
        own = [(name, *columns[name]) for name in layer.columns]
        facts = (_maker(layer), trains, sends, [*map(tuple, carry)], [*map(tuple, output)], own, dtype)
        kind = f"{version('mindspore')} {facts}"
        found.append(Probe(index, kind, carry, output, backward, sends))
        upstream = backward
    return found


def default_file() -> Path:
    """Name the file of profiles: memory.json beside the stubs of the dry run."""
    return default_folder().parent / "memory.json"


def profile_of(
    path: str,
    overrides: Sequence[str],
    layers: Sequence[Layer],
    columns: Columns,
    file: Path | None = None,
    *,
    dtype: str = "float32",
    shards: int = 1,
    timeout: float = 600.0,
) -> Profile:
    """Read the profile of a configuration's layers; what is missing is measured first, in a process of its own.

    Args:
        path: the configuration.
        overrides: `section.key=value`.
        layers: what it means.
        columns: of a micro-batch.
        file: where profiles are kept; default: `default_file()`.
        dtype: type that the layers compute in.
        shards: T.
        timeout: seconds for measuring.

    Raises:
        DryRunError: measuring failed, or the dry run cannot work on this machine.
        ModelError: a layer does not declare its carry.
    """
    file = file or default_file()
    profile = read_profile(file)
    if all(probe.kind in profile for probe in probes(layers, columns, dtype)):
        return profile
    command = [
        sys.executable,
        "-m",
        "hyperparallel.training.memory_probe",
        str(file.absolute()),
        str(Path(path).absolute()),
        *overrides,
    ]
    with TemporaryDirectory() as scratch:  # MindSpore leaves a folder where it runs
        (run,) = run_ranks(command, shards, [0], level=1, timeout=timeout, cwd=scratch)
    if not run.passed:
        raise DryRunError(f"measuring the memory of the layers of {path} failed: {gist(run.output)}")
    return read_profile(file)


def measure(layers: Sequence[Layer], columns: Columns, file: Path, dtype: str = "float32") -> Profile:
    """Measure the kinds of layer that a file lacks, and add them; to be called in a dry run at level 1.

    A kind takes one to three seconds.

    Args:
        layers: the whole model.
        columns: of a micro-batch.
        file: JSON; made if it is missing.
        dtype: type that the layers compute in.

    Raises:
        DryRunError: this is no dry run at level 1.
        ModelError: a layer does not declare its carry.

    Returns:
        All that the file then holds.
    """
    from hyperparallel.training.memory_probe import measure_layer

    profile = dict(read_profile(file))
    for probe in probes(layers, columns, dtype):
        if probe.kind not in profile:
            profile[probe.kind] = measure_layer(
                layers,
                probe.index,
                probe.carry,
                probe.output,
                columns,
                backward=probe.backward,
                sends_gradient=probe.sends_gradient,
                dtype=dtype,
            )
            _write(file, profile)
    return profile


class LayerBytesFile(Strict):
    """What a file says of one layer, see `LayerBytes`."""

    weights: _Bytes
    trained: _Bytes
    largest: _Bytes
    constants: _Bytes
    saved: _Bytes
    forward: _Bytes
    backward: _Bytes

    @model_validator(mode="after")
    def _agrees(self) -> LayerBytesFile:
        if not self.largest <= self.trained <= self.weights:
            raise ValueError("largest, trained and weights are not in this order of size")
        return self


class ProfileFile(RootModel[dict[str, LayerBytesFile]]):
    """A file of `measure`: kind of layer -> what it needs."""


def read_profile(file: Path) -> Profile:
    """Read a file of `measure`; nothing where there is none.

    Raises:
        DryRunError: the file is not one of those.
    """
    if not file.exists():
        return {}
    try:
        found = read_json(file, ProfileFile)
    except OSError as error:
        raise DryRunError(f"{file} cannot be read ({error.strerror}); remove it, and it is measured again") from None
    except JsonError as error:
        raise DryRunError(f"{file} is not a memory profile ({error}); remove it, and it is measured again") from None
    return {kind: LayerBytes(**numbers.model_dump()) for kind, numbers in found.root.items()}


def layer_bytes(
    layers: Sequence[Layer], columns: Columns, profile: Profile, dtype: str = "float32"
) -> list[LayerBytes]:
    """Look up every layer of a model.

    Raises:
        DryRunError: a layer was not measured; says which.
    """
    found = []
    for probe in probes(layers, columns, dtype):
        if probe.kind not in profile:
            raise DryRunError(
                f"the memory of layer {layers[probe.index].name!r} is not in the profile for these shapes, {dtype} and "
                "this MindSpore; measure it with `measure` in a dry run at level 1"
            )
        found.append(profile[probe.kind])
    return found


def predict(
    plan: Plan,
    layers: Sequence[Layer],
    columns: Columns,
    profile: Profile,
    *,
    dtype: str = "float32",
    replicas: int = 1,
    recompute: Sequence[int] = (),
) -> list[Peak]:
    """Predict every rank's peak memory under the graph runner.

    Args:
        plan: derived for these layers.
        layers: the whole model.
        columns: of a micro-batch.
        profile: from `measure` or `read_profile`.
        dtype: type that the layers compute in.
        replicas: D.
        recompute: stages whose forward is run again in the backward.

    Raises:
        DryRunError: a layer was not measured.

    Returns:
        One peak per rank; workspaces of the operators are not in it, nor in MindSpore's simulated peak.
    """
    handed = [sum(spec.bytes for spec in carry) for carry in carries(layers, columns, dtype)]
    own = [{name: columns[name].bytes for name in layer.columns} for layer in layers]
    found = layer_bytes(layers, columns, profile, dtype)
    return predict_peaks(plan, found, handed, own, replicas=replicas, recompute=recompute)


def _maker(layer: Layer) -> str:
    """Name what builds a layer; a function that says nothing of its arguments is a kind of its own."""
    build = layer.build
    if not isinstance(build, functools.partial):
        return f"{_name(build)} of {layer.name}"
    # Of the workers of a stage each holds as much as the next.
    given = [argument.size if isinstance(argument, TensorParallel) else argument for argument in build.args]
    return f"{_name(build.func)}{given}{sorted(build.keywords.items())}"


def _name(function: object) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _write(file: Path, profile: Profile) -> None:
    """Replace the file at once, so that nobody reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}")
    scratch.write_text(json.dumps({kind: one._asdict() for kind, one in profile.items()}, indent=1) + "\n", "utf-8")
    scratch.replace(file)
