"""One worker of a dry run: build its graph as for a device, compile it, say what came of it in one line.

Started by `dryrun.py` in an environment in which MindSpore takes this machine for an Ascend node.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import numpy as np

from hyperparallel.cells.transport import Transport
from hyperparallel.training.build import build_layers, column_specs
from hyperparallel.training.config import load_config
from hyperparallel.training.dryrun import MARK
from hyperparallel.training.planning import build_plan
from hyperparallel.training.runners import build_runner


def main(argv: Sequence[str]) -> None:
    """Compile one worker's step.

    Args:
        argv: level, configuration file, overrides.
    """
    level, path, *overrides = argv
    config = load_config(path, overrides)
    transport = Transport.simulate()
    layers = build_layers(config, transport.tensor_parallel(config.parallel.topology))
    plan = build_plan(config, layers)
    runner = build_runner(config, plan, layers, transport)
    batch = [
        {name: np.ones(spec.shape, spec.dtype) for name, spec in column_specs(config).items()}
        for _ in range(plan.micro_batches)
    ]
    start = time.perf_counter()
    peak = runner.dry_run(batch, run=level == "1")
    said = {"seconds": time.perf_counter() - start, "peak": peak, "groups": transport.groups}
    print(MARK + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
