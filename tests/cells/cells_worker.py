"""Run cases on the ranks of one job and write what each rank saw and ended with; started by the tests."""

import json
import sys
from pathlib import Path

import numpy as np
from cells_case import SEED, SETTINGS, STEPS, Case, batch_of, layers_of, plan_of
from cells_probe import probe
from cells_record import Watch, own_columns, reuse_slabs
from cells_skips import not_a_number, overflow, stepwise_runner

from hyperparallel import Runner, Transport
from hyperparallel.cells.loss_scale import LossScale


def run_case(case: Case, transport: Transport, out: Path) -> None:
    """Train a case; write the parameters before and after as .npz, everything else as .json."""
    layers = layers_of(case)
    plan = plan_of(case, layers)
    runner = Runner(
        plan,
        layers,
        transport=transport,
        data_parallel=case.data_parallel,
        optimizer=SETTINGS,
        seed=SEED,
        jit=case.jit,
        dtype=case.dtype,
        recompute=[int(stage) for stage in case.recompute.split()],
        scale=LossScale(case.scale),
    )
    of_pass = runner.plan.micro_batches
    initial, watch = runner.parameters(), Watch(runner)
    results, evaluated, kept = [], [], True
    for step in range(STEPS):
        watch.begin()
        passes = batch_of(step, case, runner.replica)
        passes = [own_columns(runner, passes[at : at + of_pass]) for at in range(0, len(passes), of_pass)]
        batch = passes[-1]
        if case.evaluates:
            before = runner.parameters()
            evaluated.append(runner.evaluate(batch)._asdict())
            kept = kept and all(np.array_equal(before[name], now) for name, now in runner.parameters().items())
            watch.steps.pop()
            watch.begin()
        for one in passes[:-1]:
            runner.accumulate(one)
        copies = [{column: array.copy() for column, array in columns.items()} for columns in batch]
        results.append(runner.step(batch)._asdict())
        kept = kept and all(np.array_equal(a[c], b[c]) for a, b in zip(batch, copies, strict=True) for c in b)
    watch.end()
    facts = {
        "results": results,
        "evaluated": evaluated,
        "kept": kept,
        "steps": watch.steps,
        "state": [moment.name for pair in runner.optimizer.moments() for moment in pair],
        "shared": {one.name: one.ranks for one in runner.gradients.shared},
        "requests": runner.requests,
        "program": [str(action) for action in runner.program],
        "trained": [p.name for slab in runner.slabs.values() for p in slab.weights],
    }
    (out / f"{case.name}.{transport.rank}.json").write_text(json.dumps(facts))
    arrays = {f"initial:{name}": value for name, value in initial.items()}
    np.savez(out / f"{case.name}.{transport.rank}.npz", **arrays, **runner.parameters())


def main() -> None:
    """Read the cases and the output folder from the command line."""
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    transport = Transport.start()
    if transport.size == 2:
        (out / f"probe.{transport.rank}.json").write_text(json.dumps(probe(transport)))
        reuse_slabs("float16")
        skips = {"overflow": overflow(stepwise_runner, transport)}
        reuse_slabs()
        skips["not a number"] = not_a_number(stepwise_runner, transport)
        (out / f"skips.{transport.rank}.json").write_text(json.dumps(skips))
    for values in cases:
        reuse_slabs(values["dtype"])
        run_case(Case(**values), transport, out)
    transport.leave()


if __name__ == "__main__":
    main()
