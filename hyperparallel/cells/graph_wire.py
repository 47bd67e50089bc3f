"""Both ends of a message inside a graph: native Send and Receive, or a stand-in that has CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mindspore as ms
from mindspore import Tensor, nn, ops

from hyperparallel.cells.shapes import TensorSpec


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
