"""The annotate runner's Cell: the whole network, micro-batches, gradients and optimizer, ordered by MindSpore's engine.

Unlike the other runners' it is one program over the *global* batch: a micro-batch is that of all D replicas, every
worker gets all of it, and MindSpore cuts it, so padding and placeholders are those of one process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import PipelineCell

from hyperparallel.algebra import Plan, validate
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.annotate import check_annotate, check_net, stamp
from hyperparallel.cells.layer import Layer, build_layer, layer_of
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.shapes import Columns
from hyperparallel.cells.step_result import check_count
from hyperparallel.cells.update import AdamWUpdate, rates
from hyperparallel.cells.written import check_norms
from hyperparallel.errors import DataError

_scaled = ops.MultitypeFuncGraph("scaled")


@_scaled.register("Tensor", "Tensor")
def _scale_one(factor, gradient):
    """Multiply one gradient."""
    return gradient * factor


class AtBorder(nn.Cell):
    """The last layer of a slab. The engine refuses a Reshape as the last operator of a stage, and some layers end so.

    Args:
        layer: the layer's Cell.
    """

    def __init__(self, layer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        self.identity = ops.Identity()

    def construct(self, *inputs):
        """Run the layer."""
        return self.identity(self.layer(*inputs))


class Network(nn.Cell):
    """All layers in order; returns the sum of the loss over one micro-batch.

    Args:
        cells: of all layers.
        picks: for each layer, which of the inputs are its columns.
    """

    def __init__(self, cells: Sequence[nn.Cell], picks: Sequence[tuple[int, ...]]) -> None:
        super().__init__(auto_prefix=False)  # the parameters have global names
        self.layers = nn.CellList(cells, auto_prefix=False)
        self.picks = tuple(picks)

    def construct(self, *columns):
        """Run the layers on the columns of one micro-batch."""
        carry = None
        for index, cell in enumerate(self.layers):
            arguments = ()
            for column in self.picks[index]:
                arguments += (columns[column],)
            carry = cell(*arguments) if index == 0 else cell(carry, *arguments)
        return carry[0]


class InlinedNetwork(Network):
    """The same, compiled once for all micro-batches: the schedulers with several regions need that."""

    @ms.lazy_inline
    def __init__(self, cells: Sequence[nn.Cell], picks: Sequence[tuple[int, ...]]) -> None:
        super().__init__(cells, picks)


class TrainStep(nn.Cell):
    """One optimizer step.

    Args:
        network: a `PipelineCell`.
        settings: of AdamW.
        own: names of the parameters of this stage.
        replicas: D.
    """

    def __init__(self, network: nn.Cell, settings: AdamW, own: Collection[str], replicas: int) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ParameterTuple(network.trainable_params())
        self.differentiate = ops.GradOperation(get_by_list=True, sens_param=True)
        # mindspore.parallel.nn.PipelineGradReducer of 2.10 uses a name that it does not define.
        self.reduce = nn.PipelineGradReducer(self.weights)
        self.update = AdamWUpdate(settings, self.weights)
        self.clip_norm, self.replicas = settings.clip_norm, replicas
        # The engine cuts away what needs a parameter of another stage: a norm over all gradients, and with it silently
        # every update that is scaled by it.
        self.own = tuple(index for index, weight in enumerate(self.weights) if weight.name in own)
        self.all_sum, self.map, self.partial = ops.AllReduce(), ops.HyperMap(), ops.Partial()
        # Not inputs: of those, only the network's columns may be used here.
        self.rates = Parameter(Tensor(np.ones(3, np.float32)), name="rates", requires_grad=False)
        self.scale = Parameter(Tensor(1.0, ms.float32), name="scale", requires_grad=False)

    def construct(self, *columns):
        """Run forwards, backwards and the update; returns the sum of the loss, on the last stage only."""
        scale = self.scale * 1.0
        loss = self.network(*columns)
        gradients = self.reduce(self.differentiate(self.network, self.weights)(*columns, scale))
        if self.clip_norm > 0:
            gradients = self.clipped(gradients)
        return ops.depend(loss, self.update(self.rates * 1.0, scale, gradients))

    def clipped(self, gradients):
        """Scale the gradients down to the norm over all stages; replicas have equal gradients."""
        squares = ops.zeros((), ms.float32)
        for index in self.own:
            squares = squares + (gradients[index] * gradients[index]).sum()
        norm = ops.sqrt(self.all_sum(squares) / self.replicas)
        factor = self.clip_norm / ops.maximum(norm, self.clip_norm)
        return self.map(self.partial(_scaled, factor), gradients)


class Annotated:
    """A model annotated for MindSpore's engine; made on each worker after `mindspore.communication.init()`.

    Args:
        plan: only Sharded regions, see `check_annotate`.
        layers: the whole model, all of it built on every worker. Each but the last declares its `carry`: one tensor.
        columns: shape and type of every column of a *global* micro-batch; D divides each first axis.
        worker: number of this worker.
        topology: P x D.
        optimizer: settings of AdamW.
        seed: of the initial weights; equal on every worker.

    Raises:
        PlanError: the engine cannot express the plan.
        ModelError, ConfigError, DataError: see `check_net`.
    """

    def __init__(
        self,
        plan: Plan,
        layers: Sequence[Layer],
        columns: Columns,
        *,
        worker: int = 0,
        topology: Topology | None = None,
        optimizer: AdamW | None = None,
        seed: int = 0,
    ) -> None:
        engine = check_annotate(validate(plan))
        topology = topology or Topology(plan.ranks)
        check_net(plan, layers, columns, topology)
        self.plan, self.columns, self.settings = plan, dict(columns), optimizer or AdamW()
        self.cells = [build_layer(layer, seed) for layer in layers]
        check_norms(plan, self.cells)
        _tie(layers, self.cells)
        stamp(plan, self.cells)
        borders = {last - 1 for _, last in plan.placement.slabs if last < len(layers)}
        outer = [AtBorder(cell) if index in borders else cell for index, cell in enumerate(self.cells)]
        stamp(plan, outer)
        self.names = tuple(dict.fromkeys(name for layer in layers for name in layer.columns))
        picks = [tuple(self.names.index(name) for name in layer.columns) for layer in layers]
        network = (InlinedNetwork if engine.lazy_inline else Network)(outer, picks)
        self.own = _owned(plan, layers, self.cells, topology.coordinates(worker)[0])
        pipeline = PipelineCell(network, plan.micro_batches)
        self.train_step = TrainStep(pipeline, self.settings, self.own, topology.data_parallel)
        self.cell = AutoParallel(self.train_step, parallel_mode="semi_auto")
        self.cell.pipeline(stages=plan.ranks, interleave=engine.interleave, scheduler=engine.scheduler)
        self.cell.dataset_strategy("full_batch")
        self.cell.set_train()  # without it the engine makes an inference graph, whose ranks deadlock
        self.step_number = 0

    def step(self, batch: Sequence[Mapping[str, np.ndarray]], weight: float, lr: float | None = None) -> Tensor:
        """Run one optimizer step.

        Args:
            batch: M global micro-batches, the same on every worker.
            weight: number of terms in the loss of the whole batch, > 0. A stage cannot ask another for it, so it comes
                from whoever has the labels.
            lr: learning rate of this step, default the optimizer's.

        Raises:
            DataError: no weight, or as `inputs`.

        Returns:
            The sum of the loss; on the last stage only, elsewhere the value means nothing.
        """
        if not weight > 0:
            raise DataError(f"weight={weight}; a batch without labels has no loss to train on")
        columns = self.inputs(batch)
        self.train_step.rates.set_data(rates(self.settings, self.settings.lr if lr is None else lr, self.step_number))
        self.train_step.scale.set_data(Tensor(1 / weight, ms.float32))
        self.step_number += 1
        return self.cell(*columns)

    def inputs(self, batch: Sequence[Mapping[str, np.ndarray]]) -> list[Tensor]:
        """Make the arguments of the Cell: each column with the micro-batches joined on axis 0.

        Raises:
            DataError: not M micro-batches, or a column is missing or has another shape.
        """
        check_count(batch, self.plan.micro_batches)
        arguments = []
        for name in self.names:
            spec = self.columns[name]
            for mb, columns in enumerate(batch):
                if name not in columns or columns[name].shape != spec.shape:
                    has = f"has the shape {columns[name].shape}" if name in columns else "is missing"
                    raise DataError(f"micro-batch {mb}: column {name!r} {has}; the graph was made for {spec.shape}")
            joined = np.concatenate([columns[name] for columns in batch])
            arguments.append(Tensor(joined, getattr(ms, spec.dtype)))
        return arguments


def _tie(layers: Sequence[Layer], cells: Sequence[nn.Cell]) -> None:
    """Let tied layers hold one Parameter: the engine sends it to the other stage and its gradient back."""
    for layer, cell in zip(layers, cells, strict=True):
        for local, target in layer.tied.items():
            source = next(p for p in cells[layer_of(target, layers)].get_parameters() if p.name == target)
            *path, name = local.split(".")
            setattr(reduce(getattr, path, cell), name, source)


def _owned(plan: Plan, layers: Sequence[Layer], cells: Sequence[nn.Cell], rank: int) -> frozenset[str]:
    """Name the trainable parameters of a rank; a tied one belongs to the earlier layer's."""
    names: dict[str, int] = {}
    for index, cell in enumerate(cells):
        for parameter in cell.trainable_params():
            names.setdefault(parameter.name, plan.placement.holders(index)[0])
    return frozenset(name for name, holder in names.items() if holder == rank)
