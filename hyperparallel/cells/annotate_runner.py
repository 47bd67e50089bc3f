"""MindSpore's engine behind the interface of the other runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np

from hyperparallel.algebra import Plan
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.annotate_net import Annotated
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.shapes import Columns
from hyperparallel.cells.step_result import MicroBatch, StepResult
from hyperparallel.cells.transport import Transport
from hyperparallel.cells.written import check_graph


class AnnotateRunner:
    """Train a plan of Sharded regions with `Annotated`; compiled for Ascend, never run on one.

    Args:
        plan: what `check_annotate` takes.
        layers: the whole model.
        columns: of a global micro-batch.
        transport: the job.
        topology: P x D.
        weigh: counts the terms of the loss in a batch.
        optimizer: settings of AdamW.
        seed: of the initial weights.
    """

    def __init__(
        self,
        plan: Plan,
        layers: Sequence[Layer],
        columns: Columns,
        *,
        transport: Transport,
        topology: Topology,
        weigh: Callable[[Sequence[MicroBatch]], float],
        optimizer: AdamW | None = None,
        seed: int = 0,
    ) -> None:
        transport.place(topology)
        self.plan, self.transport, self.topology, self._weigh = plan, transport, topology, weigh
        self.replica = 0  # every worker is given the global batch
        self.annotated = Annotated(
            plan, layers, columns, worker=transport.rank, topology=topology, optimizer=optimizer, seed=seed
        )

    def step(self, batch: Sequence[MicroBatch], lr: float | None = None) -> StepResult:
        """Run one optimizer step.

        Args:
            batch: M global micro-batches, the same on every worker.
            lr: learning rate of this step.

        Returns:
            Loss and weight, the same on every worker; no metrics, and no gradient norm, which stays in the graph.
        """
        weight = self._weigh(batch)
        loss = self.annotated.step(batch, weight, lr)
        is_last = self.topology.coordinates(self.transport.rank)[0] == self._last_rank()
        # Only the last stage has the loss, each of its replicas the same.
        mine = np.array([float(loss.asnumpy()) / self.topology.data_parallel if is_last else 0.0], np.float32)
        total = self.transport.sum(mine, range(self.topology.workers))[0]
        return StepResult(float(total) / weight, weight, {}, 0.0)

    @property
    def requests(self) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
        """What a worker reads: everything."""
        return {0: (tuple(range(self.plan.micro_batches)), self.annotated.names)}

    def dry_run(self, batch: Sequence[MicroBatch], run: bool) -> int | None:
        """Compile without a device; see `GraphRunner.dry_run`."""
        inputs = self.annotated.inputs(batch)
        check_graph(self.plan, self.annotated.cell, inputs, self.annotated.cells)
        if not run:
            return None
        self.annotated.cell(*inputs)
        return ms.runtime.max_memory_allocated()

    def _last_rank(self) -> int:
        return self.plan.placement.rank_of(self.plan.placement.path(0)[-1])
