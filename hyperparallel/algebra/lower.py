"""Lowering: from the compute order of every rank to programs with SEND and RECV.

All ranks are played forward together in rounds. What a round finishes is sent at its end, and the SEND and its
RECV are written to both programs at that moment. All programs are therefore projections of one global order in
which every message is one event, so they cannot deadlock even when a send waits for its receive, and every
channel is first-in-first-out. Where a receive stands early costs nothing with buffered sends: a runner may wait
for it as late as its first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import RECV_B, RECV_F, SEND_B, SEND_F, Action, B, F, I, Program, W
from hyperparallel.errors import PlanError

Programs = tuple[tuple[Action, ...], ...]


def lower(compute: Sequence[Program], placement: Placement) -> Programs:
    """Insert the messages that the placement asks for, one per micro-batch and hop between two ranks.

    Args:
        compute: F, B, I, W of every rank, in order.
        placement: gives every micro-batch's path and the gates.

    Raises:
        PlanError: the ranks wait for each other in a circle; shows it as (rank, action) pairs.

    Returns:
        One program per rank.
    """
    ranks, neighbours, gates = placement.ranks, placement.neighbours, placement.gates
    programs: list[list[Action]] = [[] for _ in range(ranks)]
    forward_done: set[tuple[int, int]] = set()
    gradient_done: set[tuple[int, int]] = set()  # (stage, mb) whose B or I is done
    position = [0] * ranks
    remaining = sum(map(len, compute))
    awake: Iterable[int] = range(ranks)  # who moved in the last round, or for whom it finished something

    def downstream_first(action: Action) -> int:
        region, rank = divmod(action.stage, ranks)
        if placement.owners[region] is not None:
            return action.mb
        return rank if region in placement.reflected else -rank

    def upstream_first(action: Action) -> int:
        region, rank = divmod(action.stage, ranks)
        return -rank if region in placement.reflected else rank

    while remaining:
        finished: list[Action] = []
        woken: set[int] = set()
        for rank in awake:
            if position[rank] < len(compute[rank]):
                action = compute[rank][position[rank]]
                stage, kind, mb = action
                left, right = neighbours[stage, mb]
                if kind == F:
                    ready = left is None or (left, mb) in forward_done
                elif kind == W:
                    ready = (stage, mb) in gradient_done
                else:
                    ready = (stage, mb) in forward_done and (right is None or (right, mb) in gradient_done)
                if ready:
                    position[rank] += 1
                    programs[rank].append(action)
                    finished.append(action)
                    woken.add(rank)
        if not finished:
            raise _stuck(compute, position, placement)
        remaining -= len(finished)
        # Within a round every rank sends before it receives: activations of a Sharded region flow to higher
        # ranks, so the highest rank's go first; gradients flow to lower ranks, so the lowest rank's go first;
        # both the other way round where the region is reflected.
        for stage, kind, mb in sorted(finished, key=downstream_first):
            if kind == F:
                forward_done.add((stage, mb))
                right = neighbours[stage, mb][1]
                if right is not None and (right - stage) % ranks:
                    woken.add(right % ranks)
                    programs[stage % ranks].append(Action(stage, SEND_F, mb))
                    programs[right % ranks].append(Action(right, RECV_F, mb))
        if placement.reflected:  # else they are in this order already
            finished.sort(key=upstream_first)
        for stage, kind, mb in finished:
            if kind in (B, I):
                gradient_done.add((stage, mb))
                left = neighbours[stage, mb][0]
                if gates[stage].sends_gradient and (stage - left) % ranks:
                    woken.add(left % ranks)
                    programs[stage % ranks].append(Action(stage, SEND_B, mb))
                    programs[left % ranks].append(Action(left, RECV_B, mb))
        awake = sorted(woken)
    return tuple(map(tuple, programs))


def awaited(action: Action, placement: Placement, done: set[Action]) -> list[Action]:
    """List what a compute action still waits for."""
    stage, kind, mb = action
    left, right = placement.neighbours[stage, mb]
    if kind == F:
        needs = [] if left is None else [(Action(left, F, mb),)]
    elif kind == W:
        needs = [(Action(stage, I, mb),)]
    else:
        needs = [(Action(stage, F, mb),)]
        if right is not None:
            needs.append((Action(right, B, mb), Action(right, I, mb)))
    return [alternatives[0] for alternatives in needs if not any(need in done for need in alternatives)]


def _stuck(compute: Sequence[Program], position: list[int], placement: Placement) -> PlanError:
    """Explain a standstill: follow who waits for whom until a rank repeats, or a need that nobody runs."""
    done = {action for rank, program in enumerate(compute) for action in program[: position[rank]]}
    pending = {action for rank, program in enumerate(compute) for action in program[position[rank] :]}
    rank = next(rank for rank in range(placement.ranks) if position[rank] < len(compute[rank]))
    chain: list[tuple[int, Action, Action]] = []
    while rank not in [seen for seen, _, _ in chain]:
        action = compute[rank][position[rank]]
        need = awaited(action, placement, done)[0]
        if need.kind == B and need not in pending:
            need = need._replace(kind=I)
        chain.append((rank, action, need))
        if need not in pending:
            return refuse(
                compute,
                rank,
                position[rank],
                f"{action} waits for {need}, which no rank runs",
                "add it or remove what needs it",
            )
        rank = placement.rank_of(need.stage)
    cycle = chain[[seen for seen, _, _ in chain].index(rank) :]
    story = ", ".join(f"(rank {seen}, {action}) waits for {need}" for seen, action, need in cycle)
    return refuse(
        compute,
        rank,
        position[rank],
        f"the ranks wait for each other: {story}",
        "reorder one of these rows so that what is waited for comes first",
    )
