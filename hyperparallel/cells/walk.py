"""One pass of a rank over its program: forwards, backwards, messages, and what is in flight between them."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mindspore import Tensor

from hyperparallel.algebra import Action
from hyperparallel.algebra.placement import Node
from hyperparallel.algebra.program import RECEIVES, SENDS, B, F, I, W, forwards_only, micro_batch
from hyperparallel.algebra.progress import counterpart
from hyperparallel.cells.pieces import join, part
from hyperparallel.cells.slab import Carry
from hyperparallel.cells.transport import Tag
from hyperparallel.errors import note

if TYPE_CHECKING:
    from hyperparallel.cells.stepwise import MicroBatch, Runner


class Record(NamedTuple):
    """When an action really ran, in seconds of this rank's clock since the step began."""

    action: Action
    start: float
    end: float
    bytes: int = 0
    """Size of the message, for a SEND."""


class Walk:
    """One pass over a rank's program: what is in flight lives here and is gone afterwards."""

    def __init__(self, runner: Runner, batch: Sequence[MicroBatch], train: bool, numbers: Sequence[int] | None = None):
        self.runner, self.batch, self.train, self.numbers = runner, batch, train, numbers
        self.placement = runner.plan.placement
        self.program = runner.program if train else forwards_only(runner.program)
        self.inputs: dict[Node, tuple] = {}
        self.carries: dict[Action, Carry] = {}  # keyed by the F or B that produced them; a B's by piece, if joined
        self.rows: dict[Node, list[int]] = {}  # where pieces were joined: how many rows each has
        self.postponed: dict[Node, tuple[Tensor, ...]] = {}  # weight gradients between I and W
        self.losses: dict[int, Tensor] = {}  # packed (loss, weight, *metrics)
        self.awaited: dict[int, deque[Action]] = defaultdict(deque)  # by peer, receives in channel order
        self.records: list[Record] = []
        self.waited = 0.0  # seconds for messages
        self.began = time.perf_counter()
        for action in self.program:
            if action.kind in RECEIVES:
                send = counterpart(action, self.placement)
                self.awaited[self.placement.rank_of(send.stage)].append(send)

    def run(self) -> None:
        """Do every action in order. A RECV is not waited for where it stands but where its data is used.

        What goes wrong in an action is raised with a note of it.
        """
        action = None
        try:
            for action in self.program:
                if action.kind in SENDS:
                    self._send(action)
                elif action.kind == F:
                    self._forward(action)
                elif action.kind in (B, I):
                    self._backward(action)
                elif action.kind == W:
                    self._weight_gradient(action)
        except Exception as error:
            note(error, f"rank {self.runner.transport.rank} was in {action} of step {self.runner.step_number}")
            raise

    def _forward(self, action: Action) -> None:
        stage, _, mb = action
        slab = self.runner.slabs[stage]
        before, after = self.placement.neighbours[stage, mb]
        taken = [self._take(Action(left, F, unit)) for left, unit in before]
        start = time.perf_counter()
        if len(taken) > 1:
            self.rows[stage, mb] = [len(one[0] if isinstance(one, tuple) else one) for one in taken]
            taken = [join(taken)]
        inputs = slab.inputs(taken[0] if taken else None, self.batch[micro_batch(mb)], mb, self.placement.split)
        with self.runner.writes.watch(stage, self.train, self.numbers):
            output = slab.forward(inputs, self.train, keep=stage not in self.runner.recompute)
        if self.train and slab.trains:
            self.inputs[stage, mb] = inputs
        if after is None:
            self.losses[mb] = output
        self.carries[action] = output
        self._record(action, start, output)

    def _backward(self, action: Action) -> None:
        """Run a whole backward. For I, its weight gradients are kept for W: computing them apart would run parts of
        the backward twice, since MindSpore differentiates for inputs and weights in one pass."""
        stage, kind, mb = action
        slab = self.runner.slabs[stage]
        before, after = self.placement.neighbours[stage, mb]
        output = self.carries.pop(Action(stage, F, mb), None)
        scale = self.runner.scale.value
        gradient = slab.loss_gradient(output, scale) if after is None else self._take(Action(after[0], B, mb))
        start = time.perf_counter()
        inputs = self.inputs.pop((stage, mb))
        if stage in self.runner.recompute:
            slab.forward(inputs, self.train)
        upstream, weights = slab.backward(inputs, gradient)
        if kind == I:
            self.postponed[stage, mb] = weights
        else:
            self.runner.gradients.add(stage, weights)
        if upstream is not None:
            rows = self.rows.pop((stage, mb), None)
            for _, unit in before:
                piece = upstream if rows is None else part(upstream, rows, unit.index)
                self.carries[Action(stage, B, unit)] = piece
        self._record(action, start, weights or (() if upstream is None else upstream))

    def _weight_gradient(self, action: Action) -> None:
        start = time.perf_counter()
        self.runner.gradients.add(action.stage, self.postponed.pop((action.stage, action.mb)))
        self._record(action, start, ())

    def _take(self, source: Action) -> Carry:
        """Get what another stage produced: from this rank, or from the message it sends."""
        rank = self.placement.rank_of(source.stage)
        if rank == self.runner.rank:
            return self.carries.pop(source)
        while source not in self.carries:
            send = self.awaited[rank].popleft()
            start = time.perf_counter()
            arrays = self.runner.transport.receive(self._global(rank), Tag(send, self.runner.step_number))
            self.waited += time.perf_counter() - start
            tensors = tuple(Tensor(array) for array in arrays)
            produced = Action(send.stage, F if send.kind == "SEND_F" else B, send.mb)
            self.carries[produced] = tensors[0] if len(tensors) == 1 else tensors
        return self.carries.pop(source)

    def _send(self, action: Action) -> None:
        produced = Action(action.stage, F if action.kind == "SEND_F" else B, action.mb)
        carry = self.carries.pop(produced)
        tensors = carry if isinstance(carry, tuple) else (carry,)
        receive = counterpart(action, self.placement)
        peer = self._global(self.placement.rank_of(receive.stage))
        start = time.perf_counter()
        arrays = [tensor.asnumpy() for tensor in tensors]
        self.runner.transport.send(peer, Tag(action, self.runner.step_number), arrays)
        if self.runner.records is not None:
            sent = sum(array.nbytes for array in arrays)
            self.records.append(Record(action, start - self.began, time.perf_counter() - self.began, sent))

    def _global(self, rank: int) -> int:
        """Return the worker of another pipeline rank that has this worker's replica and shard."""
        return self.runner.topology.worker(rank, self.runner.replica, self.runner.shard)

    def _record(self, action: Action, start: float, results: Carry | tuple) -> None:
        """Note when an action ran; only then is it worth waiting for its result."""
        if self.runner.records is not None:
            for tensor in results if isinstance(results, tuple) else (results,):
                tensor.asnumpy()
            self.records.append(Record(action, start - self.began, time.perf_counter() - self.began))
