"""Place a table on a grid where every action takes one step and messages take none: when does a rank idle?"""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra.program import Action, B, F, I, Program, W
from hyperparallel.errors import PlanError


def unit_grid(table: Sequence[Program]) -> list[list[Action | str]]:
    """Give every action the first step at which it can run.

    Args:
        table: compute actions per rank, stages numbered in layer order.

    Raises:
        PlanError: the ranks wait for each other.

    Returns:
        Per rank, an action or `""` (idle) for each step up to its last action.

    Example:
        >>> [[str(cell) for cell in row] for row in unit_grid([[Action(0, "F", 0)], [Action(1, "F", 0)]])]
        [['0F0'], ['', '1F0']]
    """
    present = {action for program in table for action in program}
    rows: list[list[Action | str]] = [[] for _ in table]
    position, done = [0] * len(table), set()
    while True:
        front = {
            rank: program[at]
            for rank, (program, at) in enumerate(zip(table, position, strict=True))
            if at < len(program)
        }
        now = {rank: action for rank, action in front.items() if _ready(action, present, done)}
        if not now:
            break
        for rank in front:
            rows[rank].append(now.get(rank, ""))
            position[rank] += rank in now
        done.update(now.values())
    if front:
        raise PlanError(
            f"the ranks wait for each other at {', '.join(map(str, front.values()))}, so there is no grid; "
            "check the table first"
        )
    return rows


def _ready(action: Action, present: set[Action], done: set[Action]) -> bool:
    """Tell whether all that an action needs, as far as the table has it, is done."""
    stage, kind, mb = action
    if kind == F:
        needs = [(Action(stage - 1, F, mb),)]
    elif kind == W:
        needs = [(Action(stage, I, mb),)]
    else:
        needs = [(Action(stage, F, mb),), (Action(stage + 1, B, mb), Action(stage + 1, I, mb))]
    return all(present.isdisjoint(options) or not done.isdisjoint(options) for options in needs)
