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
from hyperparallel.training.cause import explain_failure
from hyperparallel.training.launch import end_job, start_job
from hyperparallel.training.progress import follow
from hyperparallel.training.watch import SCHEDULER, Watch
from hyperparallel.variables import RUN_FOLDER

_STARTS = 3  # times a job is started because the port of its scheduler was taken
_PORT_TAKEN = "Failed to init the tcp server"  # what MindSpore's scheduler says then
_GRACE = 5.0  # seconds between the first failure of a rank and the end of all, for the others to say what they wait for
_SETTLING = 1.5  # seconds between the end of the last rank and that of the job; msrun looks at ranks once a second
_ECHO = 1.0  # seconds in which a second SIGTERM is taken for the first; `timeout` sends two
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


def run_job(
    arguments: Sequence[str],
    workers: int,
    folder: Path,
    metrics: str,
    report: Callable[[dict], None],
    stop_s: float | None = None,
) -> None:
    """Run `python ARGUMENTS` on all ranks until the job ends.

    Args:
        arguments: what follows `python`.
        workers: P x D x T.
        folder: of this run; logs go to its `logs`.
        metrics: file in the folder whose JSON lines are reported as they come.
        report: called with each line.
        stop_s: seconds that the ranks may take to save and end after SIGTERM, which is handed to them; a second one
            ends all at once. None: the first one does.

    Raises:
        JobError: a process of the job failed, or the ranks took too long to stop; says which, and where its log is.
    """
    done: list[int] = []

    def noted(line: dict) -> None:
        if "step" in line:
            done[:] = [line["step"]]
        report(line)

    logs = folder / "logs"
    wish = _Wish(stop_s)
    with _heard(wish):
        for _ in range(_STARTS):
            job = start_job(arguments, workers, logs, {RUN_FOLDER: str(folder)}, keep_sigterm=stop_s is not None)
            watch = Watch(job, workers, logs)
            try:
                follow(folder / metrics, _Running(job, watch, wish), noted)
                code = job.poll()
            finally:
                with _unheard():
                    end_job(job)
            if code == 0 or watch.ended_well:
                return
            if (folder / metrics).exists() or not _port_taken(watch, logs):
                break
        else:
            raise JobError(f"the port of the scheduler was taken {_STARTS} times; see {logs / 'scheduler.log'}")
    if wish.late:
        raise JobError(f"the ranks did not end within {stop_s:g} s of SIGTERM and were killed (logs: {logs})")
    raise JobError(explain_failure(watch, code, logs, done[0] if done else None))


class _Wish:
    """SIGTERM to the starter: handed on to the ranks first, the end of all if it comes again."""

    def __init__(self, stop_s: float | None):
        self._stop_s = stop_s
        self._asked: float | None = None

    def hear(self, number: int, _: object) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self._stop_s is None or number != signal.SIGTERM or (self._asked is not None and now > self._asked + _ECHO):
            # On a line of its own: there may be a progress bar on this one.
            print(f"\nhyperparallel: ended at once by {signal.Signals(number).name}", file=sys.stderr)
            sys.exit(128 + number)
        if self._asked is None:
            self._asked = now

    @property
    def asked(self) -> bool:
        """Whether the ranks are to save and end."""
        return self._asked is not None

    @property
    def late(self) -> bool:
        """Whether they take too long."""
        return self._asked is not None and time.monotonic() > self._asked + self._stop_s


class _Running:
    """Tell whether to wait for a job, and hand SIGTERM on to its ranks.

    A job does not always end by itself: when a rank failed before all had joined, the scheduler waits ten minutes for
    it and `msrun` for the scheduler; ranks that did all they had to (`Transport.leave`) do not tell it that they go;
    when `msrun` has ended, its ranks go on.
    """

    def __init__(self, job: subprocess.Popen, watch: Watch, wish: _Wish):
        self._job, self._watch, self._wish = job, watch, wish
        self._told = False
        self._until: float | None = None

    def __call__(self) -> bool:
        watch = self._watch
        watch.look()
        if self._wish.asked and not self._told and watch.complete:
            self._told = True
            watch.signal_ranks(signal.SIGTERM)
        if self._until is None and (watch.first or watch.ranks_ended):
            self._until = time.monotonic() + (_GRACE if watch.first else _SETTLING)
        all_said = watch.first and (watch.ranks_ended or SCHEDULER in watch.first)
        if self._job.poll() is not None or self._wish.late or all_said:
            return False
        return self._until is None or time.monotonic() < self._until


@contextmanager
def _heard(wish: _Wish) -> Iterator[None]:
    """Turn SIGTERM, and the end of the terminal, into what becomes of the ranks too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # under nohup, the terminal's end is of no interest
            signal.signal(number, wish.hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _unheard() -> Iterator[None]:
    """Let no signal interrupt the end of a job's processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _port_taken(watch: Watch, logs: Path) -> bool:
    log = logs / "scheduler.log"
    return SCHEDULER in watch.first and _PORT_TAKEN in log.read_text(encoding="utf-8", errors="replace")


def has_starter() -> bool:
    """Tell whether `run_job` started this rank, rather than a person with `msrun`."""
    return RUN_FOLDER in os.environ


def run_folder(out: str) -> Path:
    """Return the folder of this run on a rank: the starter's, or a new one when started by hand."""
    return Path(os.environ[RUN_FOLDER]) if has_starter() else new_run_folder(out)


def say(text: str) -> None:
    """Print for the person at the terminal."""
    print(text, file=sys.stdout, flush=True)
