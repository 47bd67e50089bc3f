"""Print how schedules do where images differ from micro-batch to micro-batch: static, reordered, planned every step.

Simulated: P = 4, M = 16, a rank's slab takes 4 forward and 8 backward, the encoder is frozen and takes 12 for the mean
micro-batch, so as much as the backbone of a rank. Three sources of images:

    uniform      every micro-batch has the same number
    digits       the digits data, 0 to 6 images a text, each number as likely; 4 texts a micro-batch
    long tail    the digits data with `mix: long_tail`, up to 24 images, 1 text a micro-batch: an eighth have all 24

    python scripts/uneven_table.py [--steps 12]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hyperparallel.algebra import parse
from hyperparallel.cost import Costs, PartCost, costs_from_parts, model_from_costs, simulate
from hyperparallel.cost.parts import mean_cost
from hyperparallel.cost.roofline import piece_shares
from hyperparallel.data import Digits, DigitsConfig
from hyperparallel.planner import Settings, plan_line
from hyperparallel.planner.reorder import reorder
from hyperparallel.planner.step import replan

P, M, FORWARD, BACKWARD, ENCODE = 4, 16, 4.0, 8.0, 12.0
FILL = "transpose(vision, owner=balanced, place=fill{}) >> 1f1b(llm)"
ROWS = (
    ("inline, even", "1f1b(vision+llm)", ""),
    ("inline, balanced by cost", "1f1b(vision+llm, slabs=balanced)", ""),
    ("warmup", "transpose(vision) >> 1f1b(llm)", ""),
    ("fill", FILL.format(""), ""),
    ("fill, reorder", FILL.format(""), "reorder"),
    ("fill, replan=step", FILL.format(""), "replan"),
    ("fill, reorder, replan=step", FILL.format(""), "reorder replan"),
    ("fill, split=4", FILL.format(", split=4"), ""),
    ("fill, split=4, reorder", FILL.format(", split=4"), "reorder"),
    ("fill, split=4, replan=step", FILL.format(", split=4"), "replan"),
)


def images(mix: str, steps: int) -> list[list[int]]:
    """Count the images of every micro-batch of some steps."""
    if mix == "uniform":
        return [[12] * M] * steps
    texts = 4 if mix == "digits" else 1
    config = DigitsConfig() if mix == "digits" else DigitsConfig(mix="long_tail", max_images=24)
    source = Digits(config, tokens_per_image=4)
    numbers = [source.describe(index).images for index in range(steps * M * texts)]
    counts = [sum(numbers[at : at + texts]) for at in range(0, len(numbers), texts)]
    return [counts[at : at + M] for at in range(0, len(counts), M)]


def row_of(line: str, how: str, steps: Sequence[Sequence[int]]) -> float:
    """Return the mean step time of a line over some steps, planned once for the mean micro-batch."""
    mean = sum(map(sum, steps)) / (len(steps) * M)
    llm, vision = PartCost(FORWARD, BACKWARD), PartCost(ENCODE, 0.0)
    model = model_from_costs(parse(line), {"vision": vision, "llm": llm}, P)
    plan, _ = plan_line(
        line, model, P, M, lambda plan: costs_from_parts(plan, {"vision": vision, "llm": llm}), Settings(work_limit=5.0)
    )

    def costs_of(counts: Sequence[int]) -> Costs:
        each = mean_cost([PartCost(ENCODE * count / mean, 0.0) for count in counts])
        costs = costs_from_parts(plan, {"vision": each, "llm": llm})
        split = plan.placement.split
        shares = [piece_shares(count, split) for count in counts] if split > 1 else ()
        return Costs(costs.compute, shares=shares)

    total = 0.0
    for counts in steps:
        if "reorder" in how:
            counts = [counts[mb] for mb in reorder(plan, costs_of(counts)).order]
        costs = costs_of(counts)
        total += simulate(replan(plan, costs) if "replan" in how else plan, costs).step_time
    return total / len(steps)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps to average over")
    count = parser.parse_args().steps
    mixes = ("uniform", "digits", "long tail")
    print(f"{'mean step time (text only 228)':34}" + "".join(f"{mix:>12}" for mix in mixes))
    for label, line, how in ROWS:
        print(f"{label:34}" + "".join(f"{row_of(line, how, images(mix, count)):12.1f}" for mix in mixes))


if __name__ == "__main__":
    main()
