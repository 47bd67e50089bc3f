"""Parameters that a forward writes, such as statistics of a BatchNorm: found at once, refused where they would differ.

One process runs the forwards of a layer in the order of the data, each once, on one copy of its parameters. A schedule
may not: copies on several ranks, replicas or shards see other micro-batches, recompute and pieces run a forward twice
or in parts, and a backward may come after a later forward has written what it reads. Nothing in a loss would tell.

Stepwise, the parameters of a stage are compared after its first forward of training and of evaluation. A graph is read
once it is compiled.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mindspore import Tensor, nn
from mindspore.common.api import _cell_graph_executor
from mindspore.train import anf_ir_pb2

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import B, F, I, Piece
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.layer import BatchNorm
from hyperparallel.cells.slab import Slab
from hyperparallel.errors import ModelError

WAYS_OUT = (
    "freeze the layer (a frozen BatchNorm uses its stored statistics and writes nothing), or use GroupNorm or LayerNorm"
)


class ForwardWrites:
    """Watch the forwards of a worker's slabs for parameters that they write.

    Args:
        plan: what runs.
        slabs: of this worker, by stage.
        topology: P x D x T.
        recompute: stages whose forward runs twice.
    """

    def __init__(self, plan: Plan, slabs: Mapping[int, Slab], topology: Topology, recompute: frozenset[int]):
        self._plan, self._slabs, self._topology, self._recompute = plan, slabs, topology, recompute
        self._seen: set[tuple[int, bool]] = set()
        self._written: dict[int, list[str]] = {}

    def check_order(self, numbers: Sequence[int] | None) -> None:
        """Refuse a pass whose micro-batches are in another order than the data, once a forward is known to write.

        Args:
            numbers: which micro-batch of the data stands in each place; None: in order.

        Raises:
            ModelError: see there.
        """
        for stage, names in self._written.items():
            self._refuse(stage, names, _disorder(numbers))

    @contextmanager
    def watch(self, stage: int, train: bool, numbers: Sequence[int] | None) -> Iterator[None]:
        """Compare a stage's parameters around its first forward.

        Args:
            stage: whose forward runs inside.
            train: whether it is one of training.
            numbers: as for `check_order`.

        Raises:
            ModelError: it wrote a parameter, and the result would not be that of one process.
        """
        if (stage, train) in self._seen:
            yield
            return
        self._seen.add((stage, train))
        before = _checksums(self._slabs[stage].chain)
        yield
        after = _checksums(self._slabs[stage].chain)
        names = [name for name in before if before[name] != after[name]]
        if names:
            self._written[stage] = names
            self._refuse(stage, names, self._difference(stage, names) if train else _EVALUATION)
            self._refuse(stage, names, _disorder(numbers))

    def _difference(self, stage: int, names: Sequence[str]) -> str | None:
        """Say why one process would get other values, or None where it would get the same."""
        placement, topology = self._plan.placement, self._topology
        program = self._plan.programs[placement.rank_of(stage)]
        order = [(action.kind, action.mb) for action in program if action.stage == stage and action.kind in (F, B, I)]
        forwards = [mb for kind, mb in order if kind == F]
        if placement.owners[placement.region_of(stage)] is not None and placement.ranks > 1:
            return f"each of the P = {placement.ranks} ranks forwards only the micro-batches that it owns"
        if topology.data_parallel > 1 or topology.tensor_parallel > 1:
            return f"D = {topology.data_parallel}, T = {topology.tensor_parallel}: each worker would write its own copy"
        if stage in self._recompute:
            return f"run.recompute runs the forwards of stage {stage} twice"
        if any(isinstance(mb, Piece) for mb in forwards):
            return "its micro-batches are forwarded in pieces"
        if forwards != sorted(forwards):
            return f"stage {stage} forwards its micro-batches in the order {', '.join(map(str, forwards))}"
        if not set(names) <= _statistics(self._slabs[stage].chain) and _overlaps(order):
            return f"backwards of stage {stage} run after later forwards have written what they read"
        return None

    def _refuse(self, stage: int, names: Sequence[str], reason: str | None) -> None:
        if reason is not None:
            raise _error(self._plan, names, reason)


_EVALUATION = "evaluation would change the model"
_AGAIN = "a compiled step may run a forward again in the backward"


def check_norms(plan: Plan, layers: Sequence[nn.Cell]) -> None:
    """Refuse a BatchNorm that would keep statistics in a graph, before anything is compiled.

    Args:
        plan: what the graph runs.
        layers: its Cells.

    Raises:
        ModelError: names the statistics.
    """
    names = sorted(set().union(*map(_statistics, layers)))
    if names:
        raise _error(plan, names, _AGAIN)


def check_graph(
    plan: Plan, cell: nn.Cell, inputs: Sequence[Tensor], layers: Sequence[nn.Cell], *, trains: bool = True
) -> None:
    """Compile the step of a rank and refuse it if a forward in it writes a parameter.

    A compiled graph runs such forwards once more for the backward, so the result is never that of one process.

    Args:
        plan: what it runs.
        cell: the step, which updates each trained parameter once.
        inputs: its arguments.
        layers: the Cells that it calls.
        trains: False for a step of forwards only, which updates nothing.

    Raises:
        ModelError: names the parameters.
    """
    own = {parameter.name: parameter for layer in layers for parameter in layer.get_parameters()}
    counts = written_by_graph(cell, inputs)
    names = [name for name, count in counts.items() if name in own and count > (trains and own[name].requires_grad)]
    if names:
        raise _error(plan, names, _AGAIN if trains else _EVALUATION)


def written_by_graph(cell: nn.Cell, inputs: Sequence[Tensor]) -> dict[str, int]:
    """Count by parameter name how many operators of a compiled Cell write it.

    Args:
        cell: is compiled for these inputs, if it was not yet.
        inputs: its arguments.
    """
    cell.compile(*inputs)
    # Compiled already: this only asks under which name.
    phase, _ = _cell_graph_executor.compile(
        cell, *cell._get_compile_args(tuple(inputs)), phase=cell.phase, jit_config_dict=cell._jit_config_dict
    )
    model = anf_ir_pb2.ModelProto()
    model.ParseFromString(_cell_graph_executor._graph_executor.get_func_graph_proto(phase, "anf_ir", False))
    parameters = {parameter.name for parameter in model.graph.parameters}
    counts: dict[str, int] = {}
    for node in model.graph.node:
        if any(attribute.name == "side_effect_mem" for attribute in node.attribute):
            # An operator that only reads a parameter gets it from a Load; but BatchNorm, of gamma and beta.
            taken = node.input[3:5] if node.op_type == "BatchNorm" else node.input
            for name in {one.name for one in taken} & parameters:
                counts[name] = counts.get(name, 0) + 1
    return counts


def _error(plan: Plan, names: Sequence[str], reason: str) -> ModelError:
    shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return ModelError(
        f"a forward writes {shown}, and under {plan.schedule} the result would not be that of one process: {reason}; "
        f"{WAYS_OUT}"
    )


def _disorder(numbers: Sequence[int] | None) -> str | None:
    if numbers is None or list(numbers) == sorted(numbers):
        return None
    return f"the micro-batches are run in the order {', '.join(map(str, numbers))}; set planner.reorder: false"


def _checksums(cell: nn.Cell) -> dict[str, int]:
    return {one.name: zlib.crc32(one.asnumpy().tobytes()) for one in cell.get_parameters()}


def _statistics(cell: nn.Cell) -> set[str]:
    """Name what BatchNorms write and no forward of training reads."""
    norms = [one for _, one in cell.cells_and_names() if isinstance(one, BatchNorm)]
    norms = [one for one in norms if one.use_batch_statistics is not False]
    return {parameter.name for one in norms for parameter in (one.moving_mean, one.moving_variance)}


def _overlaps(order: Sequence[tuple[str, object]]) -> bool:
    """Tell whether more than one forward is in flight at a time, of a stage that has backwards."""
    if all(kind == F for kind, _ in order):
        return False
    return any(kind == F and later == F for (kind, _), (later, _) in zip(order, order[1:], strict=False))
