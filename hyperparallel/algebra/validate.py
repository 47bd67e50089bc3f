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
    RECEIVES,
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
    W,
)
from hyperparallel.algebra.progress import check_progress, counterpart
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
    _check_hops(programs, placement)
    _check_order(programs, placement, messages=True)
    _check_channels(programs, placement)
    check_progress(programs, placement)


def check_compute(programs: Sequence[Program], placement: Placement) -> None:
    """Check 1, for compute actions: the exact multiset, on the right ranks.

    Raises:
        PlanError: see `validate_programs`.
    """
    if len(programs) != placement.ranks:
        raise PlanError(f"{len(programs)} programs for {placement.ranks} ranks; give one row per rank")
    seen: set[Action] = set()
    for rank, program in enumerate(programs):
        for step, action in enumerate(program):
            _check_cell(programs, placement, rank, step, action, seen)
            seen.add(action)
    for (stage, mb), _ in placement.neighbours.items():
        missing = _missing(stage, mb, placement, seen)
        if missing:
            rank = placement.rank_of(stage)
            raise refuse(programs, rank, len(programs[rank]), f"{missing} is missing", f"add {missing} to rank {rank}")


def check_order(compute: Sequence[Program], placement: Placement) -> None:
    """Check 2, within each rank, for programs without messages.

    Raises:
        PlanError: see `validate_programs`.
    """
    _check_order(compute, placement, messages=False)


def _check_cell(
    programs: Sequence[Program], placement: Placement, rank: int, step: int, action: Action, seen: set[Action]
) -> None:
    """Ids in range, right rank, a stage that runs this micro-batch, not twice, a backward that the gates want."""
    stage, kind, mb = action

    def wrong(message: str, way_out: str) -> PlanError:
        return refuse(programs, rank, step, message, way_out)

    if stage >= placement.stages:
        raise wrong(
            f"stage {stage} of {action} does not exist; stages are 0..{placement.stages - 1}",
            "correct the stage",
        )
    if mb >= placement.micro_batches:
        raise wrong(
            f"micro-batch {mb} of {action} does not exist; micro-batches are 0..{placement.micro_batches - 1}",
            "correct the micro-batch",
        )
    if placement.rank_of(stage) != rank:
        raise wrong(
            f"{action} is on rank {rank}, but stage {stage} lives on rank {placement.rank_of(stage)}",
            "move it there",
        )
    if (stage, mb) not in placement.neighbours:
        owner = placement.owners[placement.region_of(stage)][mb]
        raise wrong(
            f"{action}: micro-batch {mb} of this replicated region is owned by rank {owner}",
            f"move it to rank {owner} or change the owner",
        )
    if action in seen:
        raise wrong(f"{action} appears twice", "remove one of the two")
    if kind in (B, I, W):
        if not placement.gates[stage].receives_gradient:
            raise wrong(
                f"{action}: nothing at or before stage {stage} is trainable, so it has no backward",
                "remove it",
            )
        other = {B: (I, W), I: (B,), W: (B,)}[kind]
        if any(Action(stage, kind_, mb) in seen for kind_ in other):
            raise wrong(
                f"{action}: micro-batch {mb} has both a whole backward B and a split one (I, W) on stage {stage}",
                "keep one of the two forms",
            )


def _missing(stage: int, mb: int, placement: Placement, seen: set[Action]) -> Action | None:
    """Return the first compute action of (stage, micro-batch) that is not in the programs."""
    if Action(stage, F, mb) not in seen:
        return Action(stage, F, mb)
    if placement.gates[stage].receives_gradient and Action(stage, B, mb) not in seen:
        has_i, has_w = Action(stage, I, mb) in seen, Action(stage, W, mb) in seen
        if not (has_i or has_w):
            return Action(stage, B, mb)
        if not (has_i and has_w):
            return Action(stage, W if has_i else I, mb)
    return None


