"""Run a script on several ranks, for tests: what goes wrong is shown with the ends of all logs."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hyperparallel.training.job import JobError, run_job


def run_ranks(command: Sequence[str], workers: int, folder: Path) -> None:
    """Run `python COMMAND`, which ends with `Transport.leave`, on all ranks; their logs go to `folder / "logs"`."""
    try:
        run_job(command, workers, folder, "no-metrics.jsonl", pytest.fail)
    except JobError as error:
        ends = [f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(folder.glob("logs/*.log"))]
        pytest.fail("\n".join([str(error), *ends]))
