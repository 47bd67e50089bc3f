"""Kill a random rank of a training job at a random moment, again and again, and check what follows.

    python scripts/kill_ranks.py [--kills 20] [--terms 1] [--ranks 2] [--steps 12] [--seed 0] [--folder DIR]

A job is killed while it trains, goes on from its checkpoint, and is killed again, until its last step is done; then
another one starts. After a kill all processes must end within 60 s, the exit code be none of success, and one message
name the rank. SIGTERM (the last `--terms` times) must save and end with 0. Every loss and gradient norm must be that of
a job that nobody interrupted, to the last bit. Ends with 1 if anything was otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from hyperparallel.variables import RUN_FOLDER

CONFIG = Path(__file__).parent.parent / "yaml" / "digits.yaml"
SMALL = (
    "model.vision.depth=1",
    "model.llm.depth=2",
    "data.max_images=2",
    "training.batch_size=16",
    "training.warmup_steps=2",
    "evaluation.samples=0",
    "checkpoint.every=1",
)
LIMIT = 60.0  # seconds in which all processes have to end
START = 300.0  # seconds in which a job has to do its first step, on a machine that does other things too


class Run:
    """One start of `hyperparallel train`.

    Args:
        out: folder of its own.
        words: overrides.
        resume: run folder to go on from, if any.
    """

    def __init__(self, out: Path, words: list[str], resume: Path | None = None):
        self.out = out
        self.left: list[psutil.Process] = []  # that outlived the starter
        out.mkdir(parents=True)
        words = [*words, f"run.out={out / 'run'}", *([f"resume={resume}"] if resume else [])]
        command = [sys.executable, "-m", "hyperparallel", "train", str(CONFIG), *SMALL, *words]
        with open(out / "output.txt", "wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def folder(self) -> Path | None:
        """The run folder, once it is there."""
        return next((self.out / "run").glob("*"), None)

    def lines(self) -> list[dict]:
        """Read the metrics so far."""
        path = self.folder and self.folder / "metrics.jsonl"
        text = path.read_text() if path and path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def processes(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """Find the processes that the starter started, with their environment."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if environment.get(RUN_FOLDER, "").startswith(f"{self.out}{os.sep}"):
                    yield process, environment

    def rank(self, rank: int) -> psutil.Process | None:
        """Find the process of a rank; `msrun` makes it the leader of a session."""
        for process, environment in self.processes():
            if environment.get("MS_ROLE") == "MS_WORKER" and environment["RANK_ID"] == str(rank):
                with suppress(ProcessLookupError):
                    if os.getsid(process.pid) == process.pid:
                        return process
        return None

    def wait_for(self, lines: int) -> bool:
        """Wait until so many steps are done; tell whether the job still runs then."""
        end = time.monotonic() + START
        while len(self.lines()) < lines and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.process.poll() is None and len(self.lines()) >= lines

    def wait(self, seconds: float) -> int | None:
        """Wait for the starter; return its exit code, None if it goes on and was killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None
        finally:
            self.left = [process for process, _ in self.processes()]
            for process in self.left:
                process.kill()

    def messages(self) -> list[str]:
        """List what the starter said of errors."""
        said = (self.out / "output.txt").read_text(errors="replace").replace("\r", "\n").splitlines()
        return [line.removeprefix("hyperparallel: ") for line in said if line.startswith("hyperparallel: ")]

    def checkpoint(self) -> int:
        """Return the number of steps in the newest checkpoint, 0 if there is none."""
        found = self.folder.glob("checkpoints/step_*/checkpoint.json")
        return max((int(path.parent.name.removeprefix("step_")) for path in found), default=0)


class Chain:
    """Jobs that are interrupted and go on.

    Args:
        args: of the command line.
        folder: for the runs.
    """

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.random = random.Random(args.seed)
        self.words = [f"parallel.ranks={args.ranks}", f"training.steps={args.steps}"]
        self.count = 0
        self.resume: Path | None = None
        self.done = 0  # steps in the checkpoint that the next run starts from
        self.problems = 0
        self.reference = self.start()

    @cached_property
    def expected(self) -> list[tuple[float, float]]:
        """The numbers of every step of the job that nobody interrupts; it runs while the first ones are killed."""
        code, lines = self.reference.wait(START), self.reference.lines()
        if code != 0 or len(lines) != self.args.steps:
            sys.exit(f"the job that nobody interrupts failed: {self.reference.messages()}")
        return [numbers(line) for line in lines]

    def start(self) -> Run:
        """Start the next run."""
        self.count += 1
        return Run(self.folder / f"{self.count:03}", self.words, self.resume)

    def interrupt(self, number: signal.Signals) -> str | None:
        """Start a run, send a signal to a random rank of it at a random moment, and check what becomes of it.

        Returns:
            A line of the table; None if it was through with all steps before.
        """
        run, begins = self.start(), self.done
        after = self.random.randint(1, 4)
        moment, rank = self.random.random(), self.random.randrange(self.args.ranks)
        if begins + after + 2 > self.args.steps or not run.wait_for(after):
            self.finish(run)
            return None
        delay = moment * 2 * run.lines()[-1]["step_time"] if after > 1 else moment
        time.sleep(delay)
        process = run.rank(rank)
        if process is None:
            self.finish(run)
            return None
        process.send_signal(number)
        start = time.monotonic()
        code = run.wait(LIMIT)
        seconds = time.monotonic() - start
        self.resume, self.done = (run.folder, run.checkpoint()) if run.checkpoint() else (self.resume, begins)
        wrong = [*self.wrong_end(run, code, rank, number), *self.wrong_losses(run, begins)]
        self.problems += len(wrong)
        row = (
            f"{number.name:8} {rank:4} {begins + after:6} {delay * 1e3:6.0f} {seconds:7.1f} {code!s:>5} "
            f"{self.done:10} {len(run.lines()):7}  {'; '.join(wrong) or 'ok'}"
        )
        if self.done == self.args.steps:  # it came after the last step
            self.resume, self.done = None, 0
        return row

    def finish(self, run: Run | None = None) -> None:
        """Let a run go to its last step, and begin anew with the next one."""
        run = run or self.start()
        code = run.wait(START)
        wrong = [] if code == 0 else [f"the last run ended with {code}: {run.messages()}"]
        wrong += self.wrong_losses(run, self.done)
        if not run.lines() or run.lines()[-1]["step"] + 1 != self.args.steps:
            wrong.append("the last step was not done")
        self.problems += len(wrong)
        print(f"finished from {self.done}, steps compared {len(run.lines())}: {'; '.join(wrong) or 'ok'}", flush=True)
        self.resume, self.done = None, 0

    def wrong_end(self, run: Run, code: int | None, rank: int, number: signal.Signals) -> Iterator[str]:
        """Say what is wrong with the end of a run."""
        said = run.messages()
        if run.left:
            yield f"{len(run.left)} processes are left"
        if number == signal.SIGTERM:
            output = (run.out / "output.txt").read_text(errors="replace")
            if code != 0 or said or f"go on with resume={run.folder}\n" not in output:
                yield f"exit code {code}, {said}, printed {output[-200:]!r}"
            if run.checkpoint() != run.lines()[-1]["step"] + 1:
                yield f"the last step was {run.lines()[-1]['step']}, the checkpoint is of {run.checkpoint()}"
            return
        if code in (0, None):
            yield f"exit code {code} after {LIMIT:.0f} s"
        if len(said) != 1 or not said[0].startswith(f"rank {rank} was killed by signal {number.value} "):
            yield f"messages {said}"

    def wrong_losses(self, run: Run, begins: int) -> Iterator[str]:
        """Say which steps are not those of the job that nobody interrupted."""
        for index, line in enumerate(run.lines()):
            if line["step"] != begins + index:
                yield f"step {line['step']} in the place of {begins + index}"
            elif numbers(line) != self.expected[line["step"]]:
                yield f"step {line['step']}: {numbers(line)}, expected {self.expected[line['step']]}"


def numbers(line: dict) -> tuple[float, float]:
    """Take out of a line of metrics what must be equal to the last bit."""
    return line["loss"], line["grad_norm"]


def main() -> int:
    """Run the chain; print a line for each interruption."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="times a rank is killed (SIGKILL)")
    parser.add_argument("--terms", type=int, default=1, help="times a rank is asked to stop (SIGTERM), after that")
    parser.add_argument("--ranks", type=int, default=2, help="P")
    parser.add_argument("--steps", type=int, default=12, help="steps of a job, at least 6")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    parser.add_argument("--folder", type=Path, help="empty folder for the runs, which stay there")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        chain = Chain(args, (args.folder or Path(temporary)).absolute())
        print("signal   rank  after +delay   ended  code  goes on at  steps", flush=True)
        print("                steps     ms     s                  step  equal", flush=True)
        for number in [signal.SIGKILL] * args.kills + [signal.SIGTERM] * args.terms:
            while (row := chain.interrupt(number)) is None:
                pass
            print(row, flush=True)
        chain.finish()
    print(f"{args.kills} kills, {args.terms} requests to stop, {chain.problems} problems")
    return 1 if chain.problems else 0


if __name__ == "__main__":
    sys.exit(main())
