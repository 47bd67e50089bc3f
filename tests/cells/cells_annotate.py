"""Compile the tiny MLLM for Ascend under MindSpore's own pipeline engine, in the dry run, and read the order it made.

python tests/cells/cells_annotate.py "1f1b(vision+llm)" --ranks 2 --micro-batches 4
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from cells_case import SEED, SETTINGS, Case, layers_of

from hyperparallel import Plan, derive, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.annotate_net import Annotated
from hyperparallel.cells.annotate_order import beside_plan, engine_order
from hyperparallel.cells.shapes import Columns, TensorSpec
from hyperparallel.dryrun import RankRun, gist, run_ranks

DONE = "compiled"


def layers_for(line: str, ranks: int):
    """Build the layers; tied only where the engine takes that."""
    return layers_of(Case(line, ranks, tied="*" not in line and "fold" not in line))


def plan_for(line: str, ranks: int, micro_batches: int) -> Plan:
    """Derive the plan of the tiny MLLM."""
    return derive(line, model_spec(layers_for(line, ranks)), ranks, micro_batches)


def columns_for(replicas: int) -> Columns:
    """Give the shapes of a global micro-batch: 2 samples and 4 images a replica."""
    text = TensorSpec((2 * replicas, 32), "int32")
    return {"pixel_values": TensorSpec((4 * replicas, 1, 8, 8)), "input_ids": text, "labels": text}


def compile_rank(line: str, ranks: int, micro_batches: int, replicas: int) -> None:
    """Compile the step of the rank that this process is."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("Ascend", 0)
    ms.communication.init()
    columns = columns_for(replicas)
    net = Annotated(
        plan_for(line, ranks, micro_batches),
        layers_for(line, ranks),
        columns,
        worker=ms.communication.get_rank(),
        topology=Topology(ranks, replicas),
        optimizer=SETTINGS,
        seed=SEED,
    )
    batch = [{name: np.ones(spec.shape, spec.dtype) for name, spec in columns.items()}] * micro_batches
    net.cell.compile(*net.inputs(batch))
    print(DONE, len(net.own))


def compile_all(
    line: str, ranks: int, micro_batches: int, replicas: int, graphs: Path, which: list[int] | None = None
) -> list[RankRun]:
    """Compile for the workers asked for, each in its own process; graphs go to `graphs`/rank_R."""
    size = [str(number) for number in (ranks, micro_batches, replicas)]
    command = [sys.executable, __file__, "--compile", line, *size]
    return run_ranks(command, ranks * replicas, which, save_graphs=graphs, timeout=300)


def main() -> None:
    """Print the engine's order under the plan's."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("line")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--messages", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as graphs:
        for run in compile_all(args.line, args.ranks, args.micro_batches, 1, Path(graphs)):
            if not run.passed:
                sys.exit(f"rank {run.rank}: {gist(run.output)}")
        orders = [engine_order(Path(graphs) / f"rank_{rank}", rank, args.ranks) for rank in range(args.ranks)]
    print(beside_plan(plan_for(args.line, args.ranks, args.micro_batches), orders, args.messages))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        compile_rank(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
