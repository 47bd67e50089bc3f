"""`hyperparallel train`: on two ranks from start to end, by hand under `msrun`, and ended from outside."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hyperparallel import Transport
from hyperparallel.cli import main
from hyperparallel.commands import train as train_command
from hyperparallel.training.config import load_config
from hyperparallel.training.launch import end_job
from hyperparallel.training.trace import MEASURED
from hyperparallel.training.trainer import train

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from training_config import processes_of, write_config  # noqa: E402

pytestmark = pytest.mark.slow
TRAIN = [sys.executable, "-m", "hyperparallel", "train"]
# Python runs this at its start: the data of one rank are wrong from step 1 on.
BROKEN_RANK = """\
import os
if os.environ.get("MS_ROLE") == "MS_WORKER" and os.environ.get("RANK_ID") == "0":
    from hyperparallel.data import feed
    from hyperparallel.errors import DataError
    whole = feed.StepFeed.micro_batch
    def micro_batch(self, step, m, columns):
        if step:
            raise DataError(f"step {step} cannot be read")
        return whole(self, step, m, columns)
    feed.StepFeed.micro_batch = micro_batch
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("HYPERPARALLEL_RUN_FOLDER", raising=False)


def run_folders(tmp_path):
    return sorted((tmp_path / "runs").iterdir()) if (tmp_path / "runs").exists() else []


def lines_of(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def under_msrun(tmp_path, workers, *words):
    """Start the command by hand, as on a cluster; return the exit code and what the ranks said."""
    msrun = shutil.which("msrun", path=str(Path(sys.executable).parent))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GLOG_v": "3"}
    with socket.socket() as probe:  # tests of two processes run at the same time
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        msrun,
        f"--worker_num={workers}",
        f"--local_worker_num={workers}",
        f"--master_port={port}",
        "--join=True",
    ]
    command += [f"--log_dir={tmp_path / 'log'}", "python", "-m", "hyperparallel", "train", *words]
    with open(tmp_path / "msrun.log", "wb") as file:
        job = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        code = job.wait(timeout=180)
    finally:
        end_job(job)
    return code, [path.read_text(errors="replace") for path in sorted((tmp_path / "log").glob("worker_*.log"))]


