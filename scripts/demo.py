"""Train the digits model inline and transposed, check that the losses are equal, print times and timelines."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from hyperparallel.cli import main as hyperparallel

CONFIG = Path(__file__).parent.parent / "yaml" / "digits.yaml"
SCHEDULES = {
    "inline, even": "1f1b(vision+llm)",
    "inline, balanced": "1f1b(vision+llm, slabs=balanced)",
    "transposed": "transpose(vision) >> 1f1b(llm)",
}
TOLERANCE = 1e-5
"""Largest relative difference of a loss: schedules sum gradients in different orders, and steps amplify that."""


def main() -> int:
    """Run the demo; return 0 if all losses are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16, help="optimizer steps of each run")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        lines = {label: _train(line, steps, Path(folder)) for label, line in SCHEDULES.items()}
    print("\nThe timelines that the cost model predicts, times from the layers' FLOPs:\n", flush=True)
    for line in SCHEDULES.values():
        hyperparallel(["plan", str(CONFIG), f"schedule={line}"])
        print()
    worst = _worst_difference([[line["loss"] for line in run] for run in lines.values()])
    print(f"largest relative difference of a loss in {steps} steps: {worst:.1e} (allowed: {TOLERANCE:.0e})")
    times = {label: _step_time(run) for label, run in lines.items()}
    for label, time in times.items():
        print(f"{label:18} {time * 1e3:6.0f} ms a step   {time / times['transposed']:.2f} x transposed")
    print("Step times of separate runs; 'hyperparallel bench yaml/digits_heavy.yaml' compares step by step.")
    if worst > TOLERANCE:
        print("FAILED: the losses differ", file=sys.stderr)
        return 1
    print("OK: same losses")
    return 0


def _train(schedule: str, steps: int, folder: Path) -> list[dict]:
    """Train with one schedule; return its lines of metrics."""
    out = folder / schedule
    code = hyperparallel(
        [
            "train",
            str(CONFIG),
            f"schedule={schedule}",
            f"training.steps={steps}",
            "evaluation.samples=0",
            f"run.out={out}",
        ]
    )
    if code != 0:
        raise SystemExit(code)
    metrics = next(out.glob("*/metrics.jsonl"))
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]


def _step_time(run: list[dict]) -> float:
    """Median over the second half: the first steps compile."""
    return statistics.median(line["step_time"] for line in run[len(run) // 2 :])


def _worst_difference(losses: list[list[float]]) -> float:
    return max(
        abs(other - first) / abs(first) for run in losses[1:] for first, other in zip(losses[0], run, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
