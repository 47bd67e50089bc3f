"""Who is a rank, what is started, and that a rank or a scheduler never starts a job of its own."""

import os
import signal
import subprocess
import sys

import psutil
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
    monkeypatch.setattr(launch, "Job", lambda *_, **__: pytest.fail("a job was started"))
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
    monkeypatch.setattr(launch, "Job", lambda command, env, output: started.update(command=command, env=env))
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


def asleep(tmp_path, keep_sigterm, monkeypatch):
    """Start a job whose `msrun` is a process that starts another, in a session of its own, and sleeps."""
    script = tmp_path / "msrun"
    inner = f"import time; open({str(tmp_path / 'mark')!r}, 'w').close(); time.sleep(60)"
    script.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {inner!r}], start_new_session=True)\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(launch.shutil, "which", lambda *_, **__: str(script))
    job = start_job([], 1, tmp_path / "logs", keep_sigterm=keep_sigterm)
    while not (tmp_path / "mark").exists():
        assert job.poll() is None
    return job


@pytest.mark.parametrize("keep_sigterm", [True, False])
def test_ending_a_job_whose_msrun_has_gone_ends_its_ranks(tmp_path, monkeypatch, keep_sigterm):
    job = asleep(tmp_path, keep_sigterm, monkeypatch)
    (child,) = psutil.Process(job.pid).children()
    assert os.getsid(job.pid) == job.pid  # a Ctrl-C at the terminal does not reach it
    child.terminate()
    if keep_sigterm:  # until the rank says that it can obey
        with pytest.raises(psutil.TimeoutExpired):
            child.wait(0.3)
        job.kill()
        job.wait()
        assert child.is_running()
    end_job(job)
    assert processes_of(tmp_path / "mark", 1.0) == []
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # here it is as before


def test_run_folders_are_new_each_time(tmp_path):
    folders = {jobs.new_run_folder(str(tmp_path / "a" / "b")) for _ in range(4)}
    assert len(folders) == 4 and all(folder.is_dir() for folder in folders)


def test_a_rank_takes_the_folder_of_the_starter(monkeypatch, tmp_path):
    monkeypatch.setenv(jobs.RUN_FOLDER, str(tmp_path / "given"))
    assert jobs.run_folder(str(tmp_path)) == tmp_path / "given"
    monkeypatch.delenv(jobs.RUN_FOLDER)
    assert jobs.run_folder(str(tmp_path)).parent == tmp_path
