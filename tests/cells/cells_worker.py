"""Run cases on the ranks of one job and write what each rank ended with; started by the tests."""

import json
import sys
from pathlib import Path

import numpy as np
from cells_case import SEED, SETTINGS, STEPS, Case, batch_of, layers_of

from hyperparallel import Runner, Transport, derive, model_spec


def run_case(case: Case, transport: Transport) -> tuple[list[float], Runner]:
    """Train a case; return the losses and the runner."""
    layers = layers_of(case)
    plan = derive(case.schedule, model_spec(layers), case.ranks, case.micro_batches)
    runner = Runner(
        plan,
        layers,
        transport=transport,
        data_parallel=case.data_parallel,
        optimizer=SETTINGS,
        seed=SEED,
        jit=case.jit,
    )
    losses = []
    for step in range(STEPS):
        batch = batch_of(step, case, runner.replica)
        # Keep only what this rank asks for, so a stage that read anything else would fail.
        own = [{} for _ in batch]
        for micro_batches, columns in runner.requests.values():
            for mb in micro_batches:
                own[mb].update({column: batch[mb][column] for column in columns})
        losses.append(runner.step(own).loss)
    return losses, runner


def main() -> None:
    """Read the cases and the output folder from the command line."""
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    transport = Transport.start()
    for values in cases:
        case = Case(**values)
        losses, runner = run_case(case, transport)
        state = {parameter.name for parameter in runner.optimizer.state()}
        np.savez(
            out / f"{case.name}.{transport.rank}.npz",
            __losses=np.array(losses),
            __state=np.array(sorted(state)),
            **runner.parameters(),
        )


if __name__ == "__main__":
    main()
