"""Source of what ends a step: losses to every rank, gradients summed over copies, clipping, the update. Pure text.

All collectives of a rank are in one chain, after its last message, in an order that all ranks share; so no two
ranks wait for each other's collectives crosswise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

BUCKET = 16 * 2**20
"""Elements of the largest message that is put together from several gradients: 64 MiB in float32."""


class Summand(NamedTuple):
    """One trainable parameter, as `gradients.Shared` but without tensors."""

    copies: tuple[tuple[int, int], ...]
    """(stage, index in the slab's weights) of its copies on this rank."""
    shape: tuple[int, ...]
    workers: tuple[int, ...]
    """Over which its gradient is summed."""
    counts: bool
    """Whether this worker counts it in the global norm."""


@dataclass
class Finish:
    """Lines of the end of `construct`, and what they use.

    Args:
        lines: the source.
        groups: workers of each AllReduce of gradients: `sum_0`, `sum_1`, ...
        zeros: shape of each gradient that no micro-batch brought: `zeros_0`, ...
    """

    lines: list[str] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    zeros: list[tuple[int, ...]] = field(default_factory=list)


def write_finish(
    shared: Sequence[Summand],
    arrived: Sequence[int],
    token: str,
    packed: str,
    *,
    workers: int,
    clip: bool,
    scaled: bool = False,
    one_by_one: bool = True,
) -> Finish:
    """Write the end of a training step.

    Args:
        shared: this rank's trainable parameters, in the order of their names.
        arrived: stages that have a sum `acc` of gradients.
        token: what the first collective waits for.
        packed: name of the packed losses.
        workers: size of the job.
        clip: whether the global norm limits the gradients.
        scaled: gradients have the factor `scale`; it is taken out, and `finite` tells whether all of them are finite,
            on every worker alike.
        one_by_one: how parameters are updated. True: by `update.speeds(rates, weight)`, or `speeds_if` where the step
            may be skipped, and then `update.one(index, speeds, gradient)` for each; `finite` covers the loss too.
            False: by `update(finite, weight, gradients)`, with one gradient per copy.

    Returns:
        Lines that end with `return packed, norm`, and `finite` if it is scaled.
    """
    finish = Finish()
    names = [f"g{index}" for index in range(len(shared))]
    for name, one in zip(names, shared, strict=True):
        terms = [f"acc{stage}[{index}]" for stage, index in one.copies if stage in arrived]
        if not terms:
            terms = [f"self.zeros_{len(finish.zeros)}"]
            finish.zeros.append(one.shape)
        finish.lines.append(f"{name} = {' + '.join(terms)}")
    finish.lines += write_losses(token, packed, workers)
    token = "packed"
    for members in buckets(shared):
        _sum(finish, shared, members, token)
        token = "flat"
    finish.lines.append(f"factor = self.inverse({'packed[1] * scale' if scaled else 'packed[1]'})")
    if clip or scaled:
        counted = [name for name, one in zip(names, shared, strict=True) if one.counts]
        _norm(finish, counted, token, workers, clip, scaled)
    by_copy = [name for name, one in zip(names, shared, strict=True) for _ in one.copies]
    if scaled and one_by_one:
        finish.lines.append("finite = self.both_finite(square, packed[0])")
    if by_copy and one_by_one:
        speeds = "speeds_if(finite, rates, packed[1])" if scaled else "speeds(rates, packed[1])"
        finish.lines += [f"speeds = self.update.{speeds}", "done = factor"]
        for index, name in enumerate(by_copy):
            gradient = f"self.depend({name}, done) * factor"
            gradient = f"self.zero_unless(finite, {gradient})" if scaled else gradient
            finish.lines.append(f"done = self.update.one({index}, speeds, {gradient})")
    elif by_copy:
        gradients = ", ".join(f"{name} * factor" for name in by_copy)
        finish.lines.append(f"packed = self.depend(packed, self.update(finite, packed[1], ({gradients},)))")
    finish.lines.append(f"return packed, {'norm' if clip or scaled else 'self.no_norm'}{', finite' if scaled else ''}")
    return finish


def write_losses(token: str, packed: str, workers: int) -> list[str]:
    """Write how the losses reach every rank."""
    if workers == 1:
        return [f"packed = {packed}"]
    return [f"packed = self.all_sum(self.depend({packed}, {token}))"]


def buckets(shared: Sequence[Summand]) -> list[list[int]]:
    """Group the parameters that are summed over the same workers, in an order that all ranks share.

    Returns:
        Indices into `shared`; each list goes in one message of at most `BUCKET` elements, or is one parameter.
    """
    by_group: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, one in enumerate(shared):
        if len(one.workers) > 1:
            by_group[one.workers].append(index)
    found: list[list[int]] = []
    for group in sorted(by_group):
        room = 0
        for index in by_group[group]:
            size = prod(shared[index].shape)
            if size > room:
                found.append([])
                room = BUCKET
            found[-1].append(index)
            room -= size
    return found


def _sum(finish: Finish, shared: Sequence[Summand], members: Sequence[int], token: str) -> None:
    """Write one AllReduce of gradients."""
    number = len(finish.groups)
    finish.groups.append(shared[members[0]].workers)
    if len(members) == 1:
        name = f"g{members[0]}"
        finish.lines += [f"flat = self.sum_{number}(self.depend({name}, {token}))", f"{name} = flat"]
        return
    flat = ", ".join(f"self.reshape(g{index}, (-1,))" for index in members)
    finish.lines.append(f"flat = self.sum_{number}(self.depend(self.concat(({flat})), {token}))")
    offset = 0
    for index in members:
        shape = shared[index].shape
        part = f"self.slice(flat, ({offset},), ({prod(shape)},))"
        finish.lines.append(f"g{index} = self.reshape({part}, {shape})")
        offset += prod(shape)


def _norm(finish: Finish, counted: Sequence[str], token: str, workers: int, clip: bool, scaled: bool) -> None:
    """Write the global norm of the mean gradient, and bring the factor on gradients down to the limit.

    Scaled gradients are divided before they are squared, as the squares would not fit into the type.
    """
    factor = " * factor" if scaled else ""
    squares = " + ".join(f"self.square({name}{factor})" for name in counted) or "self.no_norm"
    finish.lines.append(f"square = {squares}")
    if workers > 1:
        finish.lines.append(f"square = self.all_sum(self.depend(square, {token}))")
    finish.lines.append("norm = self.root(square)" if scaled else "norm = self.root(square) * factor")
    if scaled:
        finish.lines.append("finite = self.is_finite(square)")
    if clip:
        finish.lines.append("factor = factor * self.limit(norm)")
