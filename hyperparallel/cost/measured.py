"""Measured costs: times of every layer as a function of images and tokens, kept in a JSON file.

A layer takes base + image x images + token x tokens seconds: the coefficients are the non-negative least squares of the
relative error over several sizes. Times are kept by layer, not by stage, because a planner cuts the slabs anew: a stage
takes the sum of its layers less `call` for every layer but its first, what one call of a Cell costs beyond its work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from hyperparallel.cost.roofline import LayerTime, Sizes
from hyperparallel.errors import ConfigError, JsonError
from hyperparallel.io import parse_json
from hyperparallel.json_file import check_json, read_text
from hyperparallel.limits import MAX_LAYERS, MAX_NUMBER, Number, Time
from hyperparallel.schema import Strict

VERSION = 1

_Error = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Size = Annotated[int, Field(ge=1, le=10**9)]
_MOST_LAYERS = 10 * MAX_LAYERS  # of a model of some parts, and stages
_Place = Annotated[int, Field(ge=0, le=_MOST_LAYERS)]
_SIZES = ("images", "samples", "tokens")


class Fit(Strict):
    """Seconds as a function of the sizes of a micro-batch.

    Example:
        >>> Fit(base=1, image=2, token=0.5).at({"images": 3, "tokens": 4})
        9.0
    """

    base: Time
    image: Time = 0.0
    token: Time = 0.0
    error: Number = Field(0.0, description="largest relative error at the sizes that were fitted")

    def at(self, sizes: Sizes) -> float:
        """Return the time of a micro-batch."""
        return self.base + self.image * sizes["images"] + self.token * sizes["tokens"]


class MeasuredLayer(Strict):
    """One layer: what it is, and its times; `backward` is None where none ran."""

    name: _Name
    trainable: bool
    work: Number = Field(
        description="forward FLOPs of a small micro-batch, by which a file of other sizes is told apart"
    )
    forward: Fit
    backward: Fit | None


class MeasuredStage(Strict):
    """How well the layers predict a stage that was measured as a whole."""

    layers: Annotated[tuple[_Place, _Place], Field(strict=False)] = Field(description="first layer, one past the last")
    kind: Literal["F", "B"]
    error: _Error = Field(description="relative error at sizes that were fitted: the one that is farthest from 0")
    held_out: _Error = Field(description="relative error at a size that was not")


class MeasuredCosts(Strict):
    """A file of `hyperparallel profile`; times in seconds."""

    version: Literal[1] = VERSION
    device: _Name
    conditions: dict[_Name, _Name | bool | _Size] = Field(description="what times depend on besides the model")
    sizes: list[dict[Literal[_SIZES], _Size]] = Field(
        min_length=1, description="micro-batches that were run; the last one is held out of the fit"
    )
    alpha: Time = Field(description="time of a message of zero bytes")
    beta: Time = Field(description="time per byte of a message")
    call: dict[Literal["F", "B"], Time]
    layers: list[MeasuredLayer] = Field(max_length=_MOST_LAYERS)
    stages: list[MeasuredStage] = Field(max_length=_MOST_LAYERS)

    @model_validator(mode="after")
    def _is_of_one_model(self) -> MeasuredCosts:
        for what, given, keys in (("call", self.call, "FB"), *(("sizes", size, _SIZES) for size in self.sizes)):
            if missing := set(keys) - set(given):
                raise ValueError(f"{what} has no {', '.join(sorted(missing))}")
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            twin = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"layer {twin!r} is there twice")
        trained = False  # a gradient comes to what is trained and to all that follows it
        for layer in self.layers:
            trained = trained or layer.trainable
            if trained != (layer.backward is not None):
                said = "has no backward, which it" if trained else "has a backward, which no layer up to it"
                raise ValueError(f"layer {layer.name!r} {said} needs")
        for stage in self.stages:
            if not stage.layers[0] < stage.layers[1] <= len(names):
                raise ValueError(f"a stage has the layers {stage.layers}, of {len(names)}")
        return self

    def times(self, sizes: Sizes) -> list[LayerTime]:
        """Return the times of all layers for a micro-batch; a backward is half I and half W, all I where frozen."""
        found = []
        for layer in self.layers:
            backward = layer.backward.at(sizes) if layer.backward else 0.0
            weight = backward / 2 if layer.trainable else 0.0
            found.append(LayerTime(layer.forward.at(sizes), backward - weight, weight))
        return found


def fit(measured: Sequence[tuple[float, float, float]], images: bool = True, tokens: bool = True) -> Fit:
    """Fit times by base + image x images + token x tokens.

    Args:
        measured: (images, tokens, seconds > 0) of at least one size; with fewer sizes than coefficients, or where some
            hang together, the simplest fit is taken.
        images: whether the time can depend on the images.
        tokens: whether it can depend on the tokens.

    Example:
        >>> fit([(1, 8, 3.0), (2, 8, 5.0), (3, 8, 7.0)]).at({"images": 10, "tokens": 8})
        21.0
    """
    table = np.array(measured, np.float64)
    seconds = table[:, 2]
    columns = np.column_stack([np.ones(len(table)), table[:, 0], table[:, 1]]) / seconds[:, None]
    best, least = np.zeros(3), np.inf
    free = [0, *([1] if images else []), *([2] if tokens else [])]
    # Three coefficients: all choices of those that are not zero are tried; fewer come first and win ties.
    for count in range(1, len(free) + 1):
        for chosen in combinations(free, count):
            some = columns[:, chosen]
            values, _, rank, _ = np.linalg.lstsq(some, np.ones(len(some)), rcond=None)
            error = float(((some @ values - 1) ** 2).sum())
            if rank == count and (values >= 0).all() and error < least - 1e-12:
                best, least = np.zeros(3), error
                best[list(chosen)] = values
    base, image, token = (float(f"{value:.12g}") for value in best)
    return Fit(base=base, image=image, token=token, error=float(np.abs(columns @ best - 1).max()))


def write_measured(path: Path, costs: MeasuredCosts) -> None:
    """Write the file beside its place and rename it, so it is never seen half-written.

    Raises:
        ConfigError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_text(json.dumps(costs.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); give --out another place") from None


def read_measured(path: str | Path) -> MeasuredCosts:
    """Read a file of `hyperparallel profile`.

    Raises:
        ConfigError: it cannot be read, or is not one of those.
    """
    try:
        values = parse_json(read_text(Path(path)))
        version = values.get("version") if isinstance(values, dict) else None
        if version != VERSION or isinstance(version, bool):
            raise ConfigError(
                f"{path}: version {version!r:.40}; this program reads files of hyperparallel profile, version "
                f"{VERSION}: measure again"
            )
        return check_json(values, MeasuredCosts)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); make it with hyperparallel profile CONFIG.yaml --out {path}"
        ) from None
    except JsonError as error:
        raise ConfigError(f"{path}: {error}; measure again with hyperparallel profile") from None


