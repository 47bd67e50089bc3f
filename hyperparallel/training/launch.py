"""Start the ranks of a job with `msrun` on this machine, and end all of its processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hyperparallel.errors import ConfigError
from hyperparallel.variables import JOB_MARK

_PATIENCE = 10.0  # seconds for killed processes to go


class Job(subprocess.Popen):
    """The `msrun` of a job.

    Args:
        command: its command line.
        environment: of all processes of the job.
        output: file for what it prints.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Path):
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        environment = {**environment, JOB_MARK: self.mark}
        with open(output, "wb") as file:
            # A session of its own: what the terminal sends to the starter (Ctrl-C) must not end msrun before the ranks.
            super().__init__(command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def is_worker() -> bool:
    """Tell whether `msrun` started this process, as a rank or as the scheduler of a job.

    The scheduler runs the same command; it leaves it when it joins the job (`Transport.start`).
    """
    return os.environ.get("MS_ROLE", "") in ("MS_WORKER", "MS_SCHED")


def start_job(
    arguments: Sequence[str],
    workers: int,
    log_dir: Path,
    variables: Mapping[str, str] | None = None,
    keep_sigterm: bool = False,
) -> Job:
    """Start `python ARGUMENTS` once per rank under `msrun`.

    Every rank gets one compute thread: more than that makes ranks compete for the cores and any comparison of
    schedules meaningless.

    Args:
        arguments: what follows `python`, such as `["-m", "hyperparallel", "train", "x.yaml"]`.
        workers: number of ranks >= 1.
        log_dir: folder for `worker_N.log` and `scheduler.log`; it is emptied first.
        variables: further environment variables for the ranks.
        keep_sigterm: start all processes with SIGTERM blocked, for ranks that unblock it when they can obey
            (`StopRequest`); until then it is kept for them.

    Raises:
        ConfigError: `msrun` is not installed beside this Python.

    Returns:
        The msrun process; its output goes to `log_dir/msrun.log`. Its exit code is 0 only if all ranks and the
        scheduler ended well. After `Transport.leave` the scheduler does not: `job.run_job` ends it and looks at the
        ranks alone.
    """
    assert not is_worker(), "a rank must not start a job of its own"
    msrun = shutil.which("msrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if msrun is None:
        raise ConfigError(f"msrun is not installed beside {sys.executable}; install mindspore into this environment")
    shutil.rmtree(log_dir, ignore_errors=True)
    log_dir.mkdir(parents=True)
    command = [
        msrun,
        f"--worker_num={workers}",
        f"--local_worker_num={workers}",
        "--master_addr=127.0.0.1",
        f"--master_port={_free_port()}",
        f"--log_dir={log_dir}",
        "--join=True",
        "python",
        *arguments,
    ]
    environment = {**os.environ, **(variables or {})}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only
    with _blocked(keep_sigterm):
        return Job(command, environment, log_dir / "msrun.log")


def end_job(job: subprocess.Popen) -> None:
    """End a job and all processes of it, at once; `msrun` alone would leave its ranks running.

    Args:
        job: of `start_job`, also one whose `msrun` has ended already; or any other process.
    """
    processes = []
    if job.poll() is None:
        processes = psutil.Process(job.pid).children(recursive=True)
        job.kill()
        job.wait()
    end = time.monotonic() + _PATIENCE
    while (processes := [*processes, *_marked(job)]) and time.monotonic() < end:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, processes = psutil.wait_procs(processes, timeout=1.0)


def worker_logs(log_dir: Path) -> list[Path]:
    """List the log files of the ranks, in order of rank."""
    return sorted(log_dir.glob("worker_*.log"), key=lambda path: int(path.stem.split("_")[1]))


def _marked(job: subprocess.Popen) -> list[psutil.Process]:
    """Find the processes of a job that live, whoever their parent is now."""
    found = []
    for process in psutil.process_iter() if isinstance(job, Job) else ():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(JOB_MARK) == job.mark:
                found.append(process)
    return found


@contextmanager
def _blocked(wanted: bool) -> Iterator[None]:
    """Block SIGTERM meanwhile, if wanted: processes started here inherit that, and none gets lost."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if wanted else ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _free_port() -> int:
    """Ask the system for a free port on loopback, for the job's scheduler."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
