"""Infer the placement of a hand-written table, which comes without its schedule line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hyperparallel.algebra.footprint import Gates
from hyperparallel.algebra.lower import Programs, lower
from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import COMPUTE, Action, F, Piece, Program, Unit, micro_batch
from hyperparallel.algebra.regions import Owner
from hyperparallel.algebra.skeletons.transpose import MOST_PIECES
from hyperparallel.algebra.validate import check_compute, check_order, validate_programs
from hyperparallel.errors import PlanError

PLACEMENTS = ("auto", "loop", "v")


def check_table(
    programs: Sequence[Program], ranks: int, micro_batches: int, placement: str = "auto"
) -> tuple[Placement, Programs]:
    """Validate a table of compute actions, or of whole programs with messages.

    Stage s lives on rank s mod P. A region (P consecutive stages) counts as Replicated when every micro-batch
    runs on exactly one of its stages and P > 1, as forward-only when it has no backward. Where no region is
    Sharded, a Replicated one must give work to every rank: a blank row is then work that somebody forgot.

    Args:
        programs: one row per rank.
        ranks: P.
        micro_batches: M.
        placement: `loop` when every Sharded region runs from rank 0 to P-1; `v` when every second one runs back,
            from P-1 to 0; `auto` takes the first of the two that is valid.

    Raises:
        PlanError: the first thing that is wrong, with the grid and the cell marked; of `loop` under `auto`.

    Returns:
        The placement and the programs with messages.
    """
    if placement not in PLACEMENTS:
        raise PlanError(f"placement={placement!r} is not possible; expected {', '.join(PLACEMENTS)}")
    if ranks < 1 or micro_batches < 1:
        raise PlanError(f"ranks={ranks}, micro_batches={micro_batches}; both must be at least 1")
    while len(programs) > ranks and not programs[-1]:
        programs = programs[:-1]  # a file may end with blank lines
    if len(programs) != ranks:
        raise PlanError(
            f"the table has {len(programs)} rows for {ranks} ranks; give one row per rank (--ranks {len(programs)}?)"
        )
    first = infer_placement(programs, ranks, micro_batches, folded=placement == "v")
    try:
        return first, _checked(programs, first)
    except PlanError:
        second = infer_placement(programs, ranks, micro_batches, folded=True)
        if placement != "auto" or second == first:
            raise
        try:
            return second, _checked(programs, second)
        except PlanError:
            pass  # tell what is wrong with the more common one
        raise


def _checked(programs: Sequence[Program], placement: Placement) -> Programs:
    """Validate the table against a placement and return it with its messages."""
    if any(action.kind not in COMPUTE for program in programs for action in program):
        validate_programs(programs, placement)
        return tuple(map(tuple, programs))
    check_compute(programs, placement)
    check_order(programs, placement)
    lowered = lower(programs, placement)
    validate_programs(lowered, placement)
    return lowered


def infer_placement(programs: Sequence[Program], ranks: int, micro_batches: int, folded: bool = False) -> Placement:
    """Read regions, owners and gates out of the compute actions.

    Args:
        programs: one row per rank.
        ranks: P.
        micro_batches: M.
        folded: whether every second Sharded region runs from rank P-1 to rank 0.

    Raises:
        PlanError: the table is empty, a row holds a stage of another rank or far out of range, or forwards lack.
    """
    actions = [action for program in programs for action in program if action.kind in COMPUTE]
    if not actions:
        raise PlanError("the table has no compute action; expected cells such as 0F0")
    regions = _regions(programs, ranks)
    _refuse_absent(programs, micro_batches)
    owners = _all_owners(actions, regions, ranks, micro_batches)
    sharded = [region for region in range(regions) if owners[region] is None]
    reflected = frozenset(sharded[1::2] if folded and ranks > 1 else ())
    without_gates = Placement(ranks, micro_batches, owners, (), (), reflected)
    return Placement(ranks, micro_batches, owners, _gates(actions, without_gates), (), reflected)


def _all_owners(
    actions: Sequence[Action], regions: int, ranks: int, micro_batches: int
) -> tuple[tuple[Owner, ...] | None, ...]:
    """Return the owners of every region, None for the Sharded ones."""
    forwards: dict[int, dict[Unit, list[int]]] = defaultdict(lambda: defaultdict(list))
    for stage, kind, mb in actions:
        if kind == F:
            forwards[stage // ranks][mb].append(stage % ranks)
    owners = [_owners(forwards[region], ranks, micro_batches) for region in range(regions)]
    if None not in owners:
        owners = [owner if len(set(owner)) == ranks else None for owner in owners]
    return tuple(owners)


def _gates(actions: Sequence[Action], placement: Placement) -> tuple[Gates, ...]:
    """Say that a slab has backwards from the first one on, in input-to-loss order, that the table gives one."""
    backward = {action.stage for action in actions if action.kind != F}
    gates: dict[int, Gates] = {}
    before = False
    for region, owner in enumerate(placement.owners):
        stages = placement.region_stages(region)
        slabs = [[stage] for stage in stages] if owner is None else [list(stages)]
        for slab in slabs:
            receives = before or not backward.isdisjoint(slab)
            gates |= dict.fromkeys(slab, Gates(before, receives, receives))
            before = receives
    return tuple(gates[stage] for stage in range(placement.stages))


def _regions(programs: Sequence[Program], ranks: int) -> int:
    """Count regions; a cell with a stage far out of range is refused before it makes thousands of them."""
    cells = [(action, rank, step) for rank, program in enumerate(programs) for step, action in enumerate(program)]
    stages = {action.stage for action, _, _ in cells}
    for action, rank, step in cells:
        if action.stage % ranks != rank:
            raise refuse(
                programs,
                rank,
                step,
                f"{action} is on rank {rank}, but stage {action.stage} is rank {action.stage % ranks}'s (stage mod P)",
                "move it there, or check --ranks",
            )
        if action.stage // ranks > len(stages):
            raise refuse(
                programs,
                rank,
                step,
                f"stage {action.stage} is out of range: the table has only {len(stages)} different stages",
                "number stages from 0 without holes",
            )
    return max(stages) // ranks + 1


def _refuse_absent(programs: Sequence[Program], micro_batches: int) -> None:
    """Refuse a table with too few forwards for M micro-batches, before a mistyped M makes billions of paths."""
    forwards = [micro_batch(action.mb) for program in programs for action in program if action.kind == F]
    if micro_batches > len(forwards):
        absent = next(mb for mb in range(micro_batches) if mb not in forwards)
        raise refuse(
            programs,
            0,
            len(programs[0]),
            f"micro-batch {absent} has no forward on any rank; M is {micro_batches}",
            f"add micro-batch {absent} to the table, or correct the number of micro-batches",
        )


def _owners(ranks_by_unit: dict[Unit, list[int]], ranks: int, micro_batches: int) -> tuple[Owner, ...] | None:
    """Return the owner of every micro-batch or piece if each runs on one rank only, else None."""
    pieces = [unit.index for unit in ranks_by_unit if isinstance(unit, Piece)]
    if pieces:  # what is missing, out of range or there twice is for `check_compute` to say
        split = range(min(max(pieces), MOST_PIECES) + 1)
        return tuple(
            tuple(ranks_by_unit.get(Piece(mb, index), [0])[0] for index in split) for mb in range(micro_batches)
        )
    if ranks == 1 or any(len(set(owners)) != 1 for owners in ranks_by_unit.values()):
        return None
    if set(ranks_by_unit) != set(range(micro_batches)):
        return None
    return tuple(ranks_by_unit[mb][0] for mb in range(micro_batches))
