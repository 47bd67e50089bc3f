"""Start a job from the command line, watch it, and say what became of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from hyperparallel.errors import ConfigError, HyperParallelError
from hyperparallel.training.launch import end_job, has_ranks, start_job, worker_logs
from hyperparallel.training.progress import follow

RUN_FOLDER = "HYPERPARALLEL_RUN_FOLDER"
"""Environment variable by which the starter tells the ranks the folder of this run."""


_PATIENCE = 15.0  # seconds between the end of the last rank and that of the job


class JobError(HyperParallelError):
    """A job whose ranks did not all end well; the message names the logs."""


def new_run_folder(out: str) -> Path:
    """Make a new folder for one run inside `out`; earlier runs are kept.

    Raises:
        ConfigError: `out` cannot be made or written.
    """
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(1, 1000):
        folder = Path(out) / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not Path(out).is_dir():
                raise ConfigError(f"run.out = {out!r} is a file; give a folder") from None
        except OSError as error:
            raise ConfigError(f"run.out = {out!r} cannot be made ({error.strerror}); give another folder") from None
    raise ConfigError(f"run.out = {out!r}: 1000 runs started within one second; wait a moment")


def run_job(arguments: Sequence[str], workers: int, folder: Path, metrics: str, report: Callable[[dict], None]) -> None:
    """Run `python ARGUMENTS` on all ranks until the job ends.

    Args:
        arguments: what follows `python`.
        workers: P x D x T.
        folder: of this run; logs go to its `logs`.
        metrics: file in the folder whose JSON lines are reported as they come.
        report: called with each line.

    Raises:
        JobError: a rank failed; says which, with the end of its log.
    """
    logs = folder / "logs"
    with _terminable():
        job = start_job(arguments, workers, logs, {RUN_FOLDER: str(folder)})
        try:
            follow(folder / metrics, _Running(job, logs), report)
        finally:
            end_job(job)
    if job.returncode != 0:
        raise JobError(_failure(logs))


class _Running:
    """Tell whether a job runs. When all ranks are gone it soon ends; not so if one failed before it had joined.

    The scheduler then waits ten minutes for it, and `msrun` for the scheduler.
    """

    def __init__(self, job: subprocess.Popen, logs: Path):
        self._job, self._logs = job, logs
        self._look, self._alive = 0.0, time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now >= self._look:
            self._look = now + 1.0  # listing processes is not free
            if not worker_logs(self._logs) or has_ranks(self._job):
                self._alive = now
        return self._job.poll() is None and now - self._alive < _PATIENCE


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that who ends the starter (`timeout`, a scheduler) ends its ranks too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def has_starter() -> bool:
    """Tell whether `run_job` started this rank, rather than a person with `msrun`."""
    return RUN_FOLDER in os.environ


def run_folder(out: str) -> Path:
    """Return the folder of this run on a rank: the starter's, or a new one when started by hand."""
    return Path(os.environ[RUN_FOLDER]) if has_starter() else new_run_folder(out)


def _failure(logs: Path) -> str:
    """Quote the log of the rank that failed by itself rather than one that `msrun` ended after it."""
    worker = worker_logs(logs)
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in worker}
    for path, text in texts.items():
        said = [line for line in text.splitlines() if line.startswith("hyperparallel: ")]
        if said:
            return f"{path.stem} says: {said[-1].removeprefix('hyperparallel: ')} (logs: {logs})"
    for path, text in texts.items():
        if "Traceback" in text:
            last = [line for line in text[text.rindex("Traceback") :].splitlines() if line and line[0] not in " -"]
            cause = next((line for line in last[1:] if "Error" in line or "Exception" in line), last[-1])
            return f"the job failed on {path.stem}: {cause} (the whole traceback is in {path})"
    return f"the job failed without a traceback; read the logs in {logs} (a rank may have been killed)"


def say(text: str) -> None:
    """Print for the person at the terminal."""
    print(text, file=sys.stdout, flush=True)
