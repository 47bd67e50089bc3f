"""Play programs against each other: do all ranks reach their end?

Under *buffered* sends a SEND always completes. Under *rendezvous* it waits until its RECV is posted, that is,
until the other rank has reached it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra.mark import refuse
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import COMPUTE, SENDS, Action, Program
from hyperparallel.errors import PlanError


def counterpart(action: Action, placement: Placement) -> Action:
    """Return the other end of a message: the RECV of a SEND, the SEND of a RECV."""
    return placement.ends[action]


def check_progress(programs: Sequence[Program], placement: Placement) -> None:
    """Check that every rank finishes under both rules.

    Args:
        programs: with messages that are paired one to one (checked before).
        placement: gives the pairs.

    Raises:
        PlanError: under one of the rules the ranks wait in a circle; names the rule and the circle.
    """
    position = _play(programs, placement, rendezvous=True)
    if position == list(map(len, programs)):
        return  # a run in which every message is one event is a run with buffered sends too
    for rule in ("buffered", "rendezvous"):
        position = _play(programs, placement, rendezvous=rule == "rendezvous")
        stuck = [rank for rank, program in enumerate(programs) if position[rank] < len(program)]
        if stuck:
            raise _cycle(programs, placement, position, stuck[0], rule)


def _play(programs: Sequence[Program], placement: Placement, rendezvous: bool) -> list[int]:
    """Advance all ranks as far as they get; return how far."""
    ranks, ends = placement.ranks, placement.ends
    position = [0] * ranks
    length = list(map(len, programs))
    sent: set[Action] = set()
    awake = list(range(ranks))
    while awake:
        rank = awake.pop()
        program = programs[rank]
        while position[rank] < length[rank]:
            action = program[position[rank]]
            kind = action[1]
            if kind not in COMPUTE:
                other = ends[action]
                peer = other[0] % ranks
                if rendezvous:
                    # Whoever comes second completes both ends.
                    if position[peer] == length[peer] or programs[peer][position[peer]] != other:
                        break
                    position[peer] += 1
                    awake.append(peer)
                elif kind in SENDS:
                    sent.add(action)
                    awake.append(peer)
                elif other not in sent:
                    break
            position[rank] += 1
    return position


def _cycle(programs: Sequence[Program], placement: Placement, position: list[int], rank: int, rule: str) -> PlanError:
    """Follow each stuck rank to the rank it waits for until one repeats."""
    chain: list[int] = []
    while rank not in chain:
        chain.append(rank)
        action = programs[rank][position[rank]]
        rank = placement.rank_of(counterpart(action, placement).stage)
    cycle = chain[chain.index(rank) :]
    story = ", ".join(
        f"(rank {seen}, {programs[seen][position[seen]]}) waits for "
        f"{counterpart(programs[seen][position[seen]], placement)}"
        for seen in cycle
    )
    return refuse(
        programs,
        rank,
        position[rank],
        f"deadlock with {rule} sends: {story}",
        "on one of these ranks move the receive before the send"
        if rule == "rendezvous"
        else "move the awaited SEND before the RECV that its rank is stuck in",
    )
