"""Make a Layer whose parameters have MindFormers' names, are frozen by pattern, and start equal for every T."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import mindspore as ms
from mindspore import nn

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.tensor_parallel import WHOLE, Shard, TensorParallel, slice_parameter
from hyperparallel.errors import ConfigError

Make = Callable[[TensorParallel], nn.Cell]
"""Makes a layer's Cell for a worker's place among the T workers of its stage."""


def named_layer(
    name: str,
    make: Make,
    *,
    strip: str = "",
    parallel: TensorParallel = WHOLE,
    sharded: Mapping[str, Shard] | None = None,
    partial: Sequence[str] = (),
    **more,
) -> Layer:
    """Declare a layer.

    Args:
        name: MindFormers' name of the module, `decoder.layers.3`.
        make: makes its Cell.
        strip: what the Cell's own parameter names have in front, which MindFormers' names have not.
        parallel: this worker's place.
        sharded: how parameters are cut with T > 1.
        partial: whole parameters of whose gradient each shard has a share.
        more: further arguments of `Layer`.
    """
    # Nothing is drawn here: a parameter gets its values when it is asked for them.
    own = {local: parameter.requires_grad for local, parameter in make(WHOLE).parameters_and_names()}
    cut = {local: shard for local, shard in (sharded or {}).items() if local in own} if parallel.size > 1 else {}
    return Layer(
        name,
        build=lambda: _build(make, parallel, cut),
        parameters={local: f"{name}.{local.removeprefix(strip)}" for local in own},
        sharded=cut,
        partial=tuple(local for local in partial if local in own) if parallel.size > 1 else (),
        frozen=tuple(local for local, trained in own.items() if not trained),
        **more,
    )


def freeze(layers: Sequence[Layer], patterns: Sequence[str]) -> list[Layer]:
    """Freeze parameters by the patterns that match their names.

    Args:
        layers: from `named_layer`.
        patterns: as in a shell: `vision.*`, `*.bias`.

    Raises:
        ConfigError: a pattern matches nothing; says what there is.

    Returns:
        The layers; one whose parameters are all frozen needs no backward of its own.
    """
    names = [name for layer in layers for name in layer.parameters.values()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"freeze: {pattern!r} matches no parameter; names are {names[0]} .. {names[-1]}, "
                f"{len(names)} of them; use * as in 'vision.*'"
            )
    return [_freeze(layer, patterns) for layer in layers]


def _freeze(layer: Layer, patterns: Sequence[str]) -> Layer:
    frozen = {
        local for local, name in layer.parameters.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not frozen:
        return layer
    if len(frozen) == len(layer.parameters):
        return replace(layer, trainable=False)

    def build() -> nn.Cell:
        cell = layer.build()
        for local, parameter in cell.parameters_and_names():
            parameter.requires_grad = parameter.requires_grad and local not in frozen
        return cell

    return replace(layer, build=build, frozen=tuple(frozen | set(layer.frozen)))


def _build(make: Make, parallel: TensorParallel, cut: Mapping[str, Shard]) -> nn.Cell:
    """Build a Cell; with T > 1 from the values of the whole one, so that a model starts equal for every T."""
    if parallel.size == 1:
        return make(parallel)
    whole = {}
    for local, parameter in make(WHOLE).parameters_and_names():
        parameter.init_data()
        whole[local] = parameter.asnumpy()
    cell = make(parallel)
    for local, parameter in cell.parameters_and_names():
        parameter.init_data()
        value = whole[local]
        if local in cut:
            value = slice_parameter(value, cut[local], parallel.shard, parallel.size)
        parameter.set_data(ms.Tensor(value, parameter.dtype))
    return cell
