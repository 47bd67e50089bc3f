"""Run mutants in forked processes that may take only so much time and memory, and judge what comes out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_kinds import KINDS, Job, make_mutant

SECONDS, MEGABYTES = 10.0, 1000.0
"""What one mutant may take."""

_LONGEST = 4000  # characters of a message
_BATCH = 50  # mutants of one process: a fork of all that is imported takes as long as a mutant


@dataclass
class Tally:
    """What happened to the mutants of a kind."""

    kind: str
    mutants: int = 0
    codes: dict[int, int] = field(default_factory=lambda: dict.fromkeys((0, 1, 2), 0))
    slowest: float = 0.0
    largest: float = 0.0
    problems: list[tuple[int, str]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, seed: int, result: dict[str, Any]) -> None:
        """Count a mutant, and note what is wrong with how it went."""
        self.mutants += 1
        self.slowest = max(self.slowest, result["seconds"])
        self.largest = max(self.largest, result["megabytes"])
        if result["code"] in self.codes:
            self.codes[result["code"]] += 1
        if result["code"] == 0:
            self.accepted.append(seed)
        problem = judge(result)
        if problem:
            self.problems.append((seed, problem))


def judge(result: dict[str, Any]) -> str:
    """Say what is wrong with a result; nothing if it is as it should be."""
    code, said = result["code"], result["stderr"]
    if result["crash"]:
        return result["crash"]
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in said:
        return f"a traceback: {said[-300:]}"
    if code and (not said.startswith("hyperparallel: ") or said.count("\nhyperparallel: ")):
        return f"not one message: {said[:300]!r}"
    if len(said) > _LONGEST:
        return f"a message of {len(said)} characters: {said[:300]!r}"
    if code and not said[len("hyperparallel: ") :].strip():
        return "a message that says nothing"
    if result["seconds"] > SECONDS:
        return f"{result['seconds']:.1f} s"
    if result["megabytes"] > MEGABYTES:
        return f"{result['megabytes']:.0f} MB"
    return "a changed file was believed" if result["believed"] else ""


def fuzz(kind: str, seeds: Iterable[int]) -> Tally:
    """Run the mutants of some seeds.

    Args:
        kind: of `KINDS`.
        seeds: one for each mutant.
    """
    tally, left = Tally(kind), list(seeds)
    with tempfile.TemporaryDirectory(prefix="fuzz_") as name:
        jobs = make_jobs(kind, Path(name) / "right")
        while left:
            batch = left[:_BATCH]
            done = _run_batch(jobs, kind, batch, Path(name) / "work")
            for seed, result in zip(batch, done, strict=False):
                tally.add(seed, result)
            left = left[len(done) :]
    return tally


def make_jobs(kind: str, folder: Path) -> list[Job]:
    """Make the right jobs of a kind, and check that they are."""
    folder.mkdir(parents=True)
    with contextlib.redirect_stdout(io.StringIO()):
        jobs = KINDS[kind](folder)
    for number, job in enumerate(jobs):
        result = run_job(job, {}, folder / f"check_{number}")
        assert result["code"] == 0 and not result["crash"], f"the right {kind} is refused: {result}"
    return jobs


def run_job(job: Job, changed: dict[str, bytes], folder: Path) -> dict[str, Any]:
    """Run a job's command in this process.

    Args:
        job: a right one.
        changed: name -> other content.
        folder: where its files are written.
    """
    for name, content in {**job.files, **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2))
    code, crash, began = None, "", time.monotonic()
    before, here = _peak(reset=True), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = job.command(folder)
    except BaseException:  # whatever it is, it is what this looks for
        crash = "raised " + traceback.format_exc(limit=-3)[-700:]
    finally:
        os.chdir(here)
    seconds, megabytes = time.monotonic() - began, _peak() - before
    out.flush()
    err.flush()
    said = err.buffer.getvalue().decode("utf-8", "replace")
    return {"code": code, "crash": crash, "stderr": said, "seconds": seconds, "megabytes": megabytes, "believed": False}


def run_mutant(jobs: list[Job], kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Make a mutant and run its job in this process."""
    mutant = make_mutant(jobs, kind, seed)
    result = run_job(mutant.job, {mutant.name: mutant.content}, folder)
    if result["code"] == 0:
        result["believed"] = mutant.believed_wrongly()
    return result


def _run_batch(jobs: list[Job], kind: str, seeds: list[int], folder: Path) -> list[dict[str, Any]]:
    """Run mutants in one forked process until it has done all, or one of them ends or hangs it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _work(jobs, kind, seeds, folder, write)
    os.close(write)
    results, ended, began = [], False, time.monotonic()
    with os.fdopen(read, "rb") as pipe:
        while not ended and len(results) < len(seeds):
            # Twice the time, since other programs run too: the mutant's own clock decides.
            if not select.select([pipe], [], [], 2 * SECONDS)[0]:
                os.kill(child, signal.SIGKILL)
            line = pipe.readline()
            ended = not line
            if line:
                results.append(json.loads(line))
                began = time.monotonic()
    status = os.waitpid(child, 0)[1]
    if len(results) < len(seeds):
        seconds = time.monotonic() - began
        how = f"ended by {os.waitstatus_to_exitcode(status)} after {seconds:.1f} s"
        results.append(
            {"code": None, "crash": how, "stderr": "", "seconds": seconds, "megabytes": 0.0, "believed": False}
        )
    return results


def _work(jobs: list[Job], kind: str, seeds: list[int], folder: Path, write: int) -> None:
    """Run mutants in this forked process, write a line for each, and leave."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = size + int(1.5 * MEGABYTES * 1e6)  # beyond what it may use, but not what the machine has
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    code = 1
    try:
        for seed in seeds:
            result = run_mutant(jobs, kind, seed, folder / str(os.getpid()))
            os.write(write, json.dumps(result).encode() + b"\n")
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _peak(reset: bool = False) -> float:
    """Return the most memory that this process has held, in MB, since it was reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000
