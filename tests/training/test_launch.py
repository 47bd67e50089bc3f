"""Who is a rank, what is started, and that a rank or a scheduler never starts a job of its own."""

import subprocess
import sys

import pytest
from training_config import processes_of, write_config

from hyperparallel.cli import main
from hyperparallel.commands import train as train_command
from hyperparallel.errors import ConfigError
from hyperparallel.training import job as jobs
from hyperparallel.training import launch
from hyperparallel.training.launch import end_job, is_worker, start_job, worker_logs


@pytest.mark.parametrize(
    ("role", "worker"), [(None, False), ("", False), ("MS_WORKER", True), ("MS_SCHED", True), ("MS_OTHER", False)]
)
def test_ranks_and_the_scheduler_are_told_by_their_role(monkeypatch, role, worker):
    monkeypatch.delenv("MS_ROLE", raising=False)
    if role is not None:
        monkeypatch.setenv("MS_ROLE", role)
    assert is_worker() is worker


@pytest.mark.parametrize("role", ["MS_WORKER", "MS_SCHED"])
def test_a_process_of_a_job_never_starts_another(monkeypatch, tmp_path, role):
    """The scheduler runs the same command as the ranks; starting a job there is a fork bomb."""
    monkeypatch.setenv("MS_ROLE", role)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    worked = []
    monkeypatch.setattr(train_command, "_work", worked.append)
    assert main(["train", str(write_config(tmp_path))]) == 0
    assert len(worked) == 1
    with pytest.raises(AssertionError, match="must not start a job"):
        start_job(["-c", "pass"], 2, tmp_path / "logs")


def test_every_rank_is_started_with_one_thread_and_this_python(monkeypatch, tmp_path):
    started = {}
    monkeypatch.delenv("MS_ROLE", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: started.update(command=command, **more))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker_7.log").write_text("of an earlier job")
    start_job(["-m", "x", "a=[1, 2]"], 3, tmp_path / "logs")
    assert started["command"][-4:] == ["python", "-m", "x", "a=[1, 2]"]
    assert "--worker_num=3" in started["command"] and "--local_worker_num=3" in started["command"]
    assert started["env"]["OMP_NUM_THREADS"] == "1"
    assert started["env"]["PATH"].startswith(str(sys.executable).rpartition("/")[0])
    assert worker_logs(tmp_path / "logs") == []


def test_a_machine_without_msrun(monkeypatch, tmp_path):
    monkeypatch.setattr(launch.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="msrun is not installed beside .*; install mindspore"):
        start_job([], 1, tmp_path)


def test_logs_are_in_order_of_rank(tmp_path):
    for rank in (10, 2, 0):
        (tmp_path / f"worker_{rank}.log").write_text("")
    (tmp_path / "scheduler.log").write_text("")
    assert [path.stem for path in worker_logs(tmp_path)] == ["worker_0", "worker_2", "worker_10"]


def test_ending_a_job_ends_processes_in_sessions_of_their_own(tmp_path):
    """`msrun` starts each rank in a new session and leaves it alone when it is terminated itself."""
    mark = tmp_path / "mark"
    inner = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], start_new_session=True)"
    job = subprocess.Popen([sys.executable, "-c", outer])
    while not mark.exists():
        assert job.poll() is None
    end_job(job)
    assert job.returncode is not None and processes_of(mark) == []
    end_job(job)  # has ended already


def test_run_folders_are_new_each_time(tmp_path):
    folders = {jobs.new_run_folder(str(tmp_path / "a" / "b")) for _ in range(4)}
    assert len(folders) == 4 and all(folder.is_dir() for folder in folders)


def test_a_rank_takes_the_folder_of_the_starter(monkeypatch, tmp_path):
    monkeypatch.setenv(jobs.RUN_FOLDER, str(tmp_path / "given"))
    assert jobs.run_folder(str(tmp_path)) == tmp_path / "given"
    monkeypatch.delenv(jobs.RUN_FOLDER)
    assert jobs.run_folder(str(tmp_path)).parent == tmp_path


TRACEBACK = "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\n    g()\nKeyError: 'x'\n"


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        pytest.param(["", "hyperparallel: a mistake\n"], "worker_1 says: a mistake", id="a sentence"),
        pytest.param([TRACEBACK, "hyperparallel: a mistake\n"], "worker_1 says: a mistake", id="sentence first"),
        pytest.param(["fine\n", "x\n" + TRACEBACK], "failed on worker_1: KeyError: 'x'", id="a traceback"),
        pytest.param(["", ""], "without a traceback", id="killed"),
    ],
)
def test_the_rank_that_failed_is_named(tmp_path, logs, words):
    for rank, text in enumerate(logs):
        (tmp_path / f"worker_{rank}.log").write_text(text)
    said = jobs._failure(tmp_path)
    assert words in said and str(tmp_path) in said
