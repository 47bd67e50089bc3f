"""Paced schedules for a limit on live encodes, and for a step time."""

from __future__ import annotations

from collections.abc import Iterator

from hyperparallel.planner.list_plan import Plan
from hyperparallel.planner.list_schedule import ListScheduler
from hyperparallel.planner.live import most_waiting, peak_live
from hyperparallel.planner.mirror import mirrored, turned
from hyperparallel.planner.paced import Pace, Pacer
from hyperparallel.planner.play import Graph, play

_FACTORS = (1.0, 1.03, 1.1, 1.25, 1.5, 2.0, 3.0)  # of the bound: targets; tight limits need the long ones
_SHARES = 5  # how many ways to share a limit between home's own graphs and what waits there
_WORK = 150_000  # actions that are placed in about a second
_ROUNDING = 1e-9


def paced_plan(graph: Graph, limit: int, quick: bool = False) -> Plan | None:
    """Find the best paced schedule within a limit on live encodes.

    Args:
        graph: the numbered problem.
        limit: most encodes that a rank holds.
        quick: take the first that is found.

    Returns:
        The plan; None when none was found.
    """
    pacer, low, best = Pacer(graph), ListScheduler(graph).low, None
    for count, pace in enumerate(_paces(graph, limit, low)):
        if best is not None and (quick or count > max(30, _WORK // graph.actions)):
            break
        made = pacer.run(pace)
        if made is None:
            continue
        rows, owners = made
        played = play(rows, graph.links(owners), graph.duration)
        if played is None or (best is not None and played.step_time >= best.step_time):
            continue
        if max(peak_live(graph, owners, played)) <= limit:
            best = Plan(played.step_time, rows, owners)
    return best


def _paces(graph: Graph, limit: int, low: float) -> Iterator[Pace]:
    """List what to try: ways to share the limit, then targets."""
    encodes = graph.problem.encodes
    pieces = max((sum(encodes[e].forward > 0 for e in feeders) for feeders in graph.feeders), default=1)
    trained = any(encode.backward is not None for encode in encodes)
    most = max(0, limit - pieces) if trained else 0
    shares = sorted({round(most * part / (_SHARES - 1)) for part in range(_SHARES)})
    for factor in _FACTORS:
        for own in shares:
            for timed in (False, True):
                for busy in (False, True):
                    yield Pace(limit - own, own, limit, factor * low, timed, busy)
    if trained:  # home may own more when little waits there
        for own in range(most + 1, limit + 1):
            for factor in _FACTORS:
                for timed in (False, True):
                    yield Pace(pieces, own, limit, factor * low, timed, last=True)


def tightened(graph: Graph, plan: Plan, enough: int) -> Plan:
    """Look for a paced schedule that is as fast as a plan and holds fewer encodes.

    Args:
        graph: the numbered problem.
        plan: returned when no better one is found.
        enough: encodes a rank may hold without that any plan is looked for.

    Returns:
        A plan that is not slower and at no rank's peak worse.
    """
    held = _held(graph, plan)
    if held <= enough:
        return plan
    pacers = [(Pacer(graph), False)]
    if all(encode.backward is not None for encode in graph.problem.encodes):
        pacers.append((Pacer(Graph(mirrored(graph.problem))), True))
    size = enough / 4.0
    while size < held:
        best = plan
        for pacer, back in pacers:
            for room in (size, 1.5 * size, 3.0 * size):
                made = pacer.run(Pace(room, size, size, plan.step_time))
                if made is None:
                    continue
                rows = turned(graph, made[0]) if back else made[0]
                played = play(rows, graph.links(made[1]), graph.duration)
                if played is not None and played.step_time <= plan.step_time * (1 + _ROUNDING):
                    found = Plan(played.step_time, rows, made[1])
                    best = min(best, found, key=lambda one: _held(graph, one))
        if best is not plan:
            return best
        size *= 1.25
    return plan


def _held(graph: Graph, plan: Plan) -> int:
    played = play(plan.rows, graph.links(plan.owners), graph.duration)
    return max(*peak_live(graph, plan.owners, played), most_waiting(graph, plan.owners, played))
