"""The step of one worker as a graph: its slabs, the generated source, and the Cell made of both.

What updates the parameters is given from outside: `graph.py` puts AdamW there, another framework its own optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from hyperparallel.algebra import Plan, validate
from hyperparallel.algebra.program import Action
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.dropout import RANDOM
from hyperparallel.cells.gradients import share
from hyperparallel.cells.graph_cell import StepCell
from hyperparallel.cells.graph_finish import Finish, Summand, write_finish, write_losses
from hyperparallel.cells.graph_program import write_source
from hyperparallel.cells.graph_source import Frame, Source, StageFacts, identifier
from hyperparallel.cells.graph_wire import Here, Wires, end_of, make_wire
from hyperparallel.cells.layer import Layer, check_layers
from hyperparallel.cells.own_slabs import build_slabs
from hyperparallel.cells.shapes import Columns, carries
from hyperparallel.cells.slab import Slab
from hyperparallel.cells.source_file import import_source
from hyperparallel.cells.transport import Transport
from hyperparallel.cells.written import check_norms
from hyperparallel.errors import ModelError


class RankGraph:
    """Build one worker's slabs, and Cells that run its program.

    Args:
        plan: derived for these layers; it is validated here.
        layers: the whole model; this worker builds only its own slabs. Each but the last declares its `carry`.
        columns: shape and type of every column of a micro-batch, the same for all.
        transport: the job.
        topology: P x D x T.
        seed: seed of the initial weights; equal on every worker.
        dtype: type that the layers compute in; parameters, gradients and optimizer stay float32.
        recompute: stages whose forward is run again in the backward, which saves what is kept between the two.
        wires: how messages are made; "pair_sum" is a device for tests on CPU.
        sources: folder for the generated source; default: a temporary one.
        clip_norm: largest global gradient norm; 0 turns it off.
        scaled: the step takes a factor on the loss, by which gradients are divided again, and tells whether they are
            all finite.

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
        transport: Transport,
        topology: Topology,
        seed: int = 0,
        dtype: str = "float32",
        recompute: Sequence[int] = (),
        wires: Wires = "native",
        sources: Path | None = None,
        clip_norm: float = 0.0,
        scaled: bool = False,
    ) -> None:
        validate(plan)
        check_layers(layers)
        self.plan, self.layers, self.columns = plan, list(layers), dict(columns)
        self.transport, self.topology = transport, topology
        self.rank, self.replica, self.shard = transport.place(topology)
        self.program = plan.programs[self.rank]
        self.recompute = frozenset(recompute)
        self.clip_norm, self.scaled = clip_norm, scaled
        self._wires, self._sources = wires, sources
        by_layer = carries(self.layers, self.columns, dtype)
        # What a stage hands on is what its last layer does.
        self._carries = [by_layer[last - 1] for _, last in plan.placement.slabs]
        self.slabs = self._build_slabs(seed, dtype)
        self._check_pieces()
        check_norms(plan, [slab.chain for slab in self.slabs.values()])
        self.shared = share(plan, self.layers, self.slabs, topology, transport.rank)

    def build(
        self,
        name: str,
        program: Sequence[Action],
        update: nn.Cell | None = None,
        frame: Frame | None = None,
        *,
        trains: bool = True,
    ) -> tuple[StepCell, Source]:
        """Make the Cell of a program.

        Args:
            name: what to call its source.
            program: this rank's actions; without backwards for a forward-only step.
            update: see `graph_finish.write_finish`; None where nothing on this rank is trained.
            frame: what another training loop has around it.
            trains: False for a forward-only step. A rank with nothing to train has a part in the sums of a training
                step all the same.

        Returns:
            The Cell, and the source, which says what it takes.
        """
        source, finish = self._write(program, trains, one_by_one=frame is None)
        title = f"{name} of worker {self.transport.rank} under {self.plan.schedule}"
        parts = self._parts(source, finish)
        lines = replace(source, lines=[*source.lines, *finish.lines])
        if frame is not None:
            lines.arguments = list(frame.arguments)
            lines.lines = [*frame.before(source.inputs), *lines.lines[:-1], f"return {frame.result}"]
            parts |= frame.parts
        if update is not None:
            parts["update"] = update
        module = import_source(lines.text(title), name.lower(), self._sources)
        cell = module.Step(parts, 2 + len(self.layers[-1].metrics), self.clip_norm)
        cell.set_train(True)
        return cell, source

    def _build_slabs(self, seed: int, dtype: str) -> dict[int, Slab]:
        """Build this rank's slabs, uncompiled, each told the width of its carry and what it computes in."""
        neighbours, shards = self.plan.placement.neighbours, self.topology.tensor_parallel
        slabs = build_slabs(self.plan, self.layers, self.rank, seed=seed, jit=False, tensor_parallel=shards)
        for stage, slab in slabs.items():
            before = next((nodes for (one, _), (nodes, _) in neighbours.items() if one == stage), ())
            slab.chain.carried = len(self._carries[before[0][0]]) if before else 0
            if dtype != "float32":
                slab.compute_in(dtype)
        return slabs

    def _check_pieces(self) -> None:
        """Refuse images that do not go into pieces of one shape, which a graph needs."""
        split, encoder = self.plan.placement.split, self.slabs.get(self.rank)
        if split == 1 or encoder is None:
            return
        firsts = {name: self.columns[name].shape[0] for name in encoder.columns if name != RANDOM}
        firsts |= {f"carry {index}": spec.shape[0] for index, spec in enumerate(self._carries[self.rank])}
        for name, rows in firsts.items():
            if rows % split:
                raise ModelError(
                    f"{self.plan.schedule} encodes in {split} pieces; a graph needs equal ones, but {name} of the "
                    f"encoder has {rows} rows in its first axis: make that a multiple of {split} (run.max_images)"
                )

    def _write(self, program: Sequence[Action], trains: bool, one_by_one: bool) -> tuple[Source, Finish]:
        """Generate the source of a program, and what ends it."""
        facts = {
            stage: StageFacts(slab.columns, slab.trains, len(slab.weights) > 0, stage in self.recompute)
            for stage, slab in self.slabs.items()
        }
        widths = [len(carry) for carry in self._carries]
        serial = self.topology.tensor_parallel > 1
        source = write_source(program, self.plan.placement, facts, widths, serial, self.scaled)
        packed = source.packed
        if self.shard > 0 and packed == "packed":  # the other shards of this replica have the same losses
            source.lines.append("packed = packed * 0.0")
        workers = self.topology.workers
        if not trains:
            finish = Finish([*write_losses(source.token, packed, workers), "return packed, self.no_norm"])
            return source, finish
        summands = [
            Summand(one.copies, tuple(one.parameters[0].shape), one.ranks, one.counted_by == self.transport.rank)
            for one in self.shared
        ]
        finish = write_finish(
            summands,
            source.summed,
            source.token,
            packed,
            workers=workers,
            clip=self.clip_norm > 0,
            scaled=self.scaled,
            one_by_one=one_by_one,
        )
        return source, finish

    def _parts(self, source: Source, finish: Finish) -> dict[str, object]:
        """Make what the source names."""
        parts: dict[str, object] = {}
        for action in source.gates:
            parts[f"gate_{identifier(action)}"] = _gate(action)
        if self.plan.placement.split > 1:
            parts |= {"join": ops.Concat(0), "cut": ops.Split(0, self.plan.placement.split)}
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
        return parts


def _gate(action: Action) -> ops.Depend:
    """Make the operator that holds an action back, and by which it is found in the compiled graph."""
    gate = ops.Depend()
    gate.add_prim_attr("action", str(action))
    return gate
