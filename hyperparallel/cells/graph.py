"""The graph runner: the whole step of a rank is one graph-mode Cell, with messages in the plan's order.

For Ascend, where a graph has no Python between its operators; shapes are the same for all micro-batches and steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, ops

from hyperparallel.algebra import Plan, validate
from hyperparallel.algebra.program import Action, B, I, forwards_only
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.gradients import share
from hyperparallel.cells.graph_cell import StepCell
from hyperparallel.cells.graph_finish import Finish, Summand, write_finish, write_losses
from hyperparallel.cells.graph_program import write_source
from hyperparallel.cells.graph_source import Source, StageFacts
from hyperparallel.cells.graph_wire import Here, Wires, end_of, make_wire
from hyperparallel.cells.layer import Layer, check_layers
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.own_slabs import build_slabs, parameters_of
from hyperparallel.cells.shapes import Columns, carries
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.source_file import import_source
from hyperparallel.cells.step_result import MicroBatch, StepResult, check_count, check_weight, read_by, summarise
from hyperparallel.cells.transport import Transport
from hyperparallel.cells.update import AdamWUpdate, rates
from hyperparallel.errors import DataError


class GraphRunner:
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
    ) -> None:
        validate(plan)
        check_layers(layers)
        self.plan, self.layers, self.columns = plan, list(layers), dict(columns)
        self.transport = transport or Transport()
        self.topology = topology or Topology(plan.ranks)
        self.rank, self.replica, self.shard = self.transport.place(self.topology)
        self.program = plan.programs[self.rank]
        self.settings = optimizer or AdamW()
        self.recompute = frozenset(recompute)
        self.step_number = 0
        self._wires, self._sources = wires, sources
        self._carries = self._stage_carries(dtype)
        self.slabs = self._build_slabs(seed, dtype)
        self.shared = share(plan, self.layers, self.slabs, self.topology, self.transport.rank)
        parameters = [parameter for one in self.shared for parameter in one.parameters]
        self.update = AdamWUpdate(self.settings, parameters) if parameters else None
        self.source = self._write(self.program)
        self.cell = self._build("Step", *self.source)
        self._forward_only: tuple[StepCell, Source] | None = None

    def step(self, batch: Sequence[MicroBatch], lr: float | None = None) -> StepResult:
        """Run one optimizer step.

        Args:
            batch: M micro-batches of this replica, column -> array of the declared shape.
            lr: learning rate of this step, default the optimizer's.

        Raises:
            DataError: not M micro-batches, a column is missing or has another shape, or no label in the whole batch.

        Returns:
            Loss and sums over the global batch, the same on every worker.
        """
        packed, norm = self.cell(*self.inputs(batch, lr, self.source[0]))
        result = summarise(packed.asnumpy(), self.layers[-1].metrics, float(norm.asnumpy()))
        check_weight(result, self.step_number)
        self.step_number += 1
        return result

    def evaluate(self, batch: Sequence[MicroBatch]) -> StepResult:
        """Run the forwards only; nothing is kept or changed."""
        if self._forward_only is None:
            source, finish = self._write(forwards_only(self.program))
            self._forward_only = self._build("Forward", source, finish), source
        cell, source = self._forward_only
        cell.set_train(False)
        packed, _ = cell(*self.inputs(batch, None, source))
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
        inputs = self.inputs(batch, None, self.source[0])
        if not run:
            self.cell.compile(*inputs)
            return None
        self.cell(*inputs)  # returns something else than tensors here
        return ms.runtime.max_memory_allocated()

    @property
    def requests(self) -> dict[int, tuple[tuple[int, ...], tuple[str, ...]]]:
        """What this rank reads: stage -> (its micro-batches, its columns)."""
        return read_by(self.slabs, self.program)

    def parameters(self) -> dict[str, np.ndarray]:
        """Return this rank's parameters by global name, as copies; of those in `Layer.sharded` its part."""
        return parameters_of(self.slabs)

    def inputs(self, batch: Sequence[MicroBatch], lr: float | None, source: Source) -> list[Tensor]:
        """Make the arguments of the Cell.

        Raises:
            DataError: as `step`.
        """
        check_count(batch, self.plan.micro_batches)
        arguments = [rates(self.settings, self.settings.lr if lr is None else lr, self.step_number)]
        for column, mb in source.inputs:
            spec = self.columns[column]
            if column not in batch[mb]:
                raise DataError(f"micro-batch {mb} has no column {column!r}; it has {', '.join(sorted(batch[mb]))}")
            array = batch[mb][column]
            if array.shape != spec.shape:
                raise DataError(
                    f"micro-batch {mb}: column {column!r} has the shape {array.shape}, the graph was made for "
                    f"{spec.shape}; pad all micro-batches to the declared maximum"
                )
            arguments.append(Tensor(array, getattr(ms, spec.dtype)))
        return arguments

    def _stage_carries(self, dtype: str):
        """List what each stage hands on: what its last layer does."""
        by_layer = carries(self.layers, self.columns, dtype)
        return [by_layer[last - 1] for _, last in self.plan.placement.slabs]

    def _build_slabs(self, seed: int, dtype: str) -> dict[int, Slab]:
        """Build this rank's slabs, uncompiled, each told the width of its carry and what it computes in."""
        paths, shards = self.plan.placement.paths, self.topology.tensor_parallel
        slabs = build_slabs(self.plan, self.layers, self.rank, seed=seed, jit=False, tensor_parallel=shards)
        for stage, slab in slabs.items():
            left = next((path[path.index(stage) - 1] for path in paths if stage in path[1:]), None)
            slab.chain.carried = 0 if left is None else len(self._carries[left])
            if dtype != "float32":
                slab.compute_in(dtype)
        return slabs

    def _write(self, program: Sequence[Action]) -> tuple[Source, Finish]:
        """Generate the source of a program, and what ends it."""
        facts = {
            stage: StageFacts(slab.columns, slab.trains, len(slab.weights) > 0, stage in self.recompute)
            for stage, slab in self.slabs.items()
        }
        widths = [len(carry) for carry in self._carries]
        serial = self.topology.tensor_parallel > 1
        source = write_source(program, self.plan.placement, facts, widths, serial)
        packed = source.packed
        if self.shard > 0 and packed == "packed":  # the other shards of this replica have the same losses
            source.lines.append("packed = packed * 0.0")
        workers = self.topology.workers
        if not any(action.kind in (B, I) for action in program):
            finish = Finish([*write_losses(source.token, packed, workers), "return packed, self.no_norm"])
            return source, finish
        summands = [
            Summand(one.copies, tuple(one.parameters[0].shape), one.ranks, one.counted_by == self.transport.rank)
            for one in self.shared
        ]
        clip = self.settings.clip_norm > 0
        return source, write_finish(summands, source.summed, source.token, packed, workers=workers, clip=clip)

    def _build(self, name: str, source: Source, finish: Finish) -> StepCell:
        """Import the generated class and give it what it names."""
        title = f"{name} of worker {self.transport.rank} under {self.plan.schedule}"
        lines = replace(source, lines=[*source.lines, *finish.lines])
        parts: dict[str, object] = {}
        for action in source.gates:
            parts[f"gate_{action}"] = _gate(action)
        for stage, slab in self.slabs.items():
            parts[f"stage_{stage}"] = slab.chain
            if slab.trains and source.summed:
                parts[f"weights_{stage}"] = ParameterTuple(slab.weights)
                parts[f"differentiate_{stage}"] = ops.GradOperation(
                    get_all=slab.sends_gradient, get_by_list=len(slab.weights) > 0, sens_param=True
                )
        here = Here(self.transport.rank, self.replica, self.shard)
        for wire in source.wires:
            end = end_of(wire, self.plan.placement, self._carries, self.topology, here)
            parts |= make_wire(wire, end, self._wires, self.transport.group)
        if self.topology.workers > 1:
            parts["all_sum"] = ops.AllReduce(group=self.transport.group(range(self.topology.workers)))
        for index, workers in enumerate(finish.groups):
            parts[f"sum_{index}"] = ops.AllReduce(group=self.transport.group(workers))
        for index, shape in enumerate(finish.zeros):
            parts[f"zeros_{index}"] = Tensor(np.zeros(shape, np.float32))
        if self.update is not None:
            parts["update"] = self.update
        module = import_source(lines.text(title), name.lower(), self._sources)
        cell = module.Step(parts, 2 + len(self.layers[-1].metrics), self.settings.clip_norm)
        cell.set_train(True)
        return cell


def _gate(action: Action) -> ops.Depend:
    """Make the operator that holds an action back, and by which it is found in the compiled graph."""
    gate = ops.Depend()
    gate.add_prim_attr("action", str(action))
    return gate
