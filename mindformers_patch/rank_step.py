"""A rank's step inside MindFormers' training loop: its losses, its optimizer, its loss scale."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from hyperparallel.algebra.program import Piece, Unit, micro_batch
from hyperparallel.cells.graph_program import variable
from hyperparallel.cells.graph_rank import RankGraph
from hyperparallel.cells.graph_source import Frame


class RankNetwork(nn.Cell):
    """The layers of one worker, as the network that MindFormers counts, saves and loads.

    Args:
        graph: its slabs.
        config: the model's configuration.
        text: that of MindFormers' layers.
    """

    def __init__(self, graph: RankGraph, config, text) -> None:
        super().__init__(auto_prefix=False)
        self.graph, self.config, self.text = graph, config, text
        for stage, slab in graph.slabs.items():
            self.insert_child_to_cell(f"stage_{stage}", slab.chain)
        if not self.trainable_params():
            # MindFormers' optimizers refuse to have no parameters; this one stays zero.
            self.nothing = Parameter(Tensor([0.0], ms.float32), name="nothing_to_train")

    def construct(self, *_):
        """Nothing: the step runs the slabs."""
        raise NotImplementedError("a rank has only some of the layers; `rank_step` makes what runs them")

    def get_model_parameters(self, only_trainable: bool = True) -> set[Parameter]:
        """Return this worker's parameters."""
        return set(self.trainable_params() if only_trainable else self.get_parameters())

    def get_gpt_transformer_config(self):
        """Return the configuration of MindFormers' layers."""
        return self.text

    def is_moe_model(self) -> bool:
        """Tell whether there are experts."""
        return bool(self.text.num_moe_experts)

    def is_mtp_model(self) -> bool:
        """Tell whether several tokens are predicted at once: never here."""
        return False


class OptimizerUpdate(nn.Cell):
    """Let an optimizer of MindFormers update the parameters, unless a gradient is not finite.

    Args:
        optimizer: over this worker's trainable parameters.
        parameters: in the order in which gradients come.
    """

    def __init__(self, optimizer: nn.Optimizer, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        place = {parameter.name: index for index, parameter in enumerate(parameters)}
        # Groups (weight decay, learning rates) have put them into another order.
        self.order = tuple(place[parameter.name] for parameter in optimizer.parameters)
        self.done = Tensor([0.0], ms.float32)

    def construct(self, finite, weight, gradients):
        """Update; a step that overflowed or has no label changes nothing."""
        ordered = ()
        for index in self.order:
            ordered += (gradients[index],)
        done = self.done
        if ops.logical_and(finite, weight > 0):
            done = ops.depend(done, self.optimizer(ordered))
        return done


class Outputs(nn.Cell):
    """Make what MindFormers' callbacks read, and adapt the loss scale.

    Args:
        optimizer: gives the learning rate.
        scale: the loss scale, a parameter.
        manager: a Cell that adapts it, or None.
    """

    def __init__(self, optimizer: nn.Optimizer, scale: Parameter, manager: nn.Cell | None) -> None:
        super().__init__(auto_prefix=False)
        self.scale_sense, self.manager = scale, manager
        self.learning_rate, self.dynamic = optimizer.learning_rate, optimizer.dynamic_lr
        self.is_group, self.global_step = optimizer.is_group_lr, optimizer.global_step

    def rate(self):
        """Return the learning rate of the step that begins."""
        if not self.dynamic:
            return self.learning_rate
        schedule = self.learning_rate[-1] if self.is_group else self.learning_rate
        return schedule(self.global_step).reshape(())

    def construct(self, packed, norm, finite, scale, rate):
        """Return loss, overflow, loss scale, learning rate, global norm: as MindFormers' own wrappers do."""
        overflow = ops.logical_not(finite)
        if self.manager is not None:
            overflow = self.manager(self.scale_sense, overflow)
        return packed[0] / ops.maximum(packed[1], 1e-30), overflow, scale, rate, norm


def rank_step(
    network: RankNetwork,
    optimizer: nn.Optimizer,
    names: Sequence[str],
    rows: int,
    scale: float,
    manager: nn.Cell | None = None,
) -> nn.Cell:
    """Make one training step of a worker, with the outputs that MindFormers' callbacks read.

    Args:
        network: this worker's layers.
        optimizer: MindFormers' optimizer over its trainable parameters.
        names: columns of the batch in the order in which they come.
        rows: texts of a micro-batch.
        scale: loss scale of the first step.
        manager: a Cell that adapts it, or None.

    Returns:
        A Cell that is called with the columns of all M micro-batches of this replica, one below the other.
    """
    graph = network.graph
    parameters = [parameter for one in graph.shared for parameter in one.parameters]
    scale_sense = Parameter(Tensor(scale, ms.float32), name="scale_sense", requires_grad=False)

    def before(inputs: Sequence[tuple[str, Unit]]) -> list[str]:
        cut = []
        for name, unit in inputs:
            first, count = micro_batch(unit) * rows, rows
            if isinstance(unit, Piece):
                count = rows // graph.plan.placement.split
                first += unit.index * count
            cut.append(f"{variable(name, unit)} = {name}[{first} : {first + count}]")
        return ["rate = self.outputs.rate()", "scale = self.scale_sense.value()", "rates = scale", *cut]

    parts = {
        "outputs": Outputs(optimizer, scale_sense, manager),
        "scale_sense": scale_sense,
        "network": network,
        "optimizer": optimizer,
    }
    frame = Frame(tuple(names), before, "self.outputs(packed, norm, finite, scale, rate)", parts)
    update = OptimizerUpdate(optimizer, parameters) if parameters else None
    return graph.build("Step", graph.program, update, frame)[0]
