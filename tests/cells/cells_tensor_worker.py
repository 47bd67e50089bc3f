"""Run tensor-parallel cases on the workers of one job and write what each saw and ended with; started by the tests."""

import json
import sys
from pathlib import Path

import numpy as np
from cells_case import SEED, SETTINGS, STEPS, Case, batch_of, layers_of
from cells_record import Watch, own_columns, reuse_slabs

from hyperparallel import Runner, Transport, derive, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.tensor_parallel import Enter, Leave


class Counted:
    """A reduce that counts its calls; only Python sees them, so only where nothing is compiled."""

    def __init__(self, reduce):
        self.reduce, self.calls = reduce, 0

    def __call__(self, x):
        self.calls += 1
        return self.reduce(x)


def run_case(case: Case, shards: int, transport: Transport, out: Path) -> None:
    """Train a case with T = `shards`; write the parameters before and after as .npz, everything else as .json."""
    layers = layers_of(case, transport.tensor_parallel(Topology(case.ranks, case.data_parallel, shards)))
    plan = derive(case.schedule, model_spec(layers), case.ranks, case.micro_batches)
    runner = Runner(
        plan,
        layers,
        transport=transport,
        data_parallel=case.data_parallel,
        tensor_parallel=shards,
        optimizer=SETTINGS,
        seed=SEED,
        jit=case.jit,
    )
    initial, watch = runner.parameters(), Watch(runner)
    counters = {"Enter": [], "Leave": []}
    for slab in runner.slabs.values():
        for _, cell in slab.chain.cells_and_names():
            if isinstance(cell, Enter | Leave) and not case.jit:
                cell.reduce = Counted(cell.reduce)
                counters[type(cell).__name__].append(cell.reduce)
    results, evaluated = [], []
    for step in range(STEPS):
        batch = own_columns(runner, batch_of(step, case, runner.replica))
        if case.evaluates:
            watch.begin()
            evaluated.append(runner.evaluate(batch)._asdict())
            watch.steps.pop()
        watch.begin()
        results.append(runner.step(batch)._asdict())
    watch.end()
    facts = {
        "place": (runner.rank, runner.replica, runner.shard),
        "results": results,
        "evaluated": evaluated,
        "steps": watch.steps,
        "reduces": {kind: [one.calls for one in found] for kind, found in counters.items()},
    }
    (out / f"{case.name}.{transport.rank}.json").write_text(json.dumps(facts))
    arrays = {f"initial:{name}": value for name, value in initial.items()}
    np.savez(out / f"{case.name}.{transport.rank}.npz", **arrays, **runner.parameters())


def main() -> None:
    """Read the cases, T and the output folder from the command line."""
    cases, shards, out = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]), Path(sys.argv[3])
    transport = Transport.start()
    reuse_slabs()
    for values in cases:
        run_case(Case(**values), shards, transport, out)
    transport.leave()


if __name__ == "__main__":
    main()
