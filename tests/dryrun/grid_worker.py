"""Compile the cases of `grid_cases` as one worker of a dry run; started by `test_skeletons_compiled.py`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from grid_cases import GRID, OTHERS, GridCase, layers_for, plan_of

from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.transport import Transport
from hyperparallel.dryrun import final_ir


def compile_case(case: GridCase, transport: Transport, dumped: Path, out: Path) -> None:
    """Compile one case and put its final graph, and the groups it uses, where the test looks for them."""
    for old in dumped.glob("*.ir") if dumped.exists() else ():
        old.unlink()
    runner = GraphRunner(
        plan_of(case),
        layers_for(case, transport.tensor_parallel(case.topology)),
        case.columns,
        transport=transport,
        topology=case.topology,
        dtype=case.dtype,
        recompute=case.recompute,
        skips=case.skips,
    )
    columns = {name: np.zeros(spec.shape, spec.dtype) for name, spec in case.columns.items()}
    batch = [columns] * case.micro_batches
    runner.dry_run(batch, run=False)
    folder = out / case.name / f"rank_{transport.rank}"
    folder.mkdir(parents=True)
    shutil.move(final_ir(dumped), folder)
    (folder / "groups.json").write_text(json.dumps(transport.groups))


def main() -> None:
    """Compile all cases of as many workers as this job has."""
    transport = Transport.simulate()
    for case in (*GRID, *OTHERS):
        if case.topology.workers == transport.size:
            compile_case(case, transport, Path(sys.argv[1]) / f"rank_{transport.rank}", Path(sys.argv[2]))


if __name__ == "__main__":
    main()
