"""What a CPU has not and MindFormers calls outside of graphs; for trial and tests."""

from __future__ import annotations

import sys

import numpy as np
from mindspore import Tensor, ops
from mindspore.communication import comm_func


def barrier(group: str | None = None) -> None:
    """Wait for all workers: a barrier has no CPU kernel, a sum has.

    Args:
        group: whose; default: all workers.
    """
    reduce = ops.AllReduce(group=group) if group else ops.AllReduce()
    reduce(Tensor(np.zeros(1, np.float32))).asnumpy()


def stand_in() -> None:
    """Let MindFormers' barriers run on a CPU, in this process, wherever its modules have taken the function by name."""
    original = comm_func.barrier
    for name, module in list(sys.modules.items()):
        if name.startswith("mindformers") and getattr(module, "barrier", None) is original:
            module.barrier = barrier
    comm_func.barrier = barrier
