"""Start the ranks of a job with `msrun` on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from hyperparallel.errors import ConfigError


def is_worker() -> bool:
    """Tell whether `msrun` started this process, as a rank or as the scheduler of a job.

    The scheduler runs the same command; it leaves it when it joins the job (`Transport.start`).
    """
    return os.environ.get("MS_ROLE", "") in ("MS_WORKER", "MS_SCHED")


def start_job(
    arguments: Sequence[str], workers: int, log_dir: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen:
    """Start `python ARGUMENTS` once per rank under `msrun`.

    Every rank gets one compute thread: more than that makes ranks compete for the cores and any comparison of
    schedules meaningless.

    Args:
        arguments: what follows `python`, such as `["-m", "hyperparallel", "train", "x.yaml"]`.
        workers: number of ranks >= 1.
        log_dir: folder for `worker_N.log` and `scheduler.log`; it is emptied first.
        variables: further environment variables for the ranks.

    Raises:
        ConfigError: `msrun` is not installed beside this Python.

    Returns:
        The msrun process; its exit code is 0 only if all ranks ended well. Its output goes to
        `log_dir/msrun.log`.
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
    with open(log_dir / "msrun.log", "wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def end_job(job: subprocess.Popen) -> None:
    """End a job and all processes of it; `msrun` alone would leave its ranks running. A job that has ended stays so."""
    if job.poll() is None:
        processes = psutil.Process(job.pid).children(recursive=True)
        job.kill()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()


def has_ranks(job: subprocess.Popen) -> bool:
    """Tell whether any rank of a job is alive; `msrun` makes each the leader of a session."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(job.pid).children():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == process.pid:
                    return True
    return False


def worker_logs(log_dir: Path) -> list[Path]:
    """List the log files of the ranks, in order of rank."""
    return sorted(log_dir.glob("worker_*.log"), key=lambda path: int(path.stem.split("_")[1]))


def _free_port() -> int:
    """Ask the system for a free port on loopback, for the job's scheduler."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
