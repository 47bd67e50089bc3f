"""What encodes hold in memory while a plan is played: live encodes of owners, features that wait at home.

A live encode is held by its owner from the start of its forward: with a backward, until that ends; without, until its
features are handed over, which is the end of the forward for another rank than home, the start of the task it feeds
at home. Home also holds the features of other owners, from their arrival until the task they feed starts. An encode
whose forward takes no time (a micro-batch without images) holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.planner.play import Graph, Played, play

_ROUNDING = 1e-9


def peak_live(graph: Graph, owners: Sequence[int], played: Played) -> list[int]:
    """Count the most encodes that each rank holds at a time.

    Args:
        graph: the numbered problem.
        owners: per encode, its rank.
        played: the plan in time; encodes that it leaves out hold nothing.

    Returns:
        Per rank, the count.
    """
    held: list[list[tuple[float, int]]] = [[] for _ in graph.problem.rows]
    start, duration = played.start, graph.duration
    early = _ROUNDING * played.step_time  # what is given back comes before what is taken at the same time
    for index, encode in enumerate(graph.problem.encodes):
        if not encode.forward or start[graph.forward(index)] < 0.0:
            continue
        owner, home = owners[index], graph.problem.homes[index]
        begin = start[graph.forward(index)]
        end, feeds = begin + encode.forward, start[encode.feeds]
        if encode.backward is not None:
            last = start[graph.backward(index)] + duration[graph.backward(index)]
        else:
            last = feeds if owner == home else end
        held[owner] += [(begin, 1), (last - early, -1)]
        if owner != home:  # even what comes at the last moment is there for one
            held[home] += [(min(end + encode.send, feeds - 2.0 * early), 1), (feeds - early, -1)]
    return [_most(events) for events in held]


def most_waiting(graph: Graph, owners: Sequence[int], played: Played) -> int:
    """Count the most features that wait at a home rank at a time, its own and those of other ranks."""
    waiting: list[list[tuple[float, int]]] = [[] for _ in graph.problem.rows]
    early = _ROUNDING * played.step_time
    for index, encode in enumerate(graph.problem.encodes):
        home = graph.problem.homes[index]
        arrival = played.start[graph.forward(index)] + encode.forward + (encode.send if owners[index] != home else 0.0)
        feeds = played.start[encode.feeds] - early
        if encode.forward and feeds > arrival:
            waiting[home] += [(arrival, 1), (feeds, -1)]
    return max(map(_most, waiting))


def keeps_limit(graph: Graph, rows: Sequence[Sequence[int]], owners: Sequence[int]) -> bool:
    """Say whether a plan plays, with no rank holding more than the problem's limit."""
    played = play(rows, graph.links(owners), graph.duration)
    limit = graph.problem.live_limit
    return played is not None and (limit is None or max(peak_live(graph, owners, played)) <= limit)


def _most(events: list[tuple[float, int]]) -> int:
    now = most = 0
    for _, change in sorted(events):
        now += change
        if now > most:
            most = now
    return most
