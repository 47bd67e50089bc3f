"""The state of a runner by global names: weights, and the two moments of AdamW of what is trained.

Names do not depend on the runner, the schedule, P, D or T, so what one job wrote another reads:

    llm.head.norm.weight                     a weight
    optimizer.first.llm.head.norm.weight     its first moment, likewise optimizer.second.

Tied copies have the name of what they are tied to and are one tensor. Of what T workers share each has its part.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from mindspore import Parameter, Tensor, ops

from hyperparallel.cells.gradients import Shared
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.layer import Layer, layer_of
from hyperparallel.cells.slab import canonical_names
from hyperparallel.cells.stepwise import Runner
from hyperparallel.errors import CheckpointError, ModelError
from hyperparallel.tensors import FIRST, MOMENTS, SECOND, Shard

AnyRunner = Runner | GraphRunner

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Held:
    """One tensor of the state on this worker.

    Args:
        name: its global name.
        copies: the parameters that hold it here, equal to the bit; at least one.
        shard: how it is cut over the T workers of its stage; None where each has the whole.
        writer: the one worker that writes it; of a cut one, this worker's part.
    """

    name: str
    copies: tuple[Parameter, ...]
    shard: Shard | None
    writer: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole, not of this worker's part."""
        shape = list(self.copies[0].shape)
        if self.shard is not None:
            shape[self.shard.axis] = sum(self.shard.blocks)
        return tuple(shape)


class Tensors(Protocol):
    """Where `load` reads from."""

    where: str
    """What to call it in messages."""

    shapes: Mapping[str, tuple[int, ...]]
    """Name -> shape of the whole tensor."""

    def read(self, name: str, shard: Shard | None, index: int, size: int) -> np.ndarray:
        """Read a tensor, or with a shard the part `index` of `size`."""
        ...


def state_of(runner: AnyRunner) -> list[Held]:
    """List the state that a worker holds, in one order for all workers that hold the same.

    Args:
        runner: of this worker.
    """
    weights = _weights(runner)
    held = list(weights.values())
    for one, first, second in _moments(runner):
        weight = weights[one.name]
        held += [Held(FIRST + one.name, first, weight.shard, weight.writer)]
        held += [Held(SECOND + one.name, second, weight.shard, weight.writer)]
    return sorted(held, key=lambda one: one.name)


def arrays_to_write(runner: AnyRunner) -> dict[str, tuple[np.ndarray, Shard | None]]:
    """Return what this worker writes: name -> (values, how they are cut).

    Over all workers every tensor is in it once, of a cut one every part.

    Args:
        runner: of this worker.
    """
    worker = runner.transport.rank
    return {one.name: (one.copies[0].asnumpy(), one.shard) for one in state_of(runner) if one.writer == worker}


def updates_of(runner: AnyRunner) -> int:
    """Return how many updates the optimizer has made; a step that was skipped is none."""
    return runner.optimizer.updates if isinstance(runner, Runner) else runner.updates


def check_fits(runner: AnyRunner, tensors: Tensors) -> None:
    """Refuse tensors that are not those of this worker's layers, before anything is changed.

    Args:
        runner: of this worker.
        tensors: where the state would come from.

    Raises:
        CheckpointError: a weight is missing or has another shape, or there is one that the model has not.
    """
    held = {one.name: one for one in state_of(runner)}
    weights = [name for name in held if not name.startswith(MOMENTS)]
    missing = [name for name in weights if name not in tensors.shapes]
    if missing:
        raise CheckpointError(
            f"{tensors.where} does not have {_some(missing)}, which the model has; give a checkpoint of this model, "
            "or the section 'model' that the checkpoint was made with"
        )
    for name in sorted(held.keys() & set(tensors.shapes)):
        found, expected = tuple(tensors.shapes[name]), held[name].shape
        if found != expected:
            raise CheckpointError(
                f"{tensors.where}: {name} has the shape {found}, the model's has {expected}; give the sizes in the "
                "section 'model' that the checkpoint was made with"
            )
    _refuse_unknown(runner, tensors, set(weights))


