"""Exchange tables with torch.distributed.pipelining: its compute-only CSV, read and written.

One row per rank, one action per cell (`2F0`, `2B0`, `2I0`, `2W0`), blank cells for idle, no header. B is the whole
backward, I + W. torch numbers stages in layer order. Here a stage is r + c*P on rank r, for chunk c = 0, 1, ...:

    placement   rank r holds, in torch's numbers     same here?
    loop        r, P+r, 2P+r, ...                    yes
    v           r, 2P-1-r, 2P+r, 4P-1-r, ...         odd chunks are reflected: `renumber`

A fused cell `(0F7;7B3)OVERLAP_F_B` is read as its forward, then its backward, one after the other: what the overlap
gains is lost. The forward can always go first: it waits for forwards only, and both were ready when the cell began.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hyperparallel.algebra.derive import Plan
from hyperparallel.algebra.infer import check_table
from hyperparallel.algebra.lower import Programs
from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import Action, B, F, I, Program, parse_action
from hyperparallel.algebra.text import read_rows, to_csv
from hyperparallel.algebra.unit_grid import unit_grid
from hyperparallel.errors import PlanError, ProgramSyntaxError

LOOP, V = "loop", "v"
PLACEMENTS = (LOOP, V)
_WORDS = {LOOP: "loop placement", V: "V placement"}

_FUSED = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_HEADING = re.compile(r"(?:rank|step|time|tick|clock)[ _]?\d*", re.ASCII | re.IGNORECASE)
_SHOWN = re.compile(r"(?<!\w)(\d{1,9})((?:SEND_F|RECV_F|SEND_B|RECV_B|[FBIW])\d{1,9}(?!\w)<?)( *)", re.ASCII)
_STAGE = re.compile(r"(?<=\bstage )\d{1,9}\b", re.ASCII)


def parse_table(text: str, name: str = "<text>") -> Programs:
    """Read the cells of a table, stages numbered as in the file; messages such as `0SEND_F0` are read too.

    A first row that only holds headings (`rank`, `step 0`, `time`, ... and numbers) is skipped.

    Args:
        text: the file's content.
        name: file name for errors.

    Raises:
        ProgramSyntaxError: names file, row and column (from 1) of the first cell that is not an action.

    Returns:
        One program per row, fused cells taken apart, blank cells left out.

    Example:
        >>> [[str(action) for action in row] for row in parse_table("0F0,,(0F1;0B0)OVERLAP_F_B,0B1\\n")]
        [['0F0', '0F1', '0B0', '0B1']]
    """
    programs = []
    for row, cells in enumerate(read_rows(text, name), start=1):
        if row == 1 and _is_header(cells):
            continue
        program: list[Action] = []
        for column, cell in enumerate(cells, start=1):
            try:
                program += _actions(cell.strip())
            except ProgramSyntaxError as error:
                raise ProgramSyntaxError(f"{name}, row {row}, column {column}: {error}") from None
        programs.append(tuple(program))
    return tuple(programs)


def from_torch_csv(text: str, placement: str | None = None, name: str = "<text>") -> tuple[Programs, str]:
    """Read a table of torch.distributed.pipelining; blank lines at its end are no ranks.

    Args:
        text: the file's content.
        placement: `loop` or `v`; None infers it from the rows.
        name: file name for errors.

    Raises:
        ProgramSyntaxError: a cell is not an action.
        PlanError: a cell is on a rank that does not hold its stage.

    Returns:
        Programs in the numbers of this package, and the placement.

    Example:
        >>> programs, placement = from_torch_csv("0F0,3F0,3B0,0B0\\n1F0,2F0,2B0,1B0\\n")
        >>> placement, " ".join(map(str, programs[1]))
        ('v', '1F0 3F0 3B0 1B0')
    """
    programs = parse_table(text, name)
    while programs and not programs[-1]:
        programs = programs[:-1]
    found = find_placement(programs, placement)
    return renumber(programs, found), found


def to_torch_csv(plan: Plan | Sequence[Program], placement: str | None = None, grid: bool = False) -> str:
    """Write a plan as a table of torch.distributed.pipelining, without a header.

    Args:
        plan: a plan, or programs in the numbers of this package; messages are left out, torch adds its own.
        placement: `loop` or `v`; None takes the plan's own, and `loop` for programs.
        grid: leave cells blank where a rank idles when every action takes one step.

    Raises:
        PlanError: torch cannot place it so, a stage is not on its rank, or the ranks wait for each other.

    Returns:
        The text of the CSV file.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("wave(llm)", ModelSpec.of({"llm": 4}), ranks=2, micro_batches=1)
        >>> print(to_torch_csv(plan, grid=True), end="")
        0F0,,,3F0,3B0,,,0B0
        ,1F0,2F0,,,2B0,1B0
    """
    _known(placement)
    if isinstance(plan, Plan):
        placement, plan = _placement_of(plan, placement), plan.compute
    placement = placement or LOOP
    compute = [[action for action in program if action.is_compute] for program in plan]
    find_placement(compute, LOOP)
    table = renumber(compute, placement)
    return to_csv(unit_grid(table) if grid else table)


def renumber(programs: Sequence[Program], placement: str) -> Programs:
    """Change stages from layer order to the numbers of this package, or back: it is the same map both ways.

    Args:
        programs: one per rank.
        placement: `loop` changes nothing; `v` reflects the stages of every odd chunk.

    Raises:
        PlanError: the placement is neither.

    Example:
        >>> renumber([[Action(7, "F", 0)], [], [], [Action(4, "F", 0)]], "v")[0]
        (Action(stage=4, kind='F', mb=0),)
    """
    _known(placement)
    ranks = len(programs)
    return tuple(
        tuple(action._replace(stage=_other(action.stage, ranks, placement)) for action in program)
        for program in programs
    )


def find_placement(programs: Sequence[Program], placement: str | None = None) -> str:
    """Tell the placement of a table in layer order from the stages that its rows hold.

    Args:
        programs: one per rank.
        placement: what it must be; None takes the one that fits more cells, `loop` when both fit.

    Raises:
        PlanError: a cell is on a rank that does not hold its stage.

    Example:
        >>> find_placement([[Action(0, "F", 0), Action(3, "F", 0)], [Action(1, "F", 0), Action(2, "F", 0)]])
        'v'
    """
    _known(placement)
    misplaced = {name: _misplaced(programs, name) for name in PLACEMENTS}
    found = placement or min(PLACEMENTS, key=lambda name: len(misplaced[name]))
    if not misplaced[found]:
        return found
    rank, step = misplaced[found][0]
    action = programs[rank][step]
    home = _home(action.stage, len(programs), found)
    raise refuse(
        programs,
        rank,
        step,
        f"{action} is on rank {rank}, but with {_WORDS[found]} stage {action.stage} is rank {home}'s; "
        f"cells that do not fit: {len(misplaced[LOOP])} with {_WORDS[LOOP]}, {len(misplaced[V])} with {_WORDS[V]}",
        "move it there, or check the number of ranks and the placement",
    )


def check_exchanged(
    programs: Sequence[Program], ranks: int, micro_batches: int, placement: str | None = None
) -> tuple[Placement, Programs]:
    """Validate a table that is numbered in layer order or as in this package; errors show the table's own numbers.

    Rows that fit loop placement can also be a V in the numbers of this package (stage P + r on rank r). They are
    taken as loop if that is valid, else as a V (`check_table`).

    Args:
        programs: one per rank, messages included or not.
        ranks: P.
        micro_batches: M.
        placement: `loop` or `v`, in either numbering; None infers it.

    Raises:
        PlanError: the first thing that is wrong, with the grid and the cell marked.

    Returns:
        The placement and the programs with messages, in the numbers of this package.
    """
    while len(programs) > ranks and not programs[-1]:
        programs = programs[:-1]
    if len(programs) != ranks or not any(programs):
        return check_table(programs, ranks, micro_batches)  # says what is wrong with its size
    if (placement == V and not _misplaced(programs, LOOP)) or find_placement(programs, placement) == LOOP:
        return check_table(programs, ranks, micro_batches, placement or "auto")
    try:
        return check_table(renumber(programs, V), ranks, micro_batches, V)
    except PlanError as error:
        raise PlanError(_in_layer_order(str(error), ranks)) from None


def _known(placement: str | None) -> None:
    if placement not in (None, *PLACEMENTS):
        raise PlanError(f"placement={placement!r} is not possible; expected {' or '.join(PLACEMENTS)}")


def _home(stage: int, ranks: int, placement: str) -> int:
    """Rank of a stage in layer order."""
    chunk, place = divmod(stage, ranks)
    return ranks - 1 - place if placement == V and chunk % 2 else place


def _other(stage: int, ranks: int, placement: str) -> int:
    """The stage's number in the other of the two numberings."""
    return stage - stage % ranks + _home(stage, ranks, placement)


