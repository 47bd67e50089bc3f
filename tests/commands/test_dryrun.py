"""`hyperparallel dryrun`: the command from start to end, and what it says when something is wrong."""

import sys
from pathlib import Path

import pytest

from hyperparallel.cli import main
from hyperparallel.commands.dryrun import report
from hyperparallel.training.dryrun import DryRun, WorkerReport

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from training_config import write_config  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("level", (0, 1))
def test_two_workers_compile_and_agree(tmp_path, capfd, level):
    assert main(["dryrun", str(write_config(tmp_path)), "--level", str(level), "--keep", str(tmp_path / "ir")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("transpose(vision) >> 1f1b(llm) on P = 2 x D = 1 x T = 1 workers, M = 2; run.mode graph")
    rows = [line.split() for line in lines[2:4]]
    assert [row[0] for row in rows] == ["0", "1"] and all(row[5] == "yes" for row in rows)
    assert [int(row[3]) for row in rows] == [6, 6]  # 2SEND_F, 3RECV_F, ... of two micro-batches, and a feature each way
    assert lines[4].startswith("all workers together: every message meets its partner")
    assert ("kernels" in lines[4]) == (level == 1)
    if level == 1:  # simulated and predicted; how near they are is tested on models larger than this one
        assert all(0 < float(row[7]) < 2 * float(row[6]) for row in rows)
    assert sorted(path.name for path in (tmp_path / "ir").glob("rank_*")) == ["rank_0", "rank_1"]


@pytest.mark.slow
def test_four_workers_compile_and_agree(tmp_path, capfd):
    words = ["parallel.ranks=4", "training.micro_batches=4", "model.llm.depth=2", "run.recompute=[4]"]
    assert main(["dryrun", str(write_config(tmp_path)), *words]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[5] for line in lines[2:6]] == ["yes"] * 4
    assert lines[6].startswith("all workers together: every message meets its partner")


@pytest.mark.slow
def test_mindspores_engine_orders_what_is_annotated(tmp_path, capfd):
    words = ["run.mode=annotate", "--schedule", "1f1b(vision+llm)", "--ranks", "0"]
    assert main(["dryrun", str(write_config(tmp_path)), *words]) == 0
    assert capfd.readouterr().out.splitlines()[2].split()[5] == "engine's"


@pytest.mark.slow
def test_one_worker_of_another_schedule(tmp_path, capfd):
    path = str(write_config(tmp_path))
    assert main(["dryrun", path, "--ranks", "1", "--schedule", "gpipe(vision+llm)"]) == 0
    out = capfd.readouterr().out
    assert "gpipe(vision+llm) on P = 2" in out and "not checked against each other" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "0;1"], "--ranks '0;1' is neither 'all' nor worker numbers"),
        (["--ranks", "5"], "--ranks names worker 5; the job has the workers 0 to 1"),
        (["--schedule", "1f1b(vison+llm)"], "did you mean 'vision'?"),
        (["run.recompute=[9]"], "run.recompute names stage 9"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, capsys, words, said):
    assert main(["dryrun", str(write_config(tmp_path)), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_the_report_shows_what_is_wrong():
    result = DryRun(
        [
            WorkerReport(0, seconds=1.5, operators=10, messages=4, collectives=1, problems=["3F0 is missing"]),
            WorkerReport(1, error="ValueError: no"),
        ],
        together=None,
        level=0,
    )
    assert not result.passed
    text = "\n".join(report(result))
    assert "3F0 is missing" in text and "does not compile: ValueError: no" in text and "takes all workers" in text


def test_a_deadlock_alone_fails_the_run():
    result = DryRun([WorkerReport(0), WorkerReport(1)], together=["rank 0 is stuck"], level=0)
    assert not result.passed and "rank 0 is stuck" in "\n".join(report(result))
