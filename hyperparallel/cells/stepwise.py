"""The stepwise runner: Python walks the rank's program, each forward and backward is a compiled Cell.

Compile time does not depend on M, and shapes may differ per micro-batch and per step.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from hyperparallel.algebra import Action, Plan, validate
from hyperparallel.algebra.program import RECEIVES, SENDS, B, F, I, W
from hyperparallel.algebra.progress import counterpart
from hyperparallel.cells.gradients import Gradients, share
from hyperparallel.cells.layer import Layer, check_layers
from hyperparallel.cells.optimizer import AdamW, Optimizer
from hyperparallel.cells.slab import Carry, Slab
from hyperparallel.cells.transport import Tag, Transport
from hyperparallel.errors import ConfigError, DataError, ModelError

MicroBatch = Mapping[str, np.ndarray]


class StepResult(NamedTuple):
    """Numbers of one step, the same on every rank."""

    loss: float
    """Mean over all terms (tokens) of the global batch."""
    weight: float
    """Number of those terms."""
    metrics: dict[str, float]
    """Sums that the last layer declares."""
    grad_norm: float
    """Global gradient norm before clipping; 0.0 when nothing is trainable or clipping is off."""


class Record(NamedTuple):
    """When an action really ran, in seconds of this rank's clock since the step began."""

    action: Action
    start: float
    end: float
    bytes: int = 0
    """Size of the message, for a SEND."""


