"""Start jobs through the entry and read what MindFormers' loss monitor prints."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import yaml
from hyperparallel.training.launch import end_job, start_job, worker_logs

PROJECT = Path(__file__).parent.parent
TINY = PROJECT / "yaml" / "mindformers" / "tiny_cpu.yaml"
_LINE = re.compile(
    r"step:\[\s*(?P<step>\d+)/.*?loss:\[(?P<loss>[^/]+)/.*?lr: (?P<lr>[^,]+), overflow cond: (?P<overflow>\w+), "
    r"loss_scale: (?P<scale>[^,]+), global_norm: (?P<norm>[^,]+),"
)


class Printed(NamedTuple):
    """What the loss monitor says of a step."""

    step: int
    loss: float
    lr: float
    overflow: bool
    scale: float
    norm: float


def write(folder: Path, changes: Mapping[str, Any], base: Path = TINY) -> Path:
    """Write a configuration with some values changed."""
    values = changed(base, {"output_dir": str(folder / "output"), **changes})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def changed(base: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Read a configuration and change values in it by dotted key; None takes a key away."""
    values = yaml.safe_load(base.read_text())
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = values
        for name in sections:
            place = place[name]
        if value is None:
            place.pop(last)
        else:
            place[last] = value
    return values


def train(folder: Path, workers: int, changes: Mapping[str, Any], flags: Sequence[str] = ()) -> list[list[Printed]]:
    """Run a job under `msrun`, or alone; return what each worker printed."""
    path = write(folder, changes)
    command = ["-m", "mindformers_patch", "--config", str(path), *flags]
    if workers == 1:
        return [alone(folder, command)]
    return run_workers(command, workers, folder)


def run_workers(command: Sequence[str], workers: int, folder: Path) -> list[list[Printed]]:
    """Run a command under `msrun`; return what each worker printed."""
    job = start_job(command, workers, folder / "log", {"PYTHONPATH": str(PROJECT)})
    try:
        code = job.wait(timeout=300)
    finally:
        end_job(job)
    logs = [log.read_text(errors="replace") for log in worker_logs(folder / "log")]
    said = (folder / "log" / "msrun.log").read_text(errors="replace")
    # MindSpore's way out on CPU crashes now and then (`Transport.leave`); whoever trained to the end is not to blame.
    crashed_after = "Error code: -11" in said and all("Training Over!" in log for log in logs)
    if code != 0 and not crashed_after:
        pytest.fail("\n".join([*(log[-3000:] for log in logs), said]))
    return [read(log) for log in logs]


def alone(folder: Path, command: Sequence[str]) -> list[Printed]:
    """Run a job in one process."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, errors="replace", timeout=300
    )
    if done.returncode != 0:
        pytest.fail(done.stdout[-3000:] + done.stderr[-3000:])
    return read(done.stdout + done.stderr)


def read(text: str) -> list[Printed]:
    """Find the loss monitor's lines."""
    return [
        Printed(
            int(match["step"]),
            float(match["loss"]),
            float(match["lr"]),
            match["overflow"] == "True",
            float(match["scale"]),
            float(match["norm"].strip("[] ")),
        )
        for match in _LINE.finditer(text)
    ]
