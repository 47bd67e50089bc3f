"""One worker of a dry run: go through the normal entry up to the step, compile it for Ascend, say what came of it.

Started by `dryrun.py` in an environment in which MindSpore takes this machine for an Ascend node. What it replaces in
MindSpore is replaced in this process only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

import mindspore as ms

from hyperparallel.training.dryrun import MARK
from mindformers_patch.__main__ import parse, run


def compiles(level: int) -> Callable[..., None]:
    """Make what stands in for `Model.train`: it compiles the wrapper for the first batch, and trains nothing.

    Args:
        level: 0 compiles the front end; 1 goes through the motions of a step too, which allocates simulated memory.
    """

    def train(self: ms.Model, epoch: int, dataset, **_) -> None:
        wrapper, peak = self._train_network.set_train(), None
        batch = next(iter(dataset.create_tuple_iterator(num_epochs=1)))
        start = time.perf_counter()
        if level == 1:
            wrapper(*batch)  # returns something else than tensors here
            peak = ms.runtime.max_memory_allocated()
        else:
            wrapper.compile(*batch)
        said = {"seconds": time.perf_counter() - start, "peak": peak, "groups": {}}
        graph = getattr(getattr(wrapper, "network", None), "graph", None)
        if graph is not None:  # route `graph`; otherwise the order is MindSpore's own
            said["groups"] = graph.transport.groups
            said["programs"] = [[str(action) for action in program] for program in graph.plan.programs]
        print("\n" + MARK + json.dumps(said), flush=True)

    return train


def main(argv: Sequence[str] | None = None) -> None:
    """Compile one worker's step.

    Args:
        argv: level, then what the entry takes.
    """
    level, *rest = sys.argv[1:] if argv is None else argv
    ms.Model.train = compiles(int(level))
    run(parse(rest))


if __name__ == "__main__":
    main()