class Runner:
    """Train a model by a plan, on the ranks of one job.

    Args:
        plan: derived for these layers; it is validated here, before anything runs.
        layers: the whole model; this rank builds only its own slabs.
        transport: the job; default: a single process.
        data_parallel: D >= 1; the job has P * D ranks, global rank = pipeline rank * D + replica.
        optimizer: settings of AdamW.
        seed: seed of the initial weights; equal on every rank.
        jit: compile stages; False runs op by op (slow, for debugging).

    Raises:
        PlanError: the plan must not run.
        ConfigError: P * D is not the number of ranks in the job.
        ModelError: the layers cannot work.

    Example:
        One process, a model of two layers:

        >>> import numpy as np
        >>> from mindspore import nn, ops, Tensor
        >>> from hyperparallel import Layer, Runner, derive, model_spec
        >>> class Head(nn.Cell):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = nn.Dense(4, 1)
        ...     def construct(self, h_BD, y_B1):
        ...         error_B1 = self.dense(h_BD) - y_B1
        ...         return (error_B1 * error_B1).sum(), ops.ones_like(y_B1).sum()
        >>> layers = [
        ...     Layer("net.first", "net", lambda: nn.Dense(3, 4), columns=("x",)),
        ...     Layer("net.head", "net", Head, columns=("y",)),
        ... ]
        >>> plan = derive("1f1b(net)", model_spec(layers), ranks=1, micro_batches=2)
        >>> runner = Runner(plan, layers)
        >>> batch = [{"x": np.ones((5, 3), np.float32), "y": np.ones((5, 1), np.float32)} for _ in range(2)]
        >>> losses = [runner.step(batch).loss for _ in range(20)]
        >>> losses[-1] < losses[0]
        True
    """

    def __init__(
        self,
        plan: Plan,
        layers: Sequence[Layer],
        *,
        transport: Transport | None = None,
        data_parallel: int = 1,
        optimizer: AdamW | None = None,
        seed: int = 0,
        jit: bool = True,
    ):
        validate(plan)
        check_layers(layers)
        self.plan, self.layers = plan, list(layers)
        self.transport = transport or Transport()
        if self.transport.size != plan.ranks * data_parallel:
            raise ConfigError(
                f"the plan has {plan.ranks} ranks x {data_parallel} replicas = {plan.ranks * data_parallel} workers, "
                f"the job has {self.transport.size}; start it with msrun --worker_num={plan.ranks * data_parallel}"
            )
        self.data_parallel = data_parallel
        self.rank, self.replica = divmod(self.transport.rank, data_parallel)
        self.program = plan.programs[self.rank]
        self.settings = optimizer or AdamW()
        self.slabs = self._build_slabs(seed, jit)
        self.gradients = Gradients(share(plan, self.layers, self.slabs, data_parallel), self.transport)
        self.optimizer = Optimizer(
            self.settings, [parameter for one in self.gradients.shared for parameter in one.parameters]
        )
        self.step_number = 0
        self.records: list[Record] | None = None  # a list turns recording on; each step then replaces it
        self.walked = 0.0  # `time.perf_counter()` when this rank was through with its program

    def step(self, batch: Sequence[MicroBatch], lr: float | None = None) -> StepResult:
        """Run one optimizer step.

        Args:
            batch: M micro-batches of this replica, column -> array; a rank may leave out what its stages do not
                read (`requests` says what they do).
            lr: learning rate of this step, default the optimizer's.

        Raises:
            DataError: not M micro-batches, or a column is missing.
            TransportError: a message is not the one the plan asks for.

        Returns:
            Loss and sums over the global batch, the same on every rank.
        """
        result = self._run(batch, train=True)
        if result.weight == 0:
            raise DataError(f"step {self.step_number}: no label in the whole batch, so there is no loss to train on")
        reduced = self.gradients.reduce(result.weight)
        norm = 0.0
        if self.settings.clip_norm > 0:
            norm = self.gradients.global_norm(reduced)
            if norm > self.settings.clip_norm:
                reduced = [gradient * np.float32(self.settings.clip_norm / norm) for gradient in reduced]
        # Every copy of a parameter gets the same gradient, so copies stay bit-identical.
        by_copy = [g for one, g in zip(self.gradients.shared, reduced, strict=True) for _ in one.parameters]
        self.optimizer.update(by_copy, self.settings.lr if lr is None else lr)
        self.step_number += 1
        return result._replace(grad_norm=norm)

    def evaluate(self, batch: Sequence[MicroBatch]) -> StepResult:
        """Run the forwards only, on the same ranks; nothing is kept or changed.

        Args:
            batch: as for `step`.
        """
        return self._run(batch, train=False)

    @property
    def requests(self) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
        """What this rank reads: stage -> (its micro-batches, its columns)."""
        needs = {}
        for stage, slab in self.slabs.items():
            own = tuple(action.mb for action in self.program if action.stage == stage and action.kind == F)
            if slab.columns:
                needs[stage] = (tuple(sorted(own)), slab.columns)
        return needs

    def parameters(self) -> dict[str, np.ndarray]:
        """Return this rank's parameters by global name, as copies."""
        return {
            parameter.name: parameter.asnumpy().copy()
            for slab in self.slabs.values()
            for parameter in slab.chain.get_parameters()
        }

    def _build_slabs(self, seed: int, jit: bool) -> dict[int, Slab]:
        placement = self.plan.placement
        slabs = {}
        for stage in range(self.rank, placement.stages, placement.ranks):
            gates = placement.gates[stage]
            slabs[stage] = Slab(
                self.layers,
                placement.slabs[stage],
                seed,
                backward=gates.receives_gradient,
                sends_gradient=gates.sends_gradient,
                jit=jit,
            )
        return slabs

    def _run(self, batch: Sequence[MicroBatch], train: bool) -> StepResult:
        """Walk the program once and add up the losses of all ranks."""
        if len(batch) != self.plan.micro_batches:
            raise DataError(f"the batch has {len(batch)} micro-batches; the plan has {self.plan.micro_batches}")
        self.gradients.clear()
        walk = _Walk(self, batch, train)
        walk.run()
        self.walked = time.perf_counter()
        if self.records is not None:
            self.records = walk.records
        return self._collect(walk.losses)

    def _collect(self, losses: dict[int, Tensor]) -> StepResult:
        """Bring every micro-batch's loss, weight and metrics to all ranks and add them in one fixed order.

        Slots for all micro-batches of all replicas make the sum independent of the schedule, to the last bit.
        """
        names = self.layers[-1].metrics
        table = np.zeros((self.data_parallel, self.plan.micro_batches, 2 + len(names)), np.float32)
        for mb, values in losses.items():
            if values.size != table.shape[2]:
                raise ModelError(
                    f"layer {self.layers[-1].name!r} returned {values.size} values; expected loss, weight and its "
                    f"metrics {names}, {table.shape[2]} in all"
                )
            table[self.replica, mb] = values.asnumpy()
        table = self.transport.sum(table, range(self.transport.size)).astype(np.float64)
        self.transport.flush()
        sums = table.sum(axis=(0, 1))
        loss = sums[0] / sums[1] if sums[1] else 0.0
        return StepResult(float(loss), float(sums[1]), dict(zip(names, map(float, sums[2:]), strict=True)), 0.0)


