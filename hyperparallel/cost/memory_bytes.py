"""Live bytes of every rank after every action of its program, for the graph runner.

What is alive is what a later action still needs. Parameters and what stands still is there for the whole step; a
micro-batch's activations from its F to its B (or I); features, carries and gradients from their producer or RECV to
their last use, or, when sent, until compute waits for a later message; sums of weight gradients from the first backward
on. While an action runs, its own scratch comes on top, and so do at the end the temporaries of the update.

Measured against MindSpore's simulated peak: docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.algebra.placement import Node, Placement
from hyperparallel.algebra.program import RECEIVES, SEND_F, SENDS, Action, B, F, I, Piece, Unit, W
from hyperparallel.algebra.progress import counterpart
from hyperparallel.cost.memory_plan import plan_stages
from hyperparallel.cost.memory_stage import LayerBytes, StageBytes

MOMENTS = 2
"""AdamW keeps two numbers for every trainable parameter."""

_OF_ONE = 3
"""Temporaries of the parameter that is being updated, in its sizes; parameters are updated one after the other."""


@dataclass(frozen=True)
class Live:
    """Live bytes of a rank at one moment, by what they are for.

    Args:
        parameters: weights and constants.
        moments: the optimizer's.
        inputs: batch columns of the rank's own micro-batches.
        activations: of Sharded slabs, kept for a backward.
        encoders: of Replicated regions, kept by the owners of the encodes for their backward.
        features: what Replicated regions hand on, and its gradients, while it waits: to be used, or to be sent.
        carries: the same of Sharded slabs.
        gradients: sums of weight gradients, and those between I and W.
        scratch: what is there only while the action runs.
    """

    parameters: int = 0
    moments: int = 0
    inputs: int = 0
    activations: int = 0
    encoders: int = 0
    features: int = 0
    carries: int = 0
    gradients: int = 0
    scratch: int = 0

    @property
    def total(self) -> int:
        """Sum of all."""
        return sum(getattr(self, one.name) for one in fields(self))


class Peak(NamedTuple):
    """The most that a rank holds.

    Args:
        bytes: how much.
        at: the action that runs then; None: the end of the step, when gradients are summed and applied.
        live: what it is for.
    """

    bytes: int
    at: Action | None
    live: Live


def predict_peaks(
    plan: Plan,
    layers: Sequence[LayerBytes],
    carries: Sequence[int],
    columns: Sequence[Mapping[str, int]],
    *,
    replicas: int = 1,
    recompute: Sequence[int] = (),
) -> list[Peak]:
    """Predict the most that every rank of a plan holds in a step.

    Args:
        plan: gives programs and placement.
        layers: of every layer of the model.
        carries: bytes that every layer hands on; 0 for the last.
        columns: of every layer, column it reads -> bytes in a micro-batch.
        replicas: D, whose gradients are summed too.
        recompute: stages whose forward is run again in the backward.

    Returns:
        One peak per rank.
    """
    stages, batch = plan_stages(plan, layers, carries, columns, recompute)
    return [peak_of(memory_curve(plan, rank, stages, batch, replicas=replicas)) for rank in range(plan.ranks)]


def peak_of(curve: Sequence[tuple[Action | None, Live]]) -> Peak:
    """Pick the first highest moment of a curve."""
    at, live = max(curve, key=lambda moment: moment[1].total)
    return Peak(live.total, at, live)


def memory_curve(
    plan: Plan,
    rank: int,
    stages: Sequence[StageBytes],
    batch: Sequence[Mapping[str, int]],
    *,
    replicas: int = 1,
) -> list[tuple[Action | None, Live]]:
    """Walk a rank's program and add up what is live during every action.

    Args:
        plan: gives the program, messages included, and the placement.
        rank: whose.
        stages: of all stages, by stage index.
        batch: of all stages, column they read -> bytes in a micro-batch.
        replicas: D.

    Returns:
        (action, live bytes while it runs), in the program's order; last (None, the end of the step).

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("gpipe(llm)", ModelSpec.of({"llm": 1}), ranks=1, micro_batches=2)
        >>> stage = StageBytes(weights=8, trained=8, largest=4, constants=0, saved=100, forward=0, backward=20,
        ...                    adding=24, carry=0)
        >>> [(str(action), live.total) for action, live in memory_curve(plan, 0, [stage], [{}])]
        [('0F0', 124), ('0F1', 224), ('0B0', 244), ('0B1', 156), ('None', 44)]
    """
    walk = _Walk(plan.placement, rank, stages, batch)
    walk.read_batch(plan.programs[rank])
    curve = [(action, walk.run(action)) for action in plan.programs[rank]]
    return [*curve, (None, walk.finish(replicas))]


Name = tuple[str, Node]
"""A carry: "h", what a node hands on, or "u", the gradient that goes to a node."""


def _carry_of(send: Action, placement: Placement) -> Name:
    if send.kind == SEND_F:
        return "h", (send.stage, send.mb)
    return "u", (placement.ends[send].stage, send.mb)


class _Walk:
    """What is live on one rank, by name."""

    def __init__(
        self, placement: Placement, rank: int, stages: Sequence[StageBytes], batch: Sequence[Mapping[str, int]]
    ):
        self.placement, self.stages, self.batch = placement, stages, batch
        self.own = range(rank, placement.stages, placement.ranks)
        self.parameters = sum(stages[stage].weights + stages[stage].constants for stage in self.own)
        self.moments = MOMENTS * sum(stages[stage].trained for stage in self.own)
        self.inputs = 0
        self.activations: dict[Node, int] = {}
        self.messages = 0  # so far
        self.leaving: dict[int, tuple[Name, int]] = {}  # number of a message -> what it sent, not free yet
        self.arrived: dict[Name, int] = {}  # carry -> number of the message that brought it
        self.carries: dict[Name, int] = {}
        self.pending: dict[Node, int] = {}  # between I and W
        self.sums: dict[int, int] = {}

    def read_batch(self, program: Sequence[Action]) -> None:
        """Count the batch columns: arguments of the whole step, so live from its start to its end."""
        read = {
            (column, action.mb): self._of(size, action.mb)
            for action in program
            if action.kind == F
            for column, size in self.batch[action.stage].items()
        }
        self.inputs = sum(read.values())

    def live(self, scratch: int = 0) -> Live:
        """Add up what is live now."""
        waiting = [*self.carries.items(), *self.leaving.values()]
        return Live(
            self.parameters,
            self.moments,
            self.inputs,
            *self._by_layout([(stage, size) for (stage, _), size in self.activations.items()]),
            *self._by_layout([(node[0], size) for (_, node), size in waiting])[::-1],
            sum(self.sums.values()) + sum(self.pending.values()),
            scratch,
        )

    def _by_layout(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Add up sizes by stage: of Sharded regions, and of Replicated ones."""
        owners = self.placement.owners
        replicated = sum(size for stage, size in sizes if owners[self.placement.region_of(stage)] is not None)
        return sum(size for _, size in sizes) - replicated, replicated

    def run(self, action: Action) -> Live:
        """Take one action; returns what is live while it runs."""
        if action.kind in SENDS:
            self.messages += 1
            name = _carry_of(action, self.placement)
            self.leaving[self.messages] = name, self.carries.pop(name)
            return self.live()
        if action.kind in RECEIVES:
            self.messages += 1
            sent = _carry_of(counterpart(action, self.placement), self.placement)
            self.arrived[sent] = self.messages
            self._hand_on(sent)
            return self.live()
        return {F: self._forward, W: self._weights}.get(action.kind, self._backward)(action)

    def finish(self, replicas: int) -> Live:
        """End the step: sums over copies in flat messages, the norm, the update."""
        assert not self.activations, "an activation has no backward"
        owners = self.placement.owners
        summed = sum(
            self.sums[stage]
            for stage in self.sums
            if replicas > 1 or owners[self.placement.region_of(stage)] is not None
        )
        largest = max([self.stages[stage].largest for stage in self.own], default=0)
        # The sums themselves make way for the first of the update's temporaries.
        update = _OF_ONE * largest
        return self.live(scratch=max(summed, update))

    def _forward(self, action: Action) -> Live:
        stage, _, mb = action
        one = self.stages[stage]
        before, after = self.placement.neighbours[stage, mb]
        for node in before:
            self._free_sent(("h", node))
            if one.keeps_input and one.saved:
                self.carries.pop(("h", node))  # counted in what is saved
        if one.saved:
            self.activations[stage, mb] = self._of(one.saved, mb)
        if after is not None:
            self._hand_on(("h", (stage, mb)))
        during = self.live(self._of(max(0, one.forward - one.saved - one.carry), mb))
        for node in before:
            if not one.keeps_input:
                self.carries.pop(("h", node))
        return during

    def _backward(self, action: Action) -> Live:
        stage, kind, mb = action
        one = self.stages[stage]
        before, _ = self.placement.neighbours[stage, mb]
        self._free_sent(("u", (stage, mb)))
        during = self.live(self._of(one.adding if kind == B and stage in self.sums else one.backward, mb))
        self.activations.pop((stage, mb), None)
        self.carries.pop(("u", (stage, mb)), None)
        for node in before:
            self.carries.pop(("h", node), None)
            if self.placement.gates[stage].sends_gradient:
                self._hand_on(("u", node))
        if kind == I:
            self.pending[stage, mb] = one.trained
        elif kind == B and one.trained:
            self.sums[stage] = one.trained
        return during

    def _weights(self, action: Action) -> Live:
        stage, _, mb = action
        during = self.live()
        pending = self.pending.pop((stage, mb))
        if pending:
            self.sums[stage] = pending
        return during

    def _of(self, size: int, unit: Unit) -> int:
        """Take a piece's part of what a micro-batch needs."""
        return size // self.placement.split if isinstance(unit, Piece) else size

    def _free_sent(self, used: Name) -> None:
        """Free what was sent before a carry came: messages are in one queue, which the compute has now waited for."""
        number = self.arrived.pop(used, 0)
        self.leaving = {message: sent for message, sent in self.leaving.items() if message > number}

    def _hand_on(self, name: Name) -> None:
        """Let a carry, or its gradient, wait here or where it arrives."""
        stage, unit = name[1]  # whose output it is, or looks like
        self.carries[name] = self._of(self.stages[stage].carry, unit)