def _misplaced(programs: Sequence[Program], placement: str) -> list[tuple[int, int]]:
    """List (rank, step) of the cells in layer order that are on a rank which does not hold their stage."""
    return [
        (rank, step)
        for rank, program in enumerate(programs)
        for step, action in enumerate(program)
        if _home(action.stage, len(programs), placement) != rank
    ]


def _in_layer_order(message: str, ranks: int) -> str:
    """Put the numbers of the file into a message; what follows a cell in a grid keeps its column."""

    def shown(match: re.Match[str]) -> str:
        text = f"{_other(int(match[1]), ranks, V)}{match[2]}"
        return text.ljust(len(match[0])) if len(match[3]) > 1 else text + match[3]

    return _STAGE.sub(lambda match: str(_other(int(match[0]), ranks, V)), _SHOWN.sub(shown, message))


def _is_header(cells: Sequence[str]) -> bool:
    words = [cell.strip() for cell in cells if cell.strip()]
    headings = [word for word in words if _HEADING.fullmatch(word)]
    return bool(headings) and all(_HEADING.fullmatch(word) or word.isdecimal() for word in words)


def _actions(cell: str) -> list[Action]:
    """Parse one cell: blank, an action, or a fused pair."""
    fused = _FUSED.fullmatch(cell)
    if fused is None:
        return [parse_action(cell)] if cell else []
    pair = sorted((parse_action(word.strip()) for word in fused.groups()), key=lambda action: action.kind != F)
    if pair[0].kind != F or pair[1].kind not in (B, I):
        raise ProgramSyntaxError(f"{cell!r} does not fuse a forward and a backward, such as (0F7;7B3)OVERLAP_F_B")
    return pair


def _placement_of(plan: Plan, wanted: str | None) -> str:
    """Name the placement of a plan in torch's words."""
    owners, reflected = plan.placement.owners, plan.placement.reflected
    if plan.ranks > 1 and any(owner is not None for owner in owners):
        raise PlanError(
            f"{plan.schedule} runs a region on every rank (Replicated), and torch.distributed.pipelining has each "
            "stage on one rank; put those parts into a Sharded region such as 1f1b(vision+llm)"
        )
    folds = {LOOP: frozenset(), V: frozenset(range(1, len(owners), 2))}
    fitting = [name for name in PLACEMENTS if plan.ranks == 1 or reflected == folds[name]]
    if not fitting or wanted not in (None, *fitting):
        back = ", ".join(str(region + 1) for region in sorted(reflected)) or "none"
        raise PlanError(
            f"regions of {plan.schedule} that run back: {back} (of {len(owners)}); "
            f"{_WORDS[LOOP]} has none, {_WORDS[V]} every second one"
        )
    return wanted or fitting[0]
