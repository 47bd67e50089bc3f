"""`hyperparallel train` with `run.mode: graph`: the same losses as stepwise, and a refusal where it cannot run."""

import json
import sys
from pathlib import Path

import pytest

from hyperparallel.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from training_config import write_config  # noqa: E402


def losses_of(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_graph_and_stepwise_replicas_train_and_read_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, words = str(write_config(tmp_path)), ["evaluation.samples=5", "data.max_images=2", "model.llm.max_length=16"]
    replicas = ["run.mode=stepwise", "parallel.ranks=1", "parallel.data_parallel=2"]
    for mode in (replicas, ["run.mode=graph", "run.wires=pair_sum"]):
        assert main(["train", path, *words, *mode]) == 0
    stepwise, graph = sorted((tmp_path / "runs").iterdir())
    assert losses_of(graph) == pytest.approx(losses_of(stepwise), rel=1e-5)
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (stepwise, graph))
    assert first["samples"] == second["samples"] == 5  # of a batch of 8
    for key in ("held_out_loss", "exact"):
        assert second[key] == pytest.approx(first[key], rel=1e-5), key


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.mode=graph"], "no CPU kernel"),
        (["run.mode=annotate", "schedule=1f1b(vision+llm)"], "no CPU kernel"),
        (["run.mode=annotate"], "Replicated"),
    ],
)
def test_what_this_machine_cannot_run_is_refused_before_a_rank_starts(tmp_path, capsys, words, said):
    assert main(["train", str(write_config(tmp_path)), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and "stepwise" in error
    assert not (tmp_path / "runs").exists()
