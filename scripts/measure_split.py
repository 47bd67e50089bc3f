"""Measure what F, a whole B, and I and W of a split backward cost under the stepwise runner, on one core."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from pathlib import Path

from hyperparallel import Runner
from hyperparallel.training.build import build_feed, build_layers
from hyperparallel.training.config import load_config
from hyperparallel.training.planning import build_plan
from hyperparallel.training.steps import batches

CONFIG = Path(__file__).parent.parent / "yaml" / "digits.yaml"


def main() -> None:
    """Print median milliseconds by kind, over the steps after the first two."""
    for line in ("1f1b(vision+llm)", "zb(vision+llm)"):
        config = load_config(CONFIG, [f"schedule={line}", "parallel.ranks=1"])
        layers = build_layers(config)
        runner = Runner(build_plan(config, layers), layers)
        times = defaultdict(list)
        for step, batch in enumerate(batches(runner, build_feed(config, "train"), 0, 8)):
            runner.records = []
            runner.step(batch)
            for record in runner.records if step >= 2 else []:
                times[record.action.kind].append((record.end - record.start) * 1e3)
        print(f"{line:20}", "  ".join(f"{kind} {statistics.median(values):6.1f} ms" for kind, values in times.items()))


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    main()
