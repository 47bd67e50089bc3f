"""Play the communication of all ranks against each other: does every message meet its partner?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hyperparallel.dryrun.ir_order import Event, comm_only, final_ir, read_order
from hyperparallel.dryrun.ir_walk import P2P


def check_ranks(
    ranks: Sequence[Path | str | Sequence[Event]], groups: Mapping[str, Sequence[int]] | None = None
) -> list[str]:
    """Run every rank's communication in its order against the others'.

    The strictest reading: nothing is buffered, and an operator completes only when its partner (the whole group,
    for a collective) has reached the matching one. Send and Receive between the same two ranks match in order;
    groups, tags, shapes and types must then agree. A graph whose ranks deadlock compiles like any other.

    Args:
        ranks: for every rank of the job, from 0 on, its `rank_R` folder or the events that were read.
        groups: see `read_order`; for the folders.

    Raises:
        DryRunError: a folder without a final graph.

    Returns:
        Problems, one line each; empty when all is well.
    """
    order = [
        comm_only(read_order(final_ir(rank), groups=groups) if isinstance(rank, (str, Path)) else rank)
        for rank in ranks
    ]
    at, problems = [0] * len(order), []
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(order):
            while at[rank] < len(events):
                partners = _partners(rank, order, at, problems)
                if not partners:
                    break
                for partner in partners:
                    at[partner] += 1
                moved = True
    for rank, events in enumerate(order):
        if at[rank] < len(events):
            problems.append(f"rank {rank} is stuck at communication {at[rank]} of {len(events)}: {events[at[rank]]}")
    return problems


def _partners(rank: int, order: Sequence[Sequence[Event]], at: Sequence[int], problems: list[str]) -> list[int]:
    """List the ranks that complete an operator together with this one's next; none while one is missing."""
    event = order[rank][at[rank]]
    heads = {other: events[at[other]] for other, events in enumerate(order) if at[other] < len(events)}
    if event.op in P2P:
        other = heads.get(event.peer)
        if other is None or other.op not in P2P or other.op == event.op or other.peer != rank:
            return []
        problems += _differences(rank, event, event.peer, other)
        return [rank, event.peer]
    members = list(event.ranks or range(len(order)))
    same = all(
        member in heads and (heads[member].op, heads[member].group) == (event.op, event.group) for member in members
    )
    return members if same else []


def _differences(rank: int, event: Event, peer: int, other: Event) -> list[str]:
    """Compare both ends of a message."""
    pairs = {
        "tags": (event.tag, other.tag),
        # Groups of the parallel passes are named after their ranks; what counts is who belongs to them.
        "groups": (event.ranks, other.ranks) if event.ranks and other.ranks else (event.group, other.group),
        "shapes": (event.shape, other.shape),
        "types": (event.dtype, other.dtype),
    }
    return [
        f"{what} differ: {mine} on rank {rank}, {theirs} on rank {peer}: {event} / {other}"
        for what, (mine, theirs) in pairs.items()
        if mine != theirs and None not in (mine, theirs)
    ]
