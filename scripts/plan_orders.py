"""Print how good the planner is on other orders of the backbone, with messages: P = 4, M = 8, a message takes 0.5.

python scripts/plan_orders.py                                  # 48 cases, about two minutes
python scripts/plan_orders.py --limit 150 --only gpipe --only te=12
"""

from __future__ import annotations

import argparse
import time
from itertools import product

from hyperparallel.algebra import Plan, parse
from hyperparallel.cost import Costs, PartCost, costs_from_parts, model_from_costs
from hyperparallel.planner import Settings, plan_line

P, M, MESSAGE = 4, 8, 0.5
BACKBONES = ("1f1b(llm)*2", "gpipe(llm)", "zb(llm)", "wave(llm)")


def main() -> None:
    """Run the cases asked for, a line for each, then a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for one case (10)")
    parser.add_argument(
        "--only", action="append", default=[], help="a part of the line that a case must have: zb, te=12"
    )
    options = parser.parse_args()
    gaps, behind = [], []
    for llm, encode, trained, split in product(BACKBONES, (4, 12, 36), (False, True), (1, 4)):
        name = f"{llm:12} te={encode:<3} split={split} {'trained' if trained else 'frozen':8}"
        if not all(word in name for word in options.only):
            continue
        parts = {"vision": PartCost(encode, 2 * encode * trained), "llm": PartCost(4, 8)}
        line = f"transpose(vision, owner=balanced, place=fill, split={split}) >> {llm}"
        model, began = model_from_costs(parse(line), parts, P), time.perf_counter()

        def costs_of(plan: Plan, parts: dict[str, PartCost] = parts) -> Costs:
            return costs_from_parts(plan, parts, MESSAGE)

        fast = plan_line(line, model, P, M, costs_of, Settings(engine="list")).certificate
        best = plan_line(line, model, P, M, costs_of, Settings(time_limit_s=options.limit)).certificate
        gaps.append(best.gap)
        behind.append(fast.step_time / best.bound - 1)
        state = "proven" if best.proven else f"{best.gap:6.2%}"
        print(
            f"{name} list {fast.step_time:6.1f} {behind[-1]:6.1%}  found {best.step_time:6.1f}  "
            f"bound {best.bound:6.1f}  {state:>7}  {time.perf_counter() - began:5.1f} s",
            flush=True,
        )
    print(f"{len(gaps)} cases, {sum(gap <= 0.01 for gap in gaps)} within 1% of the bound, largest gap {max(gaps):.2%}")
    print(f"list at most {max(behind):.2%} above the bound")


if __name__ == "__main__":
    main()
