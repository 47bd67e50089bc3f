"""The pipeline result equals one process, for every schedule, rank count and mix of images."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hyperparallel.training.launch import start_job, worker_logs

sys.path.insert(0, str(Path(__file__).parent))
from cells_case import Case, reference, relative_difference  # noqa: E402

INLINE, GPIPE, TRANSPOSE = "1f1b(vision+llm)", "gpipe(vision+llm)", "transpose(vision) >> 1f1b(llm)"
TOLERANCE = 1e-5

CASES = [
    *(Case(schedule, ranks) for ranks in (1, 2, 4) for schedule in (INLINE, GPIPE, TRANSPOSE)),
    *(Case(schedule, ranks, vision=False) for ranks in (1, 2, 4) for schedule in (INLINE, TRANSPOSE)),
    Case(GPIPE, 2, vision=False),
    Case(TRANSPOSE, 2, micro_batches=1),
    Case(INLINE, 4, micro_batches=2),
    Case(TRANSPOSE, 4, micro_batches=2),
    Case(TRANSPOSE, 2, data_parallel=2),
    Case(INLINE, 2, data_parallel=2),
    Case(TRANSPOSE, 2, data_parallel=2, vision=False),
    Case(TRANSPOSE, 2, llm=False),
    Case(TRANSPOSE, 2, tied=False),
    Case("transpose(vision, owner=[1,1,0,1]) >> gpipe(llm)", 2),
    Case("1f1b(vision+llm, slabs=[5,5])", 2),
    Case(TRANSPOSE, 2, jit=False),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, list[dict]]:
    """Run all cases, those with equal numbers of workers in one launch; case name -> what each rank wrote."""
    out = tmp_path_factory.mktemp("cases")
    for workers in (1, 2, 4):
        cases = [case for case in CASES if case.ranks * case.data_parallel == workers]
        (out / f"{workers}.json").write_text(json.dumps([asdict(case) for case in cases]))
        log = out / f"log{workers}"
        script = Path(__file__).parent / "cells_worker.py"
        job = start_job([str(script), str(out / f"{workers}.json"), str(out)], workers, log)
        if job.wait(timeout=600) != 0:
            pytest.fail("\n".join(path.read_text()[-2000:] for path in worker_logs(log)))
    return {
        case.name: [dict(np.load(out / f"{case.name}.{rank}.npz")) for rank in range(case.ranks * case.data_parallel)]
        for case in CASES
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_one_process(results, case):
    losses, parameters = reference(case.vision, case.llm, case.tied)
    seen = set()
    for rank in results[case.name]:
        np.testing.assert_allclose(rank["__losses"], losses, rtol=TOLERANCE)
        assert rank["__losses"].tolist() == results[case.name][0]["__losses"].tolist(), "ranks disagree on the loss"
        for name, value in rank.items():
            if not name.startswith("__"):
                seen.add(name)
                assert relative_difference(value, parameters[name]) < TOLERANCE, name
    assert seen == set(parameters)
