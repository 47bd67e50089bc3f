"""One worker of a dry run: go through the normal entry up to the step, compile it for Ascend, say what came of it.

Started by `dryrun.py` in an environment in which MindSpore takes this machine for an Ascend node.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import mindspore as ms

from hyperparallel.training.dryrun import MARK
from mindformers_patch.__main__ import parse, run


def compile_only(self: ms.Model, epoch: int, dataset, **_) -> None:
    """Stand in for `Model.train`: compile the wrapper for the first batch, and run nothing."""
    wrapper = self._train_network
    batch = next(iter(dataset.create_tuple_iterator(num_epochs=1)))
    start = time.perf_counter()
    wrapper.compile(*batch)
    said = {"seconds": time.perf_counter() - start, "peak": None, "groups": {}}
    graph = getattr(getattr(wrapper, "network", None), "graph", None)
    if graph is not None:
        said["groups"] = graph.transport.groups
        said["programs"] = [[str(action) for action in program] for program in graph.plan.programs]
    print("\n" + MARK + json.dumps(said), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Compile one worker's step; takes what the entry takes."""
    ms.Model.train = compile_only
    run(parse(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    main()
