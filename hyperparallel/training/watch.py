"""The processes of a job as its starter sees them: which rank is which, and which ended first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

SCHEDULER = "scheduler"
Member = int | str
"""A rank's number, or SCHEDULER."""
_REAPED = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")


class Watch:
    """Look at the processes of a job again and again.

    `msrun` looks at its ranks once a second and ends all of them when one has failed, so who failed first is seen only
    by looking more often.

    Args:
        job: the `msrun` process.
        workers: number of ranks.
        logs: folder with `msrun.log`.
    """

    def __init__(self, job: subprocess.Popen, workers: int, logs: Path):
        self._job, self._workers, self._logs = job, workers, logs
        self._members: dict[Member, psutil.Process] = {}
        self.ended: dict[Member, int | None] = {}
        """Exit code of those that ended, -9 for signal 9; None where `msrun` was faster to ask."""
        self.first: dict[Member, int | None] = {}
        """Those that had ended when a failure was first seen."""
        self.still: list[int] = []
        """Ranks that the system held still then (SIGSTOP, a debugger)."""

    def look(self) -> None:
        """Note who has ended since the last look."""
        if not self.complete:
            self._members.update(self._find())
        for member, process in self._members.items():
            if member not in self.ended and _has_ended(process):
                self.ended[member] = _exit_code(process)
        if not self.first and any(self.ended.values()):
            self.first, self.still = dict(self.ended), list(self._held())

    @property
    def complete(self) -> bool:
        """Whether all members were found."""
        return len(self._members) > self._workers

    @property
    def ranks_ended(self) -> bool:
        """Whether all ranks have ended."""
        return all(rank in self.ended for rank in range(self._workers))

    @property
    def ended_well(self) -> bool:
        """Whether all ranks have ended and none is known to have failed.

        `msrun` looks once a second: only when that has passed does its log tell of those whose exit code it has taken.
        """
        return self.ranks_ended and not any(self.ended[rank] for rank in range(self._workers)) and not self._told()

    def signal_ranks(self, number: signal.Signals) -> None:
        """Send a signal to all ranks that live."""
        for member, process in self._members.items():
            if member != SCHEDULER and member not in self.ended:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def missed(self) -> dict[Member, int]:
        """Read from the log of `msrun` who failed first, with the exit code, if `msrun` was faster than these looks."""
        if (match := self._told()) is None:
            return {}
        by_pid = {process.pid: member for member, process in self._members.items()}
        unknown = [rank for rank in range(self._workers) if rank not in self._members]
        member = by_pid.get(int(match[1]), unknown[0] if len(unknown) == 1 else None)
        if member is None or self.first and member in self._members and self.first.get(member, 0) is not None:
            return {}
        return {member: int(match[2])}

    def _told(self) -> re.Match | None:
        """Find what `msrun` says of the first rank that failed."""
        return _REAPED.search((self._logs / "msrun.log").read_text(encoding="utf-8", errors="replace"))

    def _held(self) -> Iterator[int]:
        for member, process in self._members.items():
            with suppress(psutil.NoSuchProcess):
                if member != SCHEDULER and process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                    yield member

    def _find(self) -> Iterator[tuple[Member, psutil.Process]]:
        """Find the children of `msrun` that are members; it starts a `tail` for each rank too."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._job.pid).children()
            for process in children:
                if (member := _member_of(process)) is not None:
                    yield member, process
            oldest = min(children, key=lambda process: (process.create_time(), process.pid), default=None)
            # Who has ended shows no environment; `msrun` starts the scheduler first and asks for it last.
            if oldest and SCHEDULER not in self._members and _has_ended(oldest):
                yield SCHEDULER, oldest


def _member_of(process: psutil.Process) -> Member | None:
    """Read from the environment of a child of `msrun` which member it is; None if it is none, or has ended."""
    with suppress(psutil.Error, ProcessLookupError):
        environment = process.environ()
        role = environment.get("MS_ROLE")
        if role == "MS_SCHED":
            return SCHEDULER
        if role == "MS_WORKER" and os.getsid(process.pid) == process.pid:
            return int(environment["RANK_ID"])
    return None


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _exit_code(process: psutil.Process) -> int | None:
    """Read the exit code of a process that nobody has asked yet; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == b"Z" else None
