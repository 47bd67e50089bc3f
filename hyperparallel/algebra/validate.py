"""What a plan must pass before anything runs.

1. Exact multiset: every (stage, micro-batch) that the gates ask for, once, no other; ids in range.
2. Dependencies: on every rank nothing runs before what it needs.
3. Messages: each SEND has its RECV on the right rank, in the same order on both ends of a channel.
4. Progress under both rules, buffered and rendezvous (`progress.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import (
    COMPUTE,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    SENDS,
    Action,
    B,
    F,
    I,
    Program,
    Unit,
    W,
    micro_batch,
)
from hyperparallel.algebra.progress import check_progress
from hyperparallel.errors import PlanError


def validate_programs(programs: Sequence[Program], placement: Placement) -> None:
    """Check programs with their messages against a placement.

    Args:
        programs: actions per rank, messages included.
        placement: says what must run where.

    Raises:
        PlanError: the first thing that is wrong, with the grid and the cell marked, and one way out.
    """
    check_compute(programs, placement)
    channels = _check_hops(programs, placement)
    _check_order(programs, placement, messages=True)
    _check_channels(programs, placement, channels)
    check_progress(programs, placement)


def check_compute(programs: Sequence[Program], placement: Placement) -> None:
    """Check 1, for compute actions: the exact multiset, on the right ranks.

    Raises:
        PlanError: see `validate_programs`.
    """
    if len(programs) != placement.ranks:
        raise PlanError(f"{len(programs)} programs for {placement.ranks} ranks; give one row per rank")
    neighbours, ranks = placement.neighbours, placement.ranks
    receives = [gates.receives_gradient for gates in placement.gates]
    seen: set[Action] = set()
    for rank, program in enumerate(programs):
        for step, action in enumerate(program):
            stage, kind, mb = action
            if (
                action in seen
                or ((stage, mb) not in neighbours and action not in placement.ends)  # there: a piece's message
                or stage % ranks != rank
                or (kind in _EXCLUDES and (not receives[stage] or _conflicts(action, seen)))
            ):
                raise _wrong_cell(programs, placement, rank, step, seen)
            seen.add(action)
    for stage, mb in neighbours:
        missing = _missing(stage, mb, receives[stage], seen)
        if missing:
            rank = placement.rank_of(stage)
            raise refuse(programs, rank, len(programs[rank]), f"{missing} is missing", f"add {missing} to rank {rank}")


def check_order(compute: Sequence[Program], placement: Placement) -> None:
    """Check 2, within each rank, for programs without messages.

    Raises:
        PlanError: see `validate_programs`.
    """
    _check_order(compute, placement, messages=False)


_EXCLUDES = {B: (I, W), I: (B,), W: (B,)}
"""The two forms of a backward: a (stage, micro-batch) has one or the other."""


def _conflicts(action: Action, seen: set[Action]) -> bool:
    """True when the other form of this backward was seen."""
    stage, kind, mb = action
    # A tuple is equal to the Action of its fields and much cheaper to make; so throughout this file.
    return any((stage, other, mb) in seen for other in _EXCLUDES[kind])


def _wrong_cell(
    programs: Sequence[Program], placement: Placement, rank: int, step: int, seen: set[Action]
) -> PlanError:
    """Say what is wrong with a cell: ids, rank, owner, twice, a backward that the gates do not want, or both forms."""
    action = programs[rank][step]
    stage, kind, mb = action
    if stage >= placement.stages:
        last = placement.stages - 1
        what, way_out = f"stage {stage} of {action} does not exist; stages are 0..{last}", "correct the stage"
    elif micro_batch(mb) >= placement.micro_batches:
        last = placement.micro_batches - 1
        what = f"micro-batch {micro_batch(mb)} of {action} does not exist; micro-batches are 0..{last}"
        way_out = "correct the micro-batch"
    elif placement.rank_of(stage) != rank:
        what = f"{action} is on rank {rank}, but stage {stage} lives on rank {placement.rank_of(stage)}"
        way_out = "move it there"
    elif (stage, mb) not in placement.neighbours:
        what, way_out = _wrong_unit(action, placement)
    elif action in seen:
        what, way_out = f"{action} appears twice", "remove one of the two"
    elif not placement.gates[stage].receives_gradient:
        what = f"{action}: nothing at or before stage {stage} is trainable, so it has no backward"
        way_out = "remove it"
    else:
        what = f"{action}: micro-batch {mb} has both a whole backward B and a split one (I, W) on stage {stage}"
        way_out = "keep one of the two forms"
    return refuse(programs, rank, step, what, way_out)


def _wrong_unit(action: Action, placement: Placement) -> tuple[str, str]:
    """Say why a stage does not run a unit: another rank owns it, or it is in pieces where it should not be."""
    stage, _, mb = action
    region = placement.region_of(stage)
    units = range(placement.micro_batches) if placement.owners[region] is None else ()
    nodes = {(stage, mb) for mb in units} or set(placement.nodes(region, micro_batch(mb)))
    owner = next((placement.rank_of(other) for other, unit in nodes if unit == mb), None)
    if owner is None:
        named = " ".join(str(action._replace(mb=unit)) for unit in sorted(unit for _, unit in nodes)[:2])
        return f"{action}: stage {stage} does not run {mb}; it runs such as {named}", "correct the micro-batch or piece"
    what = f"{action}: {'piece' if '.' in str(mb) else 'micro-batch'} {mb} of this replicated region is owned by rank"
    return f"{what} {owner}", f"move it to rank {owner} or change the owner"


def _missing(stage: int, mb: Unit, backward: bool, seen: set[Action]) -> Action | None:
    """Return the first compute action of (stage, micro-batch) that is not in the programs."""
    if (stage, F, mb) not in seen:
        return Action(stage, F, mb)
    if backward and (stage, B, mb) not in seen:
        has_i, has_w = (stage, I, mb) in seen, (stage, W, mb) in seen
        if not (has_i or has_w):
            return Action(stage, B, mb)
        if not (has_i and has_w):
            return Action(stage, W if has_i else I, mb)
    return None


Channels = tuple[dict[tuple[int, int], list[Action]], dict[tuple[int, int], list[int]]]
"""By (sender, receiver): the RECV that each SEND asks for, in order, and the steps of the RECVs there are."""


def _check_hops(programs: Sequence[Program], placement: Placement) -> Channels:
    """Check 1, for messages: exactly those the placement asks for, both ends of each. Return them by channel."""
    expected, ranks = placement.ends, placement.ranks
    asked: dict[tuple[int, int], list[Action]] = defaultdict(list)
    given: dict[tuple[int, int], list[int]] = defaultdict(list)
    count = 0
    for rank, program in enumerate(programs):
        for step, action in enumerate(program):
            kind = action[1]
            if kind in COMPUTE:
                continue
            other = expected.get(action)
            if other is None:
                raise refuse(
                    programs,
                    rank,
                    step,
                    f"{action} is a message that nothing asks for",
                    "remove it and its other end",
                )
            count += 1
            if kind in SENDS:
                asked[rank, other[0] % ranks].append(other)
            else:
                given[other[0] % ranks, rank].append(step)
    if count < len(expected):  # none is there twice (check_compute)
        action = min(expected.keys() - {action for program in programs for action in program})
        rank, other = placement.rank_of(action.stage), expected[action]
        raise refuse(
            programs,
            rank,
            len(programs[rank]),
            f"{action} is missing; its other end is {other} on rank {placement.rank_of(other.stage)}",
            f"add {action} to rank {rank}",
        )
    return asked, given


def _check_order(programs: Sequence[Program], placement: Placement, messages: bool) -> None:
    """Check 2: everything that an action needs from its own rank stands before it."""
    for rank, program in enumerate(programs):
        done: set[Action] = set()
        for step, action in enumerate(program):
            for need, instead in _needs(action, placement, messages):
                if need not in done and instead not in done:
                    words = " or ".join(str(Action(*one)) for one in dict.fromkeys((need, instead)))
                    raise refuse(
                        programs,
                        rank,
                        step,
                        f"{action} runs before {words}, which it needs",
                        f"move {action} after it",
                    )
            done.add(action)


def _needs(action: Action, placement: Placement, messages: bool) -> list[tuple[tuple, tuple]]:
    """List what an action needs from its own rank, each as a pair of which one is enough."""
    stage, kind, mb = action
    if kind in (RECV_F, RECV_B):
        return []
    if kind == SEND_F:
        return [((stage, F, mb),) * 2]
    if kind == SEND_B:
        if (stage, mb) not in placement.neighbours:
            mb = micro_batch(mb)  # a piece's gradient comes out of its micro-batch's backward
        return [((stage, B, mb), (stage, I, mb))]
    if kind == W:
        return [((stage, I, mb),) * 2]
    before, after = placement.neighbours[stage, mb]
    if kind == F:
        local = [((left, F, unit),) * 2 for left, unit in before if (stage - left) % placement.ranks == 0]
        remote = [((stage, RECV_F, unit),) * 2 for left, unit in before if (stage - left) % placement.ranks]
        return local + remote if messages else local
    needs = [((stage, F, mb),) * 2]
    if after is not None:
        right, unit = after
        if (stage - right) % placement.ranks == 0:
            needs.append(((right, B, unit), (right, I, unit)))
        elif messages:
            needs.append(((stage, RECV_B, mb),) * 2)
    return needs


def _check_channels(programs: Sequence[Program], placement: Placement, channels: Channels) -> None:
    """Check 3: what a rank sends to another is received in the same order."""
    asked, given = channels
    for (source, target), receives in asked.items():
        for receive, step in zip(receives, given[source, target], strict=True):
            found = programs[target][step]
            if found != receive:
                raise refuse(
                    programs,
                    target,
                    step,
                    f"{found} comes where rank {source} sends {placement.ends[receive]}: "
                    f"the two ends of channel {source} -> {target} differ in order",
                    "receive in the order of sending",
                )
