"""Time the algebra and the cost model on tables of growing size: seconds of one core's CPU, best of three."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperparallel.algebra import derive, parse, validate
from hyperparallel.cost import costs_from_parts, model_from_costs, parse_part_costs, simulate

SIZES = [(4, 1, 8), (16, 2, 128), (16, 2, 512), (32, 2, 512), (64, 2, 1024), (256, 1, 16)]
"""P, v, M."""

STEPS = ("derive", "lower", "validate", "simulate")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=10**9, metavar="N", help="leave out tables of more actions")
    parser.add_argument("--schedule", default="1f1b(llm)", help="a line without count (default 1f1b(llm)); *v is added")
    args = parser.parse_args()
    print(f"{args.schedule}*v, {processor()}, Python {platform.python_version()}\n")
    print("  P  v     M  actions " + "".join(f"{name:>10}" for name in (*STEPS, "together")) + "  us/action")
    for ranks, count, micro_batches in SIZES:
        # A message per hop and direction, two actions each, and F and B on every stage.
        if 2 * micro_batches * (3 * ranks * count - 2) > args.largest:
            continue
        runs = [measure(f"{args.schedule}*{count}", ranks, micro_batches) for _ in range(3)]
        actions, best = runs[0][0], [min(times) for times in zip(*(times for _, times in runs), strict=True)]
        seconds = "".join(f"{value:10.3f}" for value in (*best, sum(best)))
        print(
            f"{ranks:3} {count:2} {micro_batches:5} {actions:8} {seconds} {sum(best) / actions * 1e6:10.1f}", flush=True
        )


def measure(line: str, ranks: int, micro_batches: int) -> tuple[int, list[float]]:
    """Take a line from its text to its timeline and memory once.

    Args:
        line: a schedule line over the parts vision and llm, or llm alone.
        ranks: P.
        micro_batches: M.

    Returns:
        Actions of all programs, messages included, and CPU seconds of every one of `STEPS`.
    """
    parts = parse_part_costs("vision=12/24,llm=4/8")
    model = model_from_costs(parse(line), parts, ranks)
    times: list[float] = []
    plan = _timed(times, lambda: derive(line, model, ranks, micro_batches))
    programs = _timed(times, lambda: plan.programs)
    _timed(times, lambda: validate(plan))
    _timed(times, lambda: simulate(plan, costs_from_parts(plan, parts)))
    return sum(map(len, programs)), times


def _timed(times: list[float], call: Callable[[], Any]) -> Any:
    start = time.process_time()
    result = call()
    times.append(time.process_time() - start)
    return result


def processor() -> str:
    """Name the processor of this machine."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