def test_from_start_to_end_and_by_hand_with_equal_losses(tmp_path, capsys):
    path = str(write_config(tmp_path))
    assert main(["train", path, "evaluation.samples=8"]) == 0
    out, _ = capsys.readouterr()
    (folder,) = run_folders(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert str(folder) in out.splitlines()[0] and "on 2 ranks" in out.splitlines()[0]
    assert f"loss {summary['first_loss']:.4f} -> {summary['last_loss']:.4f}, median step " in out
    assert f"held-out exact reading {summary['exact']:.1%} of 8 samples" in out
    assert f"checkpoint {folder / 'checkpoints' / 'step_000003'}" in out
    losses = [line["loss"] for line in lines_of(folder)]
    assert len(losses) == 3 and losses[0] == summary["first_loss"] and losses[-1] == summary["last_loss"]

    code, said = under_msrun(tmp_path, 2, path, "evaluation.samples=8", f"run.out={tmp_path / 'by_hand'}")
    assert code == 0, said
    (by_hand,) = (tmp_path / "by_hand").iterdir()
    assert [line["loss"] for line in lines_of(by_hand)] == losses
    assert "3/3" in said[0] and processes_of(tmp_path) == []


FILL = 'schedule="transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"'


def test_planned_once_or_for_every_step_it_trains_as_one_process(tmp_path, capsys):
    words = [str(write_config(tmp_path)), "data.max_images=3", "model.llm.max_length=24", "training.micro_batches=4"]
    words.append("evaluation.samples=5")  # of a batch of 8
    config = load_config(words[0], [*words[1:], "parallel.ranks=1", "schedule='1f1b(vision+llm)'"])
    alone = train(config, Transport(), tmp_path)
    for more in ([], ["planner.replan=step", "planner.reorder=true"]):
        assert main(["train", *words, FILL, f"run.out={tmp_path / 'runs' / str(len(more))}", *more]) == 0
        out = capsys.readouterr().out
        assert "predicted step" in out and ("reordering the micro-batches saves" in out) == bool(more)
        (folder,) = (tmp_path / "runs" / str(len(more))).iterdir()
        assert [line["loss"] for line in lines_of(folder)][::2] == pytest.approx(
            [alone["first_loss"], alone["last_loss"]], rel=1e-5
        )
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["samples"] == 5 and "held-out exact reading" in out
        for key in ("held_out_loss", "exact"):
            assert summary[key] == pytest.approx(alone[key], rel=1e-5), key
        assert ("replan_ms" in lines_of(folder)[0]) == ("reorder_gain" in lines_of(folder)[0]) == bool(more)
        assert json.loads((folder / "plan.json").read_text())["schedule"] == FILL.split('"')[1]


def test_two_workers_that_share_a_stage_train_as_one(tmp_path, capsys):
    words = [str(write_config(tmp_path)), "parallel.ranks=1", "evaluation.samples=8"]
    config = load_config(words[0], words[1:])
    alone = train(config, Transport(), tmp_path)
    assert main(["train", *words, "parallel.tensor_parallel=2", "run.trace_step=1"]) == 0
    assert "on 2 ranks" in capsys.readouterr().out.splitlines()[0]
    (folder,) = run_folders(tmp_path)
    together = json.loads((folder / "summary.json").read_text())
    for key in ("first_loss", "last_loss", "held_out_loss", "exact", "samples"):
        assert together[key] == pytest.approx(alone[key], rel=1e-5), key
    events = json.loads((folder / MEASURED).read_text())["traceEvents"]
    spans = [event["dur"] for event in events if event["ph"] == "X" and event["args"].get("kind") in ("F", "B")]
    # One shard's times, not the sum of both, which would not even be times.
    assert len(spans) == 8 and all(0 < span < 60e6 for span in spans)


def test_under_msrun_with_another_number_of_workers(tmp_path):
    code, said = under_msrun(tmp_path, 2, str(write_config(tmp_path)), "parallel.ranks=1")
    assert code != 0
    words = "hyperparallel: the plan has 1 ranks x 1 replicas x 1 shards (P x D x T) = 1 workers, the job has 2; start"
    assert any(line.startswith(words) for text in said for line in text.splitlines()), said
    assert processes_of(tmp_path) == []


def test_a_rank_that_fails_is_named_with_its_own_words(tmp_path, capsys, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN_RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert main(["train", str(write_config(tmp_path))]) == 2
    err = capsys.readouterr().err
    (folder,) = run_folders(tmp_path)
    said = f"hyperparallel: rank 0 says: step 1 cannot be read (logs: {folder / 'logs'})\n"
    assert err.endswith(said) and err.count("hyperparallel: ") == 1
    assert "Traceback" not in err and processes_of(tmp_path) == []


def test_a_checkpoint_is_named_as_its_user_names_the_run_folder():
    folder = Path("runs/digits/first")
    inside = folder / "checkpoints" / "step_000003"
    assert train_command._as_given(inside.absolute(), folder) == inside
    assert train_command._as_given(inside.absolute(), folder.absolute()) == inside.absolute()
    elsewhere = Path("/runs/earlier/checkpoints/step_000003")
    assert train_command._as_given(elsewhere, folder) == elsewhere


def test_a_starter_that_is_interrupted_ends_its_ranks_at_once(tmp_path):
    """SIGTERM is for tests/training/test_faults.py."""
    command = [*TRAIN, str(write_config(tmp_path)), "training.steps=100000"]
    with open(tmp_path / "output", "wb") as file:
        starter = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        end = time.monotonic() + 120
        while not any(lines_of(folder) for folder in run_folders(tmp_path)):
            assert starter.poll() is None and time.monotonic() < end
            time.sleep(0.2)
        starter.send_signal(signal.SIGINT)
        assert starter.wait(timeout=30) == 130
        assert processes_of(tmp_path, 1.0) == []
        said = (tmp_path / "output").read_text()
        assert said.endswith("hyperparallel: interrupted\n") and "Traceback" not in said
    finally:
        end_job(starter)
