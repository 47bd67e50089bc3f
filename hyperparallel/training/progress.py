"""The progress bar: loss, tokens/s and step time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

_NAP = 0.05  # seconds between two looks at a job, each of which takes far less than 1 ms


class Progress:
    """A bar over the steps of a job.

    Args:
        steps: how many there will be.
    """

    def __init__(self, steps: int):
        self._bar = tqdm(total=steps, unit="step", dynamic_ncols=True)

    def report(self, line: dict) -> None:
        """Show one line of metrics."""
        speed = f"{line['tokens_per_s']:.0f} tokens/s, {line['step_time'] * 1e3:.0f} ms"
        self._bar.set_postfix_str(f"loss {loss_text(line['loss'])}, {speed}")
        self._bar.update(line["step"] + 1 - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def loss_text(loss: float | None) -> str:
    """Write a loss; in a file None stands for what is not a finite number, here that itself may."""
    return "not a number" if loss is None or not math.isfinite(loss) else f"{loss:.4f}"


def follow(path: Path, running: Callable[[], bool], report: Callable[[dict], None]) -> None:
    """Report the lines of a metrics file while a job writes it.

    Args:
        path: the file; it may not exist yet.
        running: whether the job still runs.
        report: called with every line, in order.
    """
    offset = 0
    while True:
        last = not running()
        if path.exists():
            with open(path, encoding="utf-8") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith("\n"):
                        break
                    offset += len(line.encode())
                    report(json.loads(line))
        if last:
            return
        time.sleep(_NAP)
