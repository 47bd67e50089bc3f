"""Compile or run small networks as one rank of two: `dryrun_networks.py compile|run NAME...`; see `BUILD`."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


def gate(action: str) -> ops.Depend:
    depend = ops.Depend()
    depend.add_prim_attr("action", action)
    return depend


class Forth(nn.Cell):
    """Send, then receive."""

    def __init__(self, peer: int, out: int, back: int) -> None:
        super().__init__()
        self.dense = nn.Dense(8, 8)
        self.first, self.second = gate("0F0"), gate("0B0")
        self.send = ops.Send(out, peer)
        self.receive = ops.Receive(back, peer, [4, 8], ms.float32)

    def construct(self, x, token):
        sent = self.send(self.dense(self.first(x, token)))
        return ops.relu(self.second(self.receive(ops.depend(x, sent)), sent))


class Back(nn.Cell):
    """Receive, then send."""

    def __init__(self, peer: int, out: int, back: int) -> None:
        super().__init__()
        self.dense = nn.Dense(8, 8)
        self.gate = gate("1F0")
        self.send = ops.Send(out, peer)
        self.receive = ops.Receive(back, peer, [4, 8], ms.float32)

    def construct(self, x, token):
        return self.send(self.dense(self.gate(self.receive(x), token)))


class Untied(nn.Cell):
    """Two collectives that nothing holds in order."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = ops.AllReduce(), ops.AllReduce()

    def construct(self, x, token):
        return self.one(x), self.two(token)


class Broken(nn.Cell):
    """Shapes that do not fit."""

    def construct(self, x, token):
        return x + token


BUILD = {
    "good": lambda rank: (Forth(1, 0, 1), Back(0, 1, 0))[rank],
    "both_send": lambda rank: Forth(1 - rank, rank, 1 - rank),
    "swapped_tags": lambda rank: (Forth(1, 0, 1), Back(0, 0, 1))[rank],
    "untied": lambda rank: Untied(),
    "broken": lambda rank: Broken(),
}


def main(how: str, names: list[str]) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("Ascend", 0)
    ms.communication.init()
    x, token = Tensor(np.ones((4, 8), np.float32)), Tensor(np.ones(3, np.float32))
    for name in names:
        network = BUILD[name](ms.communication.get_rank())
        network.set_train()
        if how == "compile":
            network.compile(x, token)
        else:
            network(x, token)
            print("peak", ms.runtime.max_memory_allocated())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