def load(runner: AnyRunner, tensors: Tensors, moments: bool = True) -> None:
    """Put stored values into the parameters of this worker.

    Args:
        runner: of this worker; compiled steps see the new values.
        tensors: what `check_fits` took.
        moments: the optimizer's state too. A parameter without stored moments, as it was frozen then, starts them at
            zero, which is said in a warning.

    Raises:
        CheckpointError: a tensor cannot be read.
    """
    fresh = []
    for one in state_of(runner):
        is_moment = one.name.startswith(MOMENTS)
        if is_moment and not moments:
            continue
        if one.name in tensors.shapes:
            value = tensors.read(one.name, one.shard, runner.shard, runner.topology.tensor_parallel)
        else:
            value = np.zeros(one.copies[0].shape, np.float32)
            if one.name.startswith(FIRST) and one.writer == runner.transport.rank:
                fresh.append(one.name.removeprefix(FIRST))
        for copy in one.copies:
            # In place: a graph that is compiled already does not see `set_data`.
            ops.assign(copy, Tensor(value, copy.dtype))
    if fresh:
        _logger.warning(
            "%s has no optimizer state of %s, frozen when it was saved; it starts at zero", tensors.where, _some(fresh)
        )


def go_on_from(runner: AnyRunner, step: int, updates: int) -> None:
    """Set a runner's counters, by which bias is corrected and random numbers are keyed.

    Args:
        runner: of this worker.
        step: steps done.
        updates: updates that the optimizer has made, at most `step`.
    """
    runner.step_number = step
    if isinstance(runner, Runner):
        runner.optimizer.go_on_from(updates)
    else:
        runner.updates = updates


def _weights(runner: AnyRunner) -> dict[str, Held]:
    """Gather this worker's parameters by canonical name."""
    layers, topology = runner.layers, runner.topology
    tied = canonical_names(layers)
    copies: dict[str, list[Parameter]] = defaultdict(list)
    for slab in runner.slabs.values():
        for parameter in slab.chain.get_parameters():
            copies[tied.get(parameter.name, parameter.name)].append(parameter)
    shards: dict[str, Shard] = {}
    if topology.tensor_parallel > 1:
        shards = {layer.global_name(local): shard for layer in layers for local, shard in layer.sharded.items()}
    held = {}
    for name, parameters in copies.items():
        shard = shards.get(name)
        writers = topology.replicas(_holders(name, runner, tied), 0 if shard is None else runner.shard)
        held[name] = Held(name, tuple(parameters), shard, writers[0])
    return held


def _holders(name: str, runner: AnyRunner, tied: Mapping[str, str]) -> tuple[int, ...]:
    """List the pipeline ranks that hold a parameter or a copy tied to it."""
    names = [name, *(alias for alias, target in tied.items() if target == name)]
    placement = runner.plan.placement
    return tuple(sorted({rank for one in names for rank in placement.holders(layer_of(one, runner.layers))}))


def _moments(runner: AnyRunner) -> list[tuple[Shared, tuple[Parameter, ...], tuple[Parameter, ...]]]:
    """Return what is trained here with its moments, one for every copy on this worker."""
    if isinstance(runner, Runner):
        shared, pairs = runner.gradients.shared, runner.optimizer.moments()
    else:
        shared, pairs = runner.shared, runner.update.moments() if runner.update is not None else []
    assert len(pairs) == sum(len(one.parameters) for one in shared), "the optimizer has other parameters"
    rows, rest = [], iter(pairs)
    for one in shared:
        own = [next(rest) for _ in one.parameters]
        rows.append((one, tuple(first for first, _ in own), tuple(second for _, second in own)))
    return rows


def _refuse_unknown(runner: AnyRunner, tensors: Tensors, weights: set[str]) -> None:
    """Refuse names of no layer, and those of this worker's layers that they do not have.

    The rest belong to the layers of other workers, which look at them.
    """
    here = {name for slab in runner.slabs.values() for name in slab.names}
    tied = canonical_names(runner.layers)
    unknown = []
    for stored in tensors.shapes:
        name = stored.removeprefix(FIRST).removeprefix(SECOND)
        owner = _layer_or_none(name, runner.layers)
        if owner is None or (owner.name in here and name not in weights):
            unknown.append(stored)
    if not unknown:
        return
    ties = [name for name in unknown if name in tied]
    hint = f" ({ties[0]} is tied to {tied[ties[0]]} here, which is stored once, under that name)" if ties else ""
    raise CheckpointError(
        f"{tensors.where} has {_some(unknown)}, which the model has not{hint}; give the section 'model' that the "
        "checkpoint was made with"
    )


def _layer_or_none(name: str, layers: Sequence[Layer]) -> Layer | None:
    try:
        return layers[layer_of(name, layers)]
    except ModelError:
        return None


def _some(names: Sequence[str]) -> str:
    """Name a few."""
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
