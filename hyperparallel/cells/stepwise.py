"""The stepwise runner: Python walks the rank's program, each forward and backward is a compiled Cell.

Compile time does not depend on M, and shapes may differ per micro-batch and per step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Tensor

from hyperparallel.algebra import Plan, validate
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.dropout import RANDOM, with_random
from hyperparallel.cells.gradients import Gradients, share
from hyperparallel.cells.layer import Layer, check_layers
from hyperparallel.cells.loss_scale import LossScale
from hyperparallel.cells.optimizer import AdamW, Optimizer
from hyperparallel.cells.own_slabs import build_slabs, parameters_of
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.step_result import (
    MicroBatch,
    StepResult,
    check_batch,
    check_count,
    check_weight,
    read_by,
    summarise,
)
from hyperparallel.cells.transport import Transport
from hyperparallel.cells.walk import Record, Walk
from hyperparallel.cells.written import ForwardWrites
from hyperparallel.errors import ConfigError, ModelError, PlanError


class Runner:
    """Train a model by a plan, on the ranks of one job.

    Args:
        plan: derived for these layers; it is validated here, before anything runs.
        layers: the whole model; this rank builds only its own slabs.
        transport: the job; default: a single process.
        data_parallel: D >= 1, replicas of the pipeline.
        tensor_parallel: T >= 1, workers that share each stage; the layers must have been listed for this worker's
            place among them (`Transport.tensor_parallel`). The job has P x D x T workers, numbered by `Topology`.
        optimizer: settings of AdamW.
        seed: seed of the initial weights; equal on every rank.
        jit: compile stages; False runs op by op (slow, for debugging).
        slabs: this worker's slabs by stage, ready to run, in the place of ones built from the layers.
        dtype: type that the layers compute in, "float32" or "float16"; parameters, gradients and optimizer are float32.
        recompute: stages whose forward runs again in the backward, instead of being kept between the two.
        scale: factor on the loss, which float16 needs; default: 1.

    Raises:
        PlanError: the plan must not run.
        ConfigError: P x D x T is not the number of workers in the job, or `dtype` needs `jit`.
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
        >>> runner = Runner(plan, layers, jit=False)  # compiling needs Cells whose source is in a file
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
        tensor_parallel: int = 1,
        optimizer: AdamW | None = None,
        seed: int = 0,
        jit: bool = True,
        slabs: Mapping[int, Slab] | None = None,
        dtype: str = "float32",
        recompute: Sequence[int] = (),
        scale: LossScale | None = None,
    ):
        validate(plan)
        check_layers(layers)
        self.plan, self.layers = plan, list(layers)
        self.transport = transport or Transport()
        self.topology = Topology(plan.ranks, data_parallel, tensor_parallel)
        self.rank, self.replica, self.shard = self.transport.place(self.topology)
        self.program = plan.programs[self.rank]
        self.settings = optimizer or AdamW()
        if slabs is None:
            slabs = build_slabs(plan, self.layers, self.rank, seed=seed, jit=jit, tensor_parallel=tensor_parallel)
        self.slabs = dict(slabs)
        if dtype != "float32":
            self._compute_in(dtype, jit)
        self.seed, self.recompute, self.scale = seed, frozenset(recompute), scale or LossScale()
        shared = share(plan, self.layers, self.slabs, self.topology, self.transport.rank)
        self.gradients = Gradients(shared, self.transport)
        self.optimizer = Optimizer(
            self.settings, [parameter for one in self.gradients.shared for parameter in one.parameters]
        )
        self.writes = ForwardWrites(plan, self.slabs, self.topology, self.recompute)
        self.step_number = 0
        self.bubble = 0.0  # share of the last pass that this rank waited for others
        self._passes: list[np.ndarray] = []  # sums of the step's passes so far
        self.records: list[Record] | None = None  # a list turns recording on; each step then replaces it
        self.walked = 0.0  # `time.perf_counter()` when this rank was through with its program

    def accumulate(self, batch: Sequence[MicroBatch], numbers: Sequence[int] | None = None) -> None:
        """Run a pass over the plan whose gradients and loss belong to the next `step`.

        Args:
            batch: as for `step`; other lengths than in other passes are fine.
            numbers: as for `step`.

        Raises:
            DataError: as `step`.
        """
        if not self._passes:
            self.gradients.clear()
        self._passes.append(self._run(batch, True, numbers))

    def step(
        self, batch: Sequence[MicroBatch], lr: float | None = None, numbers: Sequence[int] | None = None
    ) -> StepResult:
        """Run one optimizer step: a pass over the plan, and an update by it and the passes accumulated before.

        Args:
            batch: M micro-batches of this replica, column -> array, the same on all its shards; a rank may leave out
                what its stages do not read (`requests` says what they do).
            lr: learning rate of this step, default the optimizer's.
            numbers: which micro-batch of the data stands in each place, 0..M-1, where it is not the same number; what
                dropout drops follows them.

        Raises:
            DataError: not M micro-batches, or a column is missing.
            TransportError: a message is not the one the plan asks for.

        Returns:
            Loss and sums over the global batch, the same on every rank.
        """
        self.accumulate(batch, numbers)
        passes, self._passes = self._passes, []
        result = summarise(np.sum(passes, axis=0), self.layers[-1].metrics, 0.0)
        check_weight(result, self.step_number)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found below
            reduced = self.gradients.reduce(result.weight, self.scale.value)
            norm = self.gradients.global_norm(reduced)
        updated = bool(np.isfinite(norm) and np.isfinite(result.loss))
        if updated:
            self._update(reduced, norm, self.settings.lr if lr is None else lr)
        self.scale.update(updated)
        self.step_number += 1
        return result._replace(grad_norm=norm, updated=updated)

    def _compute_in(self, dtype: str, jit: bool) -> None:
        if not jit:
            raise ConfigError(
                f"dtype {dtype!r} needs compiled stages (run.jit: true); op by op even the loss would be computed in it"
            )
        for slab in self.slabs.values():
            slab.compute_in(dtype)

    def _update(self, gradients: Sequence[np.ndarray], norm: float, lr: float) -> None:
        """Clip, and update every copy of a parameter by the same gradient, so that copies stay bit-identical."""
        if 0 < self.settings.clip_norm < norm:
            gradients = [gradient * np.float32(self.settings.clip_norm / norm) for gradient in gradients]
        by_copy = [g for one, g in zip(self.gradients.shared, gradients, strict=True) for _ in one.parameters]
        self.optimizer.update(by_copy, lr)

    def follow(self, plan: Plan) -> None:
        """Take another plan from the next step on.

        Args:
            plan: of the same line, model, P and M; owners of the encodes and the order may differ.

        Raises:
            PlanError: it is another line's: its layers lie elsewhere.
        """
        if (plan.placement.slabs, plan.placement.gates) != (self.plan.placement.slabs, self.plan.placement.gates):
            raise PlanError(f"{plan.schedule} puts layers elsewhere than {self.plan.schedule}; make another Runner")
        self.plan, self.program = plan, plan.programs[self.rank]

    def evaluate(self, batch: Sequence[MicroBatch]) -> StepResult:
        """Run the forwards only, on the same ranks; nothing is kept or changed.

        Args:
            batch: as for `step`.
        """
        return summarise(self._run(batch, train=False), self.layers[-1].metrics, 0.0)

    @property
    def requests(self) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
        """What this rank reads: stage -> (its micro-batches, its columns)."""
        return read_by(self.slabs, self.program)

    def parameters(self) -> dict[str, np.ndarray]:
        """Return this rank's parameters by global name, as copies; of those in `Layer.sharded` its part."""
        return parameters_of(self.slabs)

    def _run(self, batch: Sequence[MicroBatch], train: bool, numbers: Sequence[int] | None = None) -> np.ndarray:
        """Walk the program once and add up the losses of all ranks."""
        count = self.plan.micro_batches
        check_count(batch, count)
        check_batch(batch, self.layers)
        if any(RANDOM in slab.columns for slab in self.slabs.values()):
            before = (len(self._passes) * self.topology.data_parallel + self.replica) * count
            batch = with_random(batch, self.seed, self.step_number, numbers, before)
        self.writes.check_order(numbers)
        walk = Walk(self, batch, train, numbers)
        try:
            walk.run()
        except BaseException:
            self._passes.clear()  # the step is lost; the next one begins anew
            raise
        self.walked = time.perf_counter()
        if self.records is not None:
            self.records = walk.records
        sums = self._collect(walk.losses)
        # The sum of the losses waits for the last rank.
        ended = time.perf_counter()
        self.bubble = (walk.waited + ended - self.walked) / (ended - walk.began)
        return sums

    def _collect(self, losses: dict[int, Tensor]) -> np.ndarray:
        """Bring every micro-batch's loss, weight and metrics to all ranks and add them in one fixed order.

        Slots for all micro-batches of all replicas make the sum independent of the schedule, to the last bit.

        Returns:
            (2 + metrics,) float64: sums over the global batch.
        """
        names = self.layers[-1].metrics
        table = np.zeros((self.topology.data_parallel, self.plan.micro_batches, 2 + len(names)), np.float32)
        for mb, values in losses.items():
            if values.size != table.shape[2]:
                raise ModelError(
                    f"layer {self.layers[-1].name!r} returned {values.size} values; expected loss, weight and its "
                    f"metrics {names}, {table.shape[2]} in all"
                )
            if self.shard == 0:  # the other shards have the same loss
                table[self.replica, mb] = values.asnumpy()
        what = f"the losses of step {self.step_number}"
        table = self.transport.sum(table, range(self.transport.size), what).astype(np.float64)
        self.transport.flush()
        return table.sum(axis=(0, 1))
