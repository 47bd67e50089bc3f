"""Print the tables of docs/emulation.md: schedules on emulated devices, measured beside predicted.

One job per number of ranks runs everything, in about eight minutes:

    python scripts/emulate_table.py

A cell holds the measured step time in ms, measured / predicted in brackets, and the time relative to the encoder inline
with slabs balanced by cost.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from hyperparallel.commands.emulate import measure
from hyperparallel.cost import PartCost
from hyperparallel.cost.parts import mean_cost
from hyperparallel.training.emulated_lines import Line, Setting, default_lines, plan_for

UNIT = 1e-3
LLM, ENCODE = PartCost(20, 40), 80.0  # milliseconds of one slab, and of the mean frozen encode
HEADS = ("inline, even", "inline, balanced", "encoder alone", "warmup", "fill", "fill, split 4")
BASELINE = HEADS.index("inline, balanced")
MIXES = ("uniform", "long-tailed")
TEXT_ONLY, SPREAD = 0.2, 1.0  # share of micro-batches without images, and sigma of the log of the others' encodes


def encodes(mix: str, micro_batches: int, seed: int = 0) -> PartCost:
    """Return the costs of a frozen encoder, whose mean over the micro-batches is `ENCODE`."""
    if mix == "uniform":
        return PartCost(ENCODE, 0)
    draw = random.Random(seed)
    times = [0.0 if draw.random() < TEXT_ONLY else draw.lognormvariate(0, SPREAD) for _ in range(micro_batches)]
    scale = ENCODE * micro_batches / sum(times)
    return mean_cost([PartCost(scale * time, 0) for time in times])


def plan(ranks: int, micro_batches: int, mix: str) -> list[Line]:
    """Plan the default lines for one row of a table."""
    setting = Setting({"vision": encodes(mix, micro_batches), "llm": LLM}, ranks, micro_batches, UNIT, 4096)
    return [plan_for(text, setting) for text in default_lines(setting.parts, ranks)]


def cells(lines: Sequence[Line], result: dict[str, Any], first: int) -> list[str]:
    """Write one row's cells.

    Args:
        lines: of the row.
        result: of the job.
        first: index of the row's first line in the job.
    """
    rows = result["rows"][first : first + len(lines)]
    times = [median(row["measured"]) for row in rows]
    predicted = [line.predicted(result["alpha"], result["beta"]) for line in lines]
    return [
        f"{1e3 * time:.0f} ({time / wanted:.3f}) {time / times[BASELINE]:.2f}"
        + ("" if row["in_order"] else " NOT IN THE ORDER OF THE PLAN")
        for row, time, wanted in zip(rows, times, predicted, strict=True)
    ]


def main() -> None:
    """Run all jobs and print the tables; what is being done goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--steps", type=int, default=2, help="measured steps of every line (default 2)")
    args = parser.parse_args()
    tables: dict[str, list[list[str]]] = {mix: [] for mix in MIXES}
    messages = []
    for ranks in args.ranks:
        cases = [(mix, count, plan(ranks, count, mix)) for mix in MIXES for count in args.micro_batches]
        result = measure(
            [line for *_, lines in cases for line in lines],
            args.steps,
            "runs/emulate",
            lambda doing: print(doing, file=sys.stderr),
        )
        messages.append(f"P = {ranks}: {result['alpha'] * 1e3:.2f} ms")
        first = 0
        for mix, count, lines in cases:
            tables[mix].append([str(ranks), str(count), *cells(lines, result, first)])
            first += len(lines)
    print(f"{result['machine']}; a message of 4 KiB takes {', '.join(messages)}")
    for mix, rows in tables.items():
        print(f"\n{mix.capitalize()} images:\n")
        for row in (("P", "M", *HEADS), ["---:"] * (2 + len(HEADS)), *rows):
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
