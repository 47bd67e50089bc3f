"""The graph runner: the whole step of a rank is one graph-mode Cell, with messages in the plan's order.

For Ascend, where a graph has no Python between its operators; shapes are the same for all micro-batches and steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import Piece, forwards_only, micro_batch
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.dropout import RANDOM, with_random
from hyperparallel.cells.graph_cell import StepCell
from hyperparallel.cells.graph_rank import RankGraph
from hyperparallel.cells.graph_source import Source
from hyperparallel.cells.graph_wire import Wires
from hyperparallel.cells.layer import Layer
from hyperparallel.cells.loss_scale import LossScale
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.own_slabs import parameters_of
from hyperparallel.cells.pieces import piece_of
from hyperparallel.cells.shapes import RANDOM_SPEC, Columns
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
from hyperparallel.cells.update import AdamWUpdate, rates
from hyperparallel.cells.written import check_graph
from hyperparallel.errors import DataError


class GraphRunner(RankGraph):
    """Train a model by a plan, each rank's step compiled to one graph.

    Args:
        plan: derived for these layers; it is validated here.
        layers: the whole model; this worker builds only its own slabs. Each but the last declares its `carry`.
        columns: shape and type of every column of a micro-batch, the same for all.
        transport: the job; default: a single process.
        topology: P x D x T; default: the plan's ranks.
        optimizer: settings of AdamW.
        seed: seed of the initial weights; equal on every worker.
        dtype: type that the layers compute in; parameters, gradients and optimizer stay float32.
        recompute: stages whose forward is run again in the backward, which saves what is kept between the two.
        wires: how messages are made; "pair_sum" is a device for tests on CPU.
        sources: folder for the generated source; default: a temporary one.
        scale: factor on the loss, which float16 needs; an overflow leaves the step out, on every worker alike.
        skips: leave out a step whose loss or gradient is no finite number. Without, the graph does not look.

    Raises:
        PlanError: the plan must not run.
        ConfigError: the job has another number of workers.
        ModelError: the layers cannot work, or do not declare what they hand on.
    """

    def __init__(
        self,
        plan: Plan,
        layers: Sequence[Layer],
        columns: Columns,
        *,
        transport: Transport | None = None,
        topology: Topology | None = None,
        optimizer: AdamW | None = None,
        seed: int = 0,
        dtype: str = "float32",
        recompute: Sequence[int] = (),
        wires: Wires = "native",
        sources: Path | None = None,
        scale: LossScale | None = None,
        skips: bool = False,
    ) -> None:
        self.settings, self.seed, self.scale = optimizer or AdamW(), seed, scale or LossScale()
        if any(RANDOM in layer.columns for layer in layers):
            columns = {**columns, RANDOM: RANDOM_SPEC}
        super().__init__(
            plan,
            layers,
            columns,
            transport=transport or Transport(),
            topology=topology or Topology(plan.ranks),
            seed=seed,
            dtype=dtype,
            recompute=recompute,
            wires=wires,
            sources=sources,
            clip_norm=self.settings.clip_norm,
            scaled=self.scale.dynamic or skips,
        )
        self.step_number = self.updates = 0
        parameters = [parameter for one in self.shared for parameter in one.parameters]
        self.update = AdamWUpdate(self.settings, parameters) if parameters else None
        self.cell, self.source = self.build("Step", self.program, self.update)
        self._checked = False  # that its forwards write no parameter
        self._forward_only: tuple[StepCell, Source] | None = None

    def step(
        self, batch: Sequence[MicroBatch], lr: float | None = None, numbers: Sequence[int] | None = None
    ) -> StepResult:
        """Run one optimizer step.

        Args:
            batch: M micro-batches of this replica, column -> array of the declared shape.
            lr: learning rate of this step, default the optimizer's.
            numbers: which micro-batch of the data stands in each place, 0..M-1, where it is not the same number; what
                dropout drops follows them.

        Raises:
            DataError: not M micro-batches, a column is missing or has another shape, or no label in the whole batch.

        Returns:
            Loss and sums over the global batch, the same on every worker.
        """
        inputs = self.inputs(batch, lr, self.source, numbers)
        if not self._checked:
            check_graph(self.plan, self.cell, inputs, self.chains)
            self._checked = True
        packed, norm, *finite = self.cell(*inputs)
        result = summarise(packed.asnumpy(), self.layers[-1].metrics, float(norm.asnumpy()))
        check_weight(result, self.step_number)
        updated = not finite or bool(finite[0].asnumpy())
        self.scale.update(updated)
        self.step_number += 1
        self.updates += updated
        return result._replace(updated=updated)

    def evaluate(self, batch: Sequence[MicroBatch]) -> StepResult:
        """Run the forwards only; nothing is kept or changed."""
        is_new = self._forward_only is None
        if is_new:
            self._forward_only = self.build("Forward", forwards_only(self.program), trains=False)
        cell, source = self._forward_only
        cell.set_train(False)
        inputs = self.inputs(batch, None, source)
        if is_new:
            check_graph(self.plan, cell, inputs, self.chains, trains=False)
        packed, _ = cell(*inputs)
        cell.set_train(True)
        return summarise(packed.asnumpy(), self.layers[-1].metrics, 0.0)

    def dry_run(self, batch: Sequence[MicroBatch], run: bool) -> int | None:
        """Compile the step without a device (MindSpore's simulation).

        Args:
            batch: as for `step`; only shapes count.
            run: go through the motions of a step too, which allocates simulated memory.

        Returns:
            Peak of that memory in bytes; None without `run`.
        """
        inputs = self.inputs(batch, None, self.source)
        check_graph(self.plan, self.cell, inputs, self.chains)
        if not run:
            return None
        self.cell(*inputs)  # returns something else than tensors here
        return ms.runtime.max_memory_allocated()

    @property
    def chains(self) -> list[nn.Cell]:
        """The layers of this worker, by stage."""
        return [slab.chain for slab in self.slabs.values()]

    @property
    def requests(self) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
        """What this rank reads: stage -> (its micro-batches, its columns)."""
        return read_by(self.slabs, self.program)

    def parameters(self) -> dict[str, np.ndarray]:
        """Return this rank's parameters by global name, as copies; of those in `Layer.sharded` its part."""
        return parameters_of(self.slabs)

    def inputs(
        self, batch: Sequence[MicroBatch], lr: float | None, source: Source, numbers: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Make the arguments of the Cell.

        Raises:
            DataError: as `step`.
        """
        count = self.plan.micro_batches
        check_count(batch, count)
        arguments = [rates(self.settings, self.settings.lr if lr is None else lr, self.updates)]
        if self.scaled:
            arguments.append(Tensor(self.scale.value, ms.float32))
        if RANDOM in self.columns:
            batch = with_random(batch, self.seed, self.step_number, numbers, self.replica * count)
        for column, unit in source.inputs:
            spec, mb = self.columns[column], micro_batch(unit)
            if column not in batch[mb]:
                raise DataError(f"micro-batch {mb} has no column {column!r}; it has {', '.join(sorted(batch[mb]))}")
            array = batch[mb][column]
            if array.shape != spec.shape:
                raise DataError(
                    f"micro-batch {mb}: column {column!r} has the shape {array.shape}, the graph was made for "
                    f"{spec.shape}; pad all micro-batches to the declared maximum"
                )
            if isinstance(unit, Piece):
                rows = self.columns[self.slabs[self.rank].columns[0]].shape[0]
                array = piece_of(column, array, rows, unit.index, self.plan.placement.split)
            arguments.append(Tensor(array, getattr(ms, spec.dtype)))
        check_batch(batch, self.layers)
        return arguments
