"""`hyperparallel plot`: draw the loss and the step time of a run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hyperparallel.commands.arguments import UsageError, file_path
from hyperparallel.errors import HyperParallelError
from hyperparallel.views.curves import Line, read_metrics, render_curves, usual_step_time, values_of
from hyperparallel.views.files import write_files

METRICS = "metrics.jsonl"
SUMMARY = "draw loss, step time and bubbles of a run"
EXAMPLE = "hyperparallel plot runs/digits/2026-01-31_12-00-00"
EPILOG = f"""\
RUN is the run folder that hyperparallel train printed; its {METRICS} is read, also while the run goes on.
Where a resumed run wrote a step again, the last line counts.

example:
  {EXAMPLE} --out loss.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `plot`."""
    parser.add_argument("run", nargs="?", type=file_path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--out", type=file_path, metavar="FILE", help="figure to write, .png or .svg (default: RUN/metrics.png)"
    )


def run(args: argparse.Namespace) -> int:
    """Draw the run and say where.

    Args:
        args: of `add_arguments`.

    Raises:
        HyperParallelError: no such folder, no metrics in it, matplotlib is missing, or FILE cannot be written.

    Returns:
        0.
    """
    if args.run is None:
        raise UsageError(f"plot needs the folder of a run; for example\n  {EXAMPLE}")
    folder = Path(args.run)
    lines, notices = read_metrics(_metrics_of(folder))
    out = Path(args.out) if args.out else folder / "metrics.png"
    write_files({out: render_curves(lines, out, str(folder))})
    for notice in notices:
        print(f"hyperparallel: {notice}", file=sys.stderr)
    print(f"wrote {out}: " + ", ".join(_said(lines)))
    return 0


def _metrics_of(folder: Path) -> Path:
    if not os.path.isdir(folder):
        raise HyperParallelError(f"{folder} is not a folder; give the run folder that hyperparallel train printed")
    path = folder / METRICS
    if not os.path.isfile(path):
        inside = sorted(one.parent for one in folder.glob(f"*/{METRICS}"))
        hint = f"did you mean {inside[-1]}?" if inside else "give the run folder that hyperparallel train printed"
        raise HyperParallelError(f"{folder} has no {METRICS}; {hint}")
    return path


def _said(lines: Sequence[Line]) -> list[str]:
    """Say in a few words what the figure shows."""
    said = [f"{len(lines)} steps"]
    losses, time = values_of(lines, "loss")[1], usual_step_time(lines)
    if losses:
        said.append(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if time is not None:
        said.append(f"median step {1e3 * time:.0f} ms")
    return said
