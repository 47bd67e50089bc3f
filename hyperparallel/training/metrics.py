"""What is written about a run: a line per step, and a summary."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np


class MetricsFile:
    """Write JSON lines; without a path (ranks other than 0) do nothing."""

    def __init__(self, path: Path | None):
        self._file = path.open("w", encoding="utf-8") if path else None

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        """Write one line at once, so whoever follows the file sees whole lines only; NaN and infinity become null."""
        if self._file:
            self._file.write(json.dumps(_numbers(line), allow_nan=False) + "\n")
            self._file.flush()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file beside its place and rename it, so it is never seen half-written."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(_numbers(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def peak_memory_mb() -> float:
    """Return the largest memory of this rank so far, in 1e6 bytes: of the device, or of the process on CPU."""
    if ms.get_context("device_target") != "CPU":
        return ms.runtime.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # it counts in kilobytes on Linux


def summarise(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum up a run.

    Args:
        lines: of its steps, at least one.

    Returns:
        First and last loss; medians of times, speeds and bubbles without the first steps, which compile; and what had
        been counted at the end.
    """
    settled = lines[len(lines) // 4 :]
    median = {
        key: float(np.median([line[key] for line in settled]))
        for key in ("step_time", "tokens_per_s", "images_per_s", "data_wait")
    }
    mean = {
        key: float(np.mean([line[key] for line in settled])) for key in ("reorder_gain", "replan_ms") if key in lines[0]
    }
    summary = {
        "steps": len(lines),
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        **median,
        **mean,
        "memory_peak_mb": lines[-1]["memory_peak_mb"],
        "steps_left_out": sum(not line["updated"] for line in lines),
        "skipped": lines[-1]["skipped"],
    }
    if "bubble" in lines[0]:
        shares = np.array([line["bubble"] for line in settled])
        summary["bubble"] = np.median(shares, axis=0).round(4).tolist()
    return summary


def _numbers(value: Any) -> Any:
    """Replace what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
