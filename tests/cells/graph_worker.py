"""Train the cases of `graph_case` as graphs on the ranks of one job; started by `test_graph.py`."""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from cells_case import SEED, SETTINGS, STEPS, layers_of, plan_of
from cells_skips import graph_runner, not_a_number, overflow
from graph_case import GRAPH_CASES, GraphCase, columns_of, static_batch, topology_of

from hyperparallel import Transport
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.loss_scale import LossScale


def run_case(graph: GraphCase, transport: Transport, out: Path) -> None:
    """Train a case; write parameters before and after, results, and what an evaluation between steps saw."""
    case = graph.case
    layers = layers_of(case)
    runner = GraphRunner(
        plan_of(case, layers),
        layers,
        columns_of(case),
        transport=transport,
        topology=topology_of(case),
        optimizer=SETTINGS,
        seed=SEED,
        dtype=graph.dtype,
        recompute=graph.recompute,
        wires="pair_sum",
        scale=LossScale(case.scale),
    )
    initial = runner.parameters()
    results, evaluated = [], []
    for step in range(STEPS):
        batch = static_batch(step, case, runner.replica)
        if step == 2 and graph.evaluates:
            evaluated.append(runner.evaluate(batch)._asdict())
        results.append(runner.step(batch)._asdict())
    facts = {"results": results, "evaluated": evaluated, "moments": [p.name for p in moments(runner)]}
    (out / f"{graph.name}.{transport.rank}.json").write_text(json.dumps(facts))
    np.savez(
        out / f"{graph.name}.{transport.rank}.npz",
        **{f"initial:{name}": value for name, value in initial.items()},
        **runner.parameters(),
    )


def moments(runner: GraphRunner) -> list[ms.Parameter]:
    """Return the optimizer's state on this rank."""
    return [] if runner.update is None else [*runner.update.first, *runner.update.second]


def main() -> None:
    """Run the cases of as many workers as this job has."""
    transport, out = Transport.start(), Path(sys.argv[1])
    ms.set_context(mode=ms.GRAPH_MODE)
    for graph in GRAPH_CASES:
        if graph.case.workers == transport.size:
            run_case(graph, transport, out)
    if transport.size == 2:
        facts = {"overflow": overflow(graph_runner, transport), "not a number": not_a_number(graph_runner, transport)}
        (out / f"skips.{transport.rank}.json").write_text(json.dumps(facts))
    transport.leave()


if __name__ == "__main__":
    main()
