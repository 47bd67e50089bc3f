"""The layer contract: how a model enters HyperParallel (design, section 5).

A model is a list of `Layer`. A rank builds only the layers of its own slabs, so nothing here may depend on
which rank runs or on which schedule: the same (seed, name) gives the same weights everywhere.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import config as dataset_config
from mindspore.nn.layer.normalization import (
    _BatchNorm as BatchNorm,
)  # the base of BatchNorm1d, 2d, 3d and SyncBatchNorm
from mindspore.nn.utils import no_init_parameters

from hyperparallel.algebra import LayerSpec, ModelSpec
from hyperparallel.cells.dropout import Dropout
from hyperparallel.cells.tensor_parallel import Shard
from hyperparallel.cost.roofline import Traffic
from hyperparallel.errors import ModelError

_random = importlib.import_module("mindspore.common.seed")  # an import statement would find the function `seed`


@dataclass(frozen=True)
class Layer:
    """Declare one layer of a model: the smallest unit that a cut can move.

    The Cell is called with the carry of the layer before it followed by its columns; the very first layer of
    the model gets its columns only. It returns the next carry: one Tensor, or a tuple of two or more. The last
    layer of the model returns `(loss, weight, *metrics)`, float32 scalars: the *sum* of the loss over the
    micro-batch, the number of terms in that sum, and sums for each name in `metrics`. The runner divides the
    loss of the step by the weight of the step, so unequal micro-batches count by their tokens.

    Args:
        name: global name, unique in the model, e.g. `vision.blocks.3`; prefixes its parameters' names.
        part: the name used in schedule lines, e.g. `vision`; layers of one part are consecutive.
        build: makes the Cell; called once on each rank that owns the layer, with random state already seeded.
        columns: batch columns that the Cell reads, in the order of its arguments after the carry.
        trainable: False freezes it: no gradient, no optimizer state, no message that only it would need. A parameter
            that the Cell itself made with `requires_grad=False` is not trained either way. A frozen BatchNorm
            normalises by its stored statistics.
        tied: parameter name inside this Cell -> global name of an earlier parameter of the same shape. Both
            copies start equal, get the sum of both gradients and stay bit-identical.
        metrics: last layer only: names of the sums it returns after loss and weight.
        work: forward FLOPs of one micro-batch as a function of its sizes, `{"images": n, "samples": n,
            "tokens": padded text tokens}`; used for predicted costs when nothing was measured. How layers are counted
            here is in `cost/layer_shapes.py`.
        traffic: what that forward moves, as a function of the same sizes, for costs from a device file; without, the
            layer is priced by its FLOPs alone.
        sharded: parameter name inside this Cell -> how it is cut; with tensor parallelism the Cell holds only this
            worker's part of it. All other parameters are whole and equal on every shard.
        partial: names inside this Cell of whole parameters that lie between `Enter` and `Leave`, such as a norm of
            each head: a shard has only its own share of their gradients, which are summed over the shards too.
        carry: shapes of the tensors that it hands on, as a function of the columns' shapes, `{"input_ids": (2, 32)}`
            -> `[(2, 32, 64)]`; a `TensorSpec` for a tensor of another type than the layers compute in. The graph
            runner needs it, since a message of a graph has one shape; not for the last layer.
        parameters: name of each parameter inside the Cell -> its global name, where that is not
            `<layer name>.<name in the Cell>`. The transpose pass keeps so the names of the Cell that it takes apart.
        frozen: names inside the Cell of the parameters that it freezes itself, where they are known beforehand; by
            default the Cell is built once to look, without drawing weights.
        check: called before the Cell with the shapes of the carry's tensors and the columns of a micro-batch by name;
            raises DataError where they do not fit each other, which an operator would say less clearly. Before the
            step already, where the batch has all columns that the `carry` of the layer before it asks for.
    """

    name: str
    part: str
    build: Callable[[], nn.Cell]
    columns: tuple[str, ...] = ()
    trainable: bool = True
    tied: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    work: Callable[[Mapping[str, float]], float] | None = None
    sharded: Mapping[str, Shard] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    carry: Callable[[Mapping[str, tuple[int, ...]]], Sequence[tuple]] | None = None
    parameters: Mapping[str, str] | None = None
    traffic: Callable[[Mapping[str, float]], Traffic] | None = None
    frozen: tuple[str, ...] | None = None
    check: Callable[[Sequence[tuple[int, ...]], Mapping[str, np.ndarray]], None] | None = None

    def global_name(self, local: str) -> str:
        """Return the global name of a parameter of its Cell."""
        return (self.parameters or {}).get(local, f"{self.name}.{local}")


def check_layers(layers: Sequence[Layer]) -> None:
    """Refuse a layer list that no cut could run.

    Raises:
        ModelError: no layer, a name used twice, a part whose layers are not consecutive, `metrics` on a layer
            other than the last, or a tie that cannot hold.
    """
    if not layers:
        raise ModelError("the model has no layers; give at least one Layer")
    names = [layer.name for layer in layers]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ModelError(f"layer {index} is named {name!r} like layer {names.index(name)}; names must be unique")
    parts = [layer.part for layer in layers]
    for index in range(1, len(parts)):
        if parts[index] != parts[index - 1] and parts[index] in parts[: index - 1]:
            raise ModelError(
                f"layer {index} ({names[index]!r}) returns to part {parts[index]!r} after part "
                f"{parts[index - 1]!r}; the layers of one part must be consecutive"
            )
    for layer in layers[:-1]:
        if layer.metrics:
            raise ModelError(f"layer {layer.name!r} declares metrics {layer.metrics}; only the last layer may")
    for index, layer in enumerate(layers):
        for local, target in layer.tied.items():
            _check_tie(index, local, target, layers)


def _check_tie(index: int, local: str, target: str, layers: Sequence[Layer]) -> None:
    """Refuse a tie whose ends could not stay equal, before a rank waits for a sum that no other rank makes."""
    layer, source = layers[index], layer_of(target, layers)
    name = f"layer {layer.name!r} ties {local!r} to {target!r}"
    if source >= index:
        raise ModelError(f"{name} of layer {source}, but is layer {index} itself; tie to an earlier layer")
    own = layers[source]
    if target in map(own.global_name, own.tied):
        raise ModelError(f"{name}, which is tied itself; tie both to the same parameter")
    cut = {own.global_name(name): shard for name, shard in own.sharded.items()}
    if cut.get(target) != layer.sharded.get(local):
        raise ModelError(f"{name}, but they are cut over the shards differently; cut both alike or neither")
    if own.trainable != layer.trainable:
        frozen = own.name if layer.trainable else layer.name
        raise ModelError(f"{name}, but {frozen!r} is frozen and the other is not; train or freeze both")


def layer_of(name: str, layers: Sequence[Layer]) -> int:
    """Return the index of the layer that holds a parameter, by its global name.

    Raises:
        ModelError: no layer lists it, and no layer's name is a prefix of it.
    """
    for index, layer in enumerate(layers):
        if layer.parameters is not None and name in layer.parameters.values():
            return index
    fits = [
        index for index, layer in enumerate(layers) if layer.parameters is None and name.startswith(layer.name + ".")
    ]
    if not fits:
        raise ModelError(
            f"parameter {name!r} belongs to no layer; layers are named {layers[0].name!r} .. {layers[-1].name!r}"
        )
    return max(fits, key=lambda index: len(layers[index].name))


def model_spec(layers: Sequence[Layer], costs: Sequence[float] | None = None) -> ModelSpec:
    """Describe a layer list to the algebra.

    Args:
        layers: the whole model.
        costs: forward + backward time of each layer, for `slabs=balanced`; default: all equal.

    Raises:
        ModelError: see `check_layers`.

    Returns:
        The model that `derive` takes.
    """
    check_layers(layers)
    costs = [1.0] * len(layers) if costs is None else list(costs)
    rows = zip(layers, trained(layers), costs, strict=True)
    return ModelSpec(tuple(LayerSpec(layer.part, trains, cost) for layer, trains, cost in rows))


def trained(layers: Sequence[Layer]) -> list[bool]:
    """Tell of every layer whether anything in it is trained: it is not frozen, nor are all its parameters.

    Args:
        layers: the whole model; the Cells of those that do not list `frozen` are built to look.
    """
    return [layer.trainable and _has_trained(layer) for layer in layers]


def _has_trained(layer: Layer) -> bool:
    if layer.frozen == ():
        return True
    if layer.frozen is not None and layer.parameters is not None:
        return len(layer.parameters) > len(layer.frozen)
    return any(_requires_grad(layer.build))


@functools.lru_cache(maxsize=4096)
def _requires_grad(build: Callable[[], nn.Cell]) -> tuple[bool, ...]:
    """Build a Cell without drawing its weights, and say of each parameter whether the Cell wants it trained."""
    with seeded(0, "look"), no_init_parameters():
        return tuple(bool(parameter.requires_grad) for parameter in build().get_parameters())


def build_layer(layer: Layer, seed: int) -> nn.Cell:
    """Build one layer's Cell with weights that depend on (seed, name) only, and globally named parameters.

    Args:
        layer: the layer to build.
        seed: the run's seed, any integer >= 0.

    Raises:
        ModelError: the Cell's parameters, or those that it freezes, are not those that the layer lists.

    Returns:
        The Cell; its parameters are named `<layer name>.<name in the Cell>`, or as `layer.parameters` says, and
        `requires_grad` says which are trained.
    """
    with seeded(seed, layer.name):
        cell = layer.build()
        for parameter in cell.get_parameters():
            parameter.init_data()
    if layer.parameters is not None:
        _check_listed(layer, cell)
    if layer.frozen is not None:
        _check_frozen(layer, cell)
    for local, part in cell.cells_and_names():
        if isinstance(part, Dropout):
            part.call_it(f"{layer.name}.{local}")
        if isinstance(part, BatchNorm) and not layer.trainable:
            part.use_batch_statistics = False
    for local, parameter in cell.parameters_and_names():
        parameter.name = layer.global_name(local)
        parameter.requires_grad = layer.trainable and parameter.requires_grad
    return cell


def _check_listed(layer: Layer, cell: nn.Cell) -> None:
    own = {local for local, _ in cell.parameters_and_names()}
    if own != set(layer.parameters):
        raise ModelError(
            f"layer {layer.name!r} lists the parameters {', '.join(sorted(layer.parameters)) or 'none'}; its Cell has "
            f"{', '.join(sorted(own)) or 'none'}"
        )


def _check_frozen(layer: Layer, cell: nn.Cell) -> None:
    own = {local for local, parameter in cell.parameters_and_names() if not parameter.requires_grad}
    if own != set(layer.frozen):
        raise ModelError(
            f"layer {layer.name!r} says that its Cell freezes {', '.join(sorted(layer.frozen)) or 'nothing'}; it "
            f"freezes {', '.join(sorted(own)) or 'nothing'}: correct frozen=..., or leave it out"
        )


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """Seed MindSpore's and numpy's random state from (seed, name); restore the caller's state afterwards."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    number = int.from_bytes(digest[:4], "little") % (2**31 - 1)
    numpy_state, generator_state = np.random.get_state(), ms.get_rng_state()
    global_seed, op_seeds, data_seed = ms.get_seed(), dict(_random._KERNEL_SEED), dataset_config.get_seed()
    ms.set_seed(number)  # numpy's too
    ms.manual_seed(number)
    try:
        yield
    finally:
        # Not by `set_seed`: it has no way back to "no seed", and restarts the counters of random operators.
        _random._GLOBAL_SEED = global_seed
        _random._KERNEL_SEED.clear()
        _random._KERNEL_SEED.update(op_seeds)
        dataset_config.set_seed(data_seed)
        ms.set_rng_state(generator_state)
        np.random.set_state(numpy_state)