def hops(placement: Placement) -> list[Action]:
    """List the SEND of every message that a placement asks for."""
    sends = []
    for mb, path in enumerate(placement.paths):
        for left, right in zip(path, path[1:], strict=False):
            if placement.rank_of(left) != placement.rank_of(right):
                sends.append(Action(left, SEND_F, mb))
                if placement.gates[right].sends_gradient:
                    sends.append(Action(right, SEND_B, mb))
    return sends


def _check_hops(programs: Sequence[Program], placement: Placement) -> None:
    """Check 1, for messages: exactly those the placement asks for, both ends of each."""
    expected: set[Action] = set()
    for send in hops(placement):
        expected |= {send, counterpart(send, placement)}
    present = {action for program in programs for action in program if action.kind not in COMPUTE}
    for rank, program in enumerate(programs):
        for step, action in enumerate(program):
            if action.kind not in COMPUTE and action not in expected:
                raise refuse(
                    programs,
                    rank,
                    step,
                    f"{action} is a message that nothing asks for",
                    "remove it and its other end",
                )
    for action in sorted(expected - present):
        rank = placement.rank_of(action.stage)
        other = counterpart(action, placement)
        raise refuse(
            programs,
            rank,
            len(programs[rank]),
            f"{action} is missing; its other end is {other} on rank {placement.rank_of(other.stage)}",
            f"add {action} to rank {rank}",
        )


def _check_order(programs: Sequence[Program], placement: Placement, messages: bool) -> None:
    """Check 2: everything that an action needs from its own rank stands before it."""
    ranks = placement.ranks
    for rank, program in enumerate(programs):
        done: set[Action] = set()
        for step, action in enumerate(program):
            stage, kind, mb = action
            left, right = placement.neighbours[stage, mb]
            needs: list[tuple[Action, ...]] = []
            if kind == F and left is not None:
                if (stage - left) % ranks == 0:
                    needs.append((Action(left, F, mb),))
                elif messages:
                    needs.append((Action(stage, RECV_F, mb),))
            elif kind in (B, I):
                needs.append((Action(stage, F, mb),))
                if right is not None:
                    if (right - stage) % ranks == 0:
                        needs.append((Action(right, B, mb), Action(right, I, mb)))
                    elif messages:
                        needs.append((Action(stage, RECV_B, mb),))
            elif kind == W:
                needs.append((Action(stage, I, mb),))
            elif kind == SEND_F:
                needs.append((Action(stage, F, mb),))
            elif kind == SEND_B:
                needs.append((Action(stage, B, mb), Action(stage, I, mb)))
            for alternatives in needs:
                if not any(need in done for need in alternatives):
                    raise refuse(
                        programs,
                        rank,
                        step,
                        f"{action} runs before {' or '.join(map(str, alternatives))}, which it needs",
                        f"move {action} after it",
                    )
            done.add(action)


def _check_channels(programs: Sequence[Program], placement: Placement) -> None:
    """Check 3: what a rank sends to another is received in the same order."""
    sent: dict[tuple[int, int], list[Action]] = defaultdict(list)
    received: dict[tuple[int, int], list[tuple[Action, int]]] = defaultdict(list)
    for rank, program in enumerate(programs):
        for step, action in enumerate(program):
            if action.kind in SENDS:
                peer = placement.rank_of(counterpart(action, placement).stage)
                sent[rank, peer].append(action)
            elif action.kind in RECEIVES:
                peer = placement.rank_of(counterpart(action, placement).stage)
                received[peer, rank].append((action, step))
    for (source, target), sends in sent.items():
        for send, (receive, step) in zip(sends, received[source, target], strict=True):
            if counterpart(send, placement) != receive:
                raise refuse(
                    programs,
                    target,
                    step,
                    f"{receive} comes where rank {source} sends {send}: "
                    f"the two ends of channel {source} -> {target} differ in order",
                    "receive in the order of sending",
                )