def check_measured(
    path: str | Path,
    costs: MeasuredCosts,
    layers: Sequence[tuple[str, bool, float]],
    conditions: Mapping[str, str | bool | int],
) -> None:
    """Refuse the file of another model, or one measured under other conditions.

    Args:
        path: for the message.
        costs: the file.
        layers: (name, trainable, work) of the model, as in `MeasuredLayer`.
        conditions: of the job.

    Raises:
        ConfigError: says the first difference.
    """
    again = "; measure this configuration with hyperparallel profile"
    if len(costs.layers) != len(layers):
        raise ConfigError(
            f"{path} has the times of {len(costs.layers)} layers ({costs.layers[0].name} .. {costs.layers[-1].name}), "
            f"the model has {len(layers)}{again}"
            if costs.layers
            else f"{path} has no layers{again}"
        )
    for index, (there, (name, trainable, work)) in enumerate(zip(costs.layers, layers, strict=True)):
        for what, one, other in (
            ("named", there.name, name),
            ("trainable", there.trainable, trainable),
            ("work in FLOPs", there.work, work),
        ):
            if one != other:
                raise ConfigError(f"{path} is of another model: layer {index} is {what} {one!r}, here {other!r}{again}")
    for key, value in conditions.items():
        if costs.conditions.get(key) != value:
            raise ConfigError(
                f"{path} was measured with {key} = {costs.conditions.get(key)!r:.60}, here {value!r}{again}"
            )
