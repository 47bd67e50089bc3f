"""Print how good the planner is on its grid: list schedule, plan, bound and gap of every case.

python scripts/plan_grid.py                        # the whole grid, about 12 minutes
python scripts/plan_grid.py --every 9 --limit 2    # each ninth case, 2 s each
python scripts/plan_grid.py --only P=4 --only te=12 --only trained
python scripts/plan_grid.py --large                # P = 16, M = 128, a minute
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from hyperparallel.planner.fill import fill
from hyperparallel.planner.grid import Case, grid


def main() -> None:
    """Run the cases asked for and print a line for each, then a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for one case (10)")
    parser.add_argument("--every", type=int, default=1, help="take each n-th case only (1)")
    parser.add_argument(
        "--only", action="append", default=[], help="a word of the line that a case must have: P=4, te=12"
    )
    parser.add_argument("--large", action="store_true", help="P = 16, M = 128 instead of the grid")
    options = parser.parse_args()
    asked = large() if options.large else grid()
    cases = [case for case in asked if set(options.only) <= set(words(case))][:: options.every]
    rows = []
    for case in cases:
        problem = case.problem()
        fast = fill(problem, engine="list")
        began = time.perf_counter()
        best = fill(problem, time_limit_s=options.limit)
        seconds = time.perf_counter() - began
        behind = fast.step_time / best.bound - 1.0
        rows.append((behind, best.gap, best.proven, seconds))
        times = f"list {fast.step_time:8.2f} {behind:6.1%}  found {best.step_time:8.2f}  bound {best.bound:8.2f}"
        state = "proven" if best.proven else f"{best.gap:6.2%}"
        print(f"{' '.join(words(case)):<48} {times}  {state:>7}  {seconds:5.1f} s  {best.engine}", flush=True)
    if rows:
        behind, gaps, proven, seconds = zip(*rows, strict=True)
        print(f"{len(rows)} cases, {sum(proven)} proven, {sum(gap <= 0.01 for gap in gaps)} within 1% of the bound")
        print(
            f"largest gap {max(gaps):.2%}, list at most {max(behind):.2%} above the bound, {max(seconds):.1f} s at most"
        )


def large() -> Iterator[Case]:
    """List problems that are too large for the solver."""
    for trained in (False, True):
        for pieces in (1, 4):
            for uneven in (False, True):
                yield Case(16, 128, 12.0, trained, pieces, uneven)


def words(case: Case) -> list[str]:
    """Say what a case is."""
    kinds = "trained" if case.trained else "frozen", "uneven" if case.uneven else "even"
    return [f"P={case.ranks}", f"M={case.micro_batches}", f"te={case.encode:g}", f"split={case.pieces}", *kinds]


if __name__ == "__main__":
    main()