class _Walk:
    """One pass over a rank's program: what is in flight lives here and is gone afterwards."""

    def __init__(self, runner: Runner, batch: Sequence[MicroBatch], train: bool):
        self.runner, self.batch, self.train = runner, batch, train
        self.placement = runner.plan.placement
        kinds_left_out = () if train else (B, I, W, "SEND_B", "RECV_B")
        self.program = [action for action in runner.program if action.kind not in kinds_left_out]
        self.inputs: dict[tuple[int, int], tuple] = {}
        self.carries: dict[Action, Carry] = {}  # keyed by the F or B that produced them
        self.postponed: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # weight gradients between I and W
        self.losses: dict[int, Tensor] = {}  # packed (loss, weight, *metrics)
        self.awaited: dict[int, deque[Action]] = defaultdict(deque)  # by peer, receives in channel order
        self.records: list[Record] = []
        self.began = time.perf_counter()
        for action in self.program:
            if action.kind in RECEIVES:
                send = counterpart(action, self.placement)
                self.awaited[self.placement.rank_of(send.stage)].append(send)

    def run(self) -> None:
        """Do every action in order. A RECV is not waited for where it stands but where its data is used."""
        for action in self.program:
            if action.kind in SENDS:
                self._send(action)
            elif action.kind == F:
                self._forward(action)
            elif action.kind in (B, I):
                self._backward(action)
            elif action.kind == W:
                self._weight_gradient(action)

    def _forward(self, action: Action) -> None:
        stage, _, mb = action
        slab = self.runner.slabs[stage]
        left, right = self.placement.neighbours[stage, mb]
        carry = None if left is None else self._take(Action(left, F, mb))
        start = time.perf_counter()
        inputs = slab.inputs(carry, self.batch[mb], mb)
        output = slab.forward(inputs, self.train)
        if self.train and slab.trains:
            self.inputs[stage, mb] = inputs
        if right is None:
            self.losses[mb] = output
        self.carries[action] = output
        self._record(action, start, output)

    def _backward(self, action: Action) -> None:
        """Run a whole backward. For I, its weight gradients are kept for W: computing them apart would run parts of
        the backward twice, since MindSpore differentiates for inputs and weights in one pass."""
        stage, kind, mb = action
        slab = self.runner.slabs[stage]
        right = self.placement.neighbours[stage, mb][1]
        output = self.carries.pop(Action(stage, F, mb), None)
        gradient = slab.loss_gradient(output) if right is None else self._take(Action(right, B, mb))
        start = time.perf_counter()
        upstream, weights = slab.backward(self.inputs.pop((stage, mb)), gradient)
        if kind == I:
            self.postponed[stage, mb] = weights
        else:
            self.runner.gradients.add(stage, weights)
        if upstream is not None:
            self.carries[Action(stage, B, mb)] = upstream
        self._record(action, start, weights or upstream)

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
            arrays = self.runner.transport.receive(self._global(rank), Tag(send, self.runner.step_number))
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
        return rank * self.runner.data_parallel + self.runner.replica

    def _record(self, action: Action, start: float, results: Carry | tuple) -> None:
        """Note when an action ran; only then is it worth waiting for its result."""
        if self.runner.records is not None:
            for tensor in results if isinstance(results, tuple) else (results,):
                tensor.asnumpy()
            self.records.append(Record(action, start - self.began, time.perf_counter() - self.began))
