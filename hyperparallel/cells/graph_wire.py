"""Both ends of a message inside a graph: native Send and Receive, or a stand-in that has CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import SENDS, Action, Piece, micro_batch
from hyperparallel.algebra.progress import counterpart
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.graph_source import Wire, identifier
from hyperparallel.cells.shapes import TensorSpec

Wires = Literal["native", "pair_sum"]
"""How messages are made: Send and Receive, or the stand-in for tests on CPU."""


class Here(NamedTuple):
    """Which worker this is."""

    worker: int
    replica: int
    shard: int


class End(NamedTuple):
    """What an end of a message must know."""

    sends: bool
    tag: int
    """The same at both ends, different for all messages of a step."""
    worker: int
    """This worker, by its number in the job."""
    peer: int
    """The worker at the other end."""
    spec: TensorSpec
    """Shape and type of the tensor."""


def native(end: End, group_of: Callable[[Sequence[int]], str]) -> nn.Cell | ops.Primitive:
    """Make a Send or Receive operator (Ascend).

    The two workers have one group, so their messages share one stream on the device, in the plan's order, which
    passes also where a send waits for its receive.

    Args:
        end: this end of the message.
        group_of: creates or finds the communication group of some workers.

    Returns:
        Called with the tensor to send, or with anything that holds the receive back.
    """
    workers = sorted((end.worker, end.peer))
    group = group_of(workers)
    peer = workers.index(end.peer)  # counted inside the group
    if end.sends:
        return ops.Send(sr_tag=end.tag, dest_rank=peer, group=group)
    dtype = getattr(ms, end.spec.dtype)
    return ops.Receive(sr_tag=end.tag, src_rank=peer, shape=list(end.spec.shape), dtype=dtype, group=group)


class PairSum(nn.Cell):
    """Stand in for Send and Receive on CPU, for tests: both ends sum over the pair, the receiver adds zeros.

    Like a rendezvous send it ends only when the other end has come, so it tests the order of messages too.

    Args:
        end: this end of the message.
        group_of: creates or finds the communication group of some workers.
    """

    def __init__(self, end: End, group_of: Callable[[Sequence[int]], str]) -> None:
        super().__init__()
        self.sum = ops.AllReduce(group=group_of(sorted((end.worker, end.peer))))
        self.dtype = getattr(ms, end.spec.dtype)

    def construct(self, tensor: Tensor) -> Tensor:
        """Sum over the pair in float32, the type that CPU collectives have."""
        return self.sum(tensor.astype(ms.float32)).astype(self.dtype)


def end_of(
    wire: Wire, placement: Placement, carries: Sequence[Sequence[TensorSpec]], topology: Topology, here: Here
) -> End:
    """Say what this end of a message must know.

    Args:
        wire: the action and which tensor of the carry.
        placement: gives the other end.
        carries: what each stage hands on, by stage index.
        topology: P x D x T.
        here: this worker.
    """
    action, index = wire
    send = action if action.kind in SENDS else counterpart(action, placement)
    receive = counterpart(send, placement)
    # A gradient looks like what the stage before its sender handed on.
    producer = send.stage if send.kind == "SEND_F" else receive.stage
    peer = (receive if action is send else send).stage
    spec = carries[producer][index]
    return End(
        sends=action.kind in SENDS,
        tag=_tag(send, index, placement, max(map(len, carries))),
        worker=here.worker,
        peer=topology.worker(placement.rank_of(peer), here.replica, here.shard),
        spec=_piece(spec, placement.split) if isinstance(send.mb, Piece) else spec,
    )


def make_wire(
    wire: Wire, end: End, wires: Wires, group_of: Callable[[Sequence[int]], str]
) -> dict[str, nn.Cell | ops.Primitive | Tensor]:
    """Make one end of a message under the name that the source has for it, and what a receive takes as its input."""
    name = f"{identifier(wire.action)}_{wire.index}"
    parts = {f"wire_{name}": (native if wires == "native" else PairSum)(end, group_of)}
    if not end.sends:
        shape = (1,) if wires == "native" else end.spec.shape
        parts[f"blank_{name}"] = Tensor(np.zeros(shape, np.float32), getattr(ms, end.spec.dtype))
    return parts


def _tag(send: Action, index: int, placement: Placement, width: int) -> int:
    """Number the messages of a step; both ends come to the same number."""
    stage, kind, unit = send
    number = micro_batch(unit) * placement.split + (unit.index if isinstance(unit, Piece) else 0)
    direction = 0 if kind == "SEND_F" else 1
    return ((stage * 2 + direction) * placement.micro_batches * placement.split + number) * width + index


def _piece(spec: TensorSpec, pieces: int) -> TensorSpec:
    return spec._replace(shape=(spec.shape[0] // pieces, *spec.shape[1:]))
