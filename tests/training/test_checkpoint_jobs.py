"""Checkpoints of several workers: same layout to the bit, other layouts to rounding, a disk that is full on one."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hyperparallel.training.stored import Stored

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "cells"))

pytestmark = pytest.mark.slow
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Run the job of four workers, then that of two, which goes on from the first's checkpoint."""
    from cells_case import TRANSPOSE, Case, layers_of
    from cells_jobs import run_ranks

    from hyperparallel.cells.layer import build_layer

    folder = tmp_path_factory.mktemp("jobs")
    cells = [build_layer(layer, 0) for layer in layers_of(Case(TRANSPOSE, 1))]
    weights = {parameter.name: parameter.asnumpy() for cell in cells for parameter in cell.get_parameters()}
    del weights["llm.head.weight"]  # tied
    save_file({name: np.zeros_like(value) for name, value in weights.items()}, folder / "zeros.safetensors")
    save_file({"llm.embed.weight": weights["llm.embed.weight"]}, folder / "embed.safetensors")
    for workers in (4, 2):
        run_ranks([str(HERE / "checkpoint_worker.py"), str(folder)], workers, folder / f"job{workers}")
    return folder


def seen(out, workers):
    """Return what each worker of a job wrote; all that it says of losses and errors is the same on all."""
    facts = [json.loads((out / f"{workers}.{rank}.json").read_text()) for rank in range(workers)]
    assert all(one == facts[0] for one in facts)
    return facts[0]


def test_the_same_layout_goes_on_to_the_bit(out):
    facts = seen(out, 4)
    assert facts["again"] == facts["on"] and facts["equal"]
    assert facts["on"][0] != facts["before"][0]


def test_a_new_process_and_a_new_runner_go_on_to_the_bit(out):
    facts = seen(out, 2)
    assert facts["again"] == facts["other"] and facts["equal"]


@pytest.mark.parametrize("workers", [pytest.param(4, id="P=2, D=2, gpipe"), pytest.param(2, id="P=2, 1f1b")])
def test_another_layout_goes_on_with_the_same_losses(out, workers):
    np.testing.assert_allclose(seen(out, workers)["other"], seen(out, 4)["on"], rtol=TOLERANCE)


def test_facts_and_counters_come_back(out):
    facts = seen(out, 4)
    layout = {"schedule": "transpose(vision) >> 1f1b(llm)", "ranks": 4, "data_parallel": 1, "tensor_parallel": 1}
    own = {"seed": 7, "samples": 24, "loss_scale": [1.0, 0]}
    assert facts["restored"] == {**own, "step": 3, "updates": 3, **layout}
    assert facts["steps"] == [3, 3]


def test_parts_of_shards_are_cut_and_joined_to_the_bit(out):
    facts = seen(out, 4)
    assert facts["cleared"] and facts["joined"]
    with Stored(out / "four/checkpoints/step_000003") as whole, Stored(out / "cut/checkpoints/step_000003") as cut:
        assert whole.shapes == cut.shapes
        parts = {name: len(entry.files) for name, entry in cut.index.tensors.items()}
        assert set(parts.values()) == {1, 2}
        for name in whole.shapes:
            np.testing.assert_array_equal(whole.read(name), cut.read(name), err_msg=name)


def test_every_worker_hears_of_a_full_disk_and_the_old_checkpoint_stays(out):
    message = seen(out, 4)["full"]
    for word in ("worker 1 could not write step_000006", "File too large", "last good one is intact"):
        assert word in message
    # The job of two workers has gone on from it, given only the run folder.
    assert [path.name for path in (out / "four/checkpoints").iterdir()] == ["step_000003"]


def test_every_worker_hears_that_weights_do_not_fit(out):
    assert "worker 0: " in seen(out, 4)["refused"] and "does not have vision" in seen(out, 4)["refused"]
