"""Lowering: from the compute order of every rank to programs with SEND and RECV.

All ranks are played forward together in rounds, or in the order of the times at which a planner expects actions to
end: messages then come as they will be ready, and none waits behind a later one. What a round finishes is sent at its
end, and the SEND and its RECV are written to both programs at that moment. All programs are therefore projections of
one global order in which every message is one event, so they cannot deadlock even when a send waits for its receive,
and every channel is first-in-first-out. Where a receive stands early costs nothing with buffered sends: a runner may
wait for it as late as its first use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.placement import Node, Placement
from hyperparallel.algebra.program import RECV_B, RECV_F, SEND_B, SEND_F, Action, B, F, I, Program, W, micro_batch
from hyperparallel.errors import PlanError

Programs = tuple[tuple[Action, ...], ...]


def lower(compute: Sequence[Program], placement: Placement, ends: Sequence[Sequence[float]] | None = None) -> Programs:
    """Insert the messages that the placement asks for, one per micro-batch (or piece) and hop between two ranks.

    Args:
        compute: F, B, I, W of every rank, in order.
        placement: gives every micro-batch's path and the gates.
        ends: when each action is expected to end; default: every action takes one round.

    Raises:
        PlanError: the ranks wait for each other in a circle; shows it as (rank, action) pairs.

    Returns:
        One program per rank.
    """
    ranks, neighbours, gates = placement.ranks, placement.neighbours, placement.gates
    programs: list[list[Action]] = [[] for _ in range(ranks)]
    forward_done: set[Node] = set()
    gradient_done: set[Node] = set()  # whose B or I is done
    position = [0] * ranks
    remaining = sum(map(len, compute))
    awake: Iterable[int] = range(ranks)  # who moved in the last round, or for whom it finished something

    def downstream_first(action: Action) -> int:
        region, rank = divmod(action.stage, ranks)
        if placement.owners[region] is not None:
            return micro_batch(action.mb)
        return rank if region in placement.reflected else -rank

    def upstream_first(action: Action) -> int:
        region, rank = divmod(action.stage, ranks)
        return -rank if region in placement.reflected else rank

    while remaining:
        finished: list[Action] = []
        woken: set[int] = set()
        now = math.inf
        for rank in awake if ends is None else range(ranks):
            if position[rank] < len(compute[rank]):
                action = compute[rank][position[rank]]
                stage, kind, mb = action
                before, after = neighbours[stage, mb]
                if kind == F:
                    ready = forward_done.issuperset(before)
                elif kind == W:
                    ready = (stage, mb) in gradient_done
                else:
                    ready = (stage, mb) in forward_done and (after is None or after in gradient_done)
                if ready and ends is not None:
                    # Only the earliest of all: what ends later stays for another round.
                    end = ends[rank][position[rank]]
                    if end < now:
                        finished.clear()
                    ready, now = end <= now, min(end, now)
                if ready:
                    finished.append(action)
        if not finished:
            raise _stuck(compute, position, placement)
        for action in finished:
            rank = action.stage % ranks
            position[rank] += 1
            programs[rank].append(action)
            woken.add(rank)
        remaining -= len(finished)
        # Within a round every rank sends before it receives: activations of a Sharded region flow to higher
        # ranks, so the highest rank's go first; gradients flow to lower ranks, so the lowest rank's go first;
        # both the other way round where the region is reflected.
        for stage, kind, mb in sorted(finished, key=downstream_first):
            if kind == F:
                forward_done.add((stage, mb))
                after = neighbours[stage, mb][1]
                if after is not None and (after[0] - stage) % ranks:
                    woken.add(after[0] % ranks)
                    programs[stage % ranks].append(Action(stage, SEND_F, mb))
                    programs[after[0] % ranks].append(Action(after[0], RECV_F, mb))
        if placement.reflected:  # else they are in this order already
            finished.sort(key=upstream_first)
        for stage, kind, mb in finished:
            if kind in (B, I):
                gradient_done.add((stage, mb))
                if not gates[stage].sends_gradient:
                    continue
                for left, unit in neighbours[stage, mb][0]:
                    if (stage - left) % ranks:
                        woken.add(left % ranks)
                        programs[stage % ranks].append(Action(stage, SEND_B, unit))
                        programs[left % ranks].append(Action(left, RECV_B, unit))
        awake = sorted(woken)
    return tuple(map(tuple, programs))


def awaited(action: Action, placement: Placement, done: set[Action]) -> list[Action]:
    """List what a compute action still waits for."""
    stage, kind, mb = action
    before, after = placement.neighbours[stage, mb]
    if kind == F:
        needs = [(Action(left, F, unit),) for left, unit in before]
    elif kind == W:
        needs = [(Action(stage, I, mb),)]
    else:
        needs = [(Action(stage, F, mb),)]
        if after is not None:
            needs.append((Action(after[0], B, after[1]), Action(after[0], I, after[1])))
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
