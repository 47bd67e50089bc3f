"""Start a command as rank R of N in MindSpore's dry run, and several ranks a few at a time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hyperparallel.dryrun.stubs import HOME, LIBRARIES, PYTHON, build, default_folder
from hyperparallel.dryrun.wheel import Wheel
from hyperparallel.errors import DryRunError

# Left over from a launcher, these would make mindspore look for the other processes.
_LAUNCHER = ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM", "MS_NODE_ID", "RANK_TABLE_FILE")
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class RankRun:
    """How one rank's process ended.

    Args:
        rank: which one.
        returncode: its exit status, negative for a signal; None if it was ended after the time allowed.
        seconds: how long it ran.
        output: everything it printed, both streams; `gist` cuts it to the point.
    """

    rank: int
    returncode: int | None
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        """Whether the process ended by itself with exit status 0."""
        return self.returncode == 0


def environment(
    folder: Path | str,
    wheel: Wheel,
    ranks: int,
    rank: int,
    level: int = 0,
    save_graphs: Path | str | None = None,
    passes: str = "validate",
) -> dict[str, str]:
    """Make the environment in which a process is one rank of a dry run.

    Args:
        folder: where the stubs are.
        wheel: what `build` returned for that folder.
        ranks: number of ranks to pretend, at least 1.
        rank: which one to be, 0 <= rank < ranks.
        level: 0 compiles the front end (`cell.compile(*inputs)`); 1 also the back end, with simulated memory
            (`cell(*inputs)`; its results mean nothing).
        save_graphs: folder that gets rank_R/ with the graphs, at level 1 with the order of execution too.
        passes: which graphs to save: the name of a pass, "validate" being the last of the front end, or "all",
            which takes several times as long as compiling.

    Raises:
        DryRunError: a rank or a level that does not exist.

    Returns:
        All variables of the process to start, those of this one included.
    """
    if not 0 <= rank < ranks:
        raise DryRunError(f"rank {rank} of {ranks} ranks; give a rank from 0 to {ranks - 1}")
    if level not in (0, 1):
        raise DryRunError(f"level {level}; give 0 or 1 (higher levels need the vendor's software)")
    folder = Path(folder).absolute()
    variables = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    _prepend(variables, "LD_LIBRARY_PATH", [folder / LIBRARIES, *wheel.search_path])
    _prepend(variables, "PYTHONPATH", [folder / PYTHON])
    variables.update(MS_SIMULATION_LEVEL=str(level), RANK_SIZE=str(ranks), RANK_ID=str(rank), DEVICE_ID="0")
    variables["ASCEND_HOME_PATH"] = str(folder / HOME)  # level 1 looks for libopapi.so there
    variables.setdefault("GLOG_v", "3")  # errors only; mindspore warns of the missing vendor package at length
    if save_graphs is not None:
        variables.setdefault("MS_DEV_SAVE_GRAPHS", "2")
        variables["MS_DEV_SAVE_GRAPHS_PATH"] = str(Path(save_graphs).absolute())
        if passes != "all":
            variables["MS_DEV_DUMP_IR_PASSES"] = passes
    return variables


def run_ranks(
    command: Sequence[str],
    ranks: int,
    which: Iterable[int] | None = None,
    *,
    level: int = 0,
    save_graphs: Path | str | None = None,
    passes: str = "validate",
    timeout: float = 600.0,
    jobs: int = 2,
    folder: Path | str | None = None,
    extra_env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
) -> list[RankRun]:
    """Run a command once per rank, each in its own process, and wait for all.

    The script does what it would do on devices: `set_context(mode=GRAPH_MODE)`, `set_device("Ascend", 0)`,
    `mindspore.communication.init()`, `cell.set_train()` (without it the pipeline passes build an inference
    graph), then `cell.compile(*inputs)` at level 0 or `cell(*inputs)` at level 1.

    Args:
        command: a Python interpreter that has mindspore, and what follows it.
        ranks: number of ranks to pretend, at least 1.
        which: the ranks to run; None for all.
        level: 0 or 1, see `environment`.
        save_graphs: folder that gets rank_R/ for every rank; what an earlier run left there for these ranks is
            removed. None keeps nothing.
        passes: which graphs to save, see `environment`.
        timeout: seconds allowed to one rank; then its process and all that it started are ended.
        jobs: processes at a time, at least 1.
        folder: where the stubs are or go; None for `default_folder()`.
        extra_env: further environment variables.
        cwd: working folder of the processes, None for this one's; at level 1 mindspore leaves an empty folder
            `offload` in it.

    Raises:
        DryRunError: stubs that cannot be built, or a rank that does not exist.

    Returns:
        One result per rank asked for, in order of rank. A rank that failed is a result too, not an error.
    """
    folder = Path(folder or default_folder())
    wheel = build(folder, command[0])
    with tempfile.TemporaryDirectory(prefix="dryrun_") as scratch:
        # Else a rank would write its rank_R/ into the working folder.
        graphs = Path(save_graphs or scratch)
        waiting = []
        for rank in sorted(set(range(ranks) if which is None else which)):
            variables = environment(folder, wheel, ranks, rank, level, graphs, passes)
            variables["MS_OM_PATH"] = str(graphs.absolute())  # rank_R/om/analyze_fail.ir, after an error
            shutil.rmtree(graphs / f"rank_{rank}", ignore_errors=True)
            waiting.append((rank, {**variables, **(extra_env or {})}))
        return _run(list(command), waiting, timeout, jobs, cwd)


class _Running:
    """One rank's process, the leader of a session of its own, so that all it starts can be ended with it."""

    def __init__(self, rank: int, command: list[str], variables: Mapping[str, str], cwd: Path | str | None) -> None:
        self.rank, self.start = rank, time.monotonic()
        # A file, not a pipe: nothing has to be read while the process runs.
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `result` or `abandon`
        self.process = subprocess.Popen(
            command,
            env=variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end(self) -> None:
        """End the process and everything it started that is still running."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def abandon(self) -> None:
        """End it without a result."""
        self.end()
        self.output.close()

    def result(self, timed_out: bool) -> RankRun:
        """Collect what there is to know after the end."""
        seconds = time.monotonic() - self.start
        self.output.seek(0)
        text = self.output.read().decode(errors="replace")
        self.output.close()
        return RankRun(self.rank, None if timed_out else self.process.returncode, seconds, text)


def _run(
    command: list[str], waiting: list[tuple[int, dict]], timeout: float, jobs: int, cwd: Path | str | None
) -> list[RankRun]:
    running: list[_Running] = []
    results = []
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                running.append(_Running(waiting[0][0], command, waiting[0][1], cwd))
                del waiting[0]
            for rank in list(running):
                late = time.monotonic() - rank.start > timeout
                if rank.process.poll() is None and not late:
                    continue
                timed_out = rank.process.returncode is None
                rank.end()
                running.remove(rank)
                results.append(rank.result(timed_out))
            time.sleep(_POLL_SECONDS)
    finally:
        for rank in running:
            rank.abandon()
    return sorted(results, key=lambda run: run.rank)


def _prepend(variables: dict[str, str], name: str, folders: Sequence[Path]) -> None:
    first = [str(folder) for folder in folders]
    rest = [part for part in variables.get(name, "").split(os.pathsep) if part and part not in first]
    variables[name] = os.pathsep.join([*first, *rest])
