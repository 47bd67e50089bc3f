"""Plans that keep a limit on live encodes: paced schedules, and plans built encode by encode.

The builder places the encodes one after the other, the first due first, each at the place where the longest path
through it is shortest among those that keep the limit; of equal ones the latest, since what starts late is held for
less long.
"""

from __future__ import annotations

from collections.abc import Iterator

from hyperparallel.planner import exact
from hyperparallel.planner.least_held import least_held
from hyperparallel.planner.list_plan import Plan
from hyperparallel.planner.live import keeps_limit, peak_live
from hyperparallel.planner.pace_plans import paced_plan
from hyperparallel.planner.play import Graph, play, tails
from hyperparallel.planner.problem import LimitError
from hyperparallel.planner.settle import settle

_TRIED = 60  # places tried for one encode
_BUILT = 400  # actions that are not too many to build a plan one by one
_SOLVER_SECONDS = 5.0
_SOLVER_LARGEST = 3000


def limited_plan(graph: Graph, plan: Plan) -> Plan:
    """Find a plan that keeps the problem's live limit.

    Args:
        graph: the numbered problem.
        plan: a plan without a limit; returned, settled, if it keeps it.

    Raises:
        LimitError: no such plan was found; names the smallest limit that one was found for.

    Returns:
        The plan.
    """
    limit, least = graph.problem.live_limit, least_held(graph)
    settled = settle(graph, plan.rows, plan.owners)
    if limit < least:
        raise LimitError(_refusal(graph, limit, least, settled, plan.owners))
    choices = [
        _plan(graph, rows, plan.owners) for rows in (plan.rows, settled) if keeps_limit(graph, rows, plan.owners)
    ]
    paced = paced_plan(graph, limit)
    if paced is not None:
        choices.append(paced)
    if not choices or graph.actions <= _BUILT:
        # A tighter limit sometimes leads the builder to the better plan.
        choices += filter(None, (build(graph, n) for n in range(max(1, limit - 2), limit + 1)))
    if not choices:
        solved, _ = _solve(graph, limit)
        if solved is None:
            raise LimitError(_refusal(graph, limit, limit + 1, settled, plan.owners, refuted=False))
        choices.append(solved)
    return min(choices, key=lambda choice: choice.step_time)


def _refusal(graph: Graph, limit: int, least: int, settled, owners, refuted: bool = True) -> str:
    """Say which limit would do; it is the smallest feasible one only when all below it are refuted.

    `refuted` says that no plan keeps `limit`; then none keeps a limit below `least` either.
    """
    largest = max(peak_live(graph, owners, play(settled, graph.links(owners), graph.duration)))
    smallest = least
    while smallest < largest and not _found(graph, smallest):
        smallest += 1 + (smallest - least) // 4
    smallest, proven = min(smallest, largest), refuted and smallest == least
    for lower in () if proven else range(smallest - 1, limit - (not refuted), -1):
        solved, proven = _solve(graph, lower)
        if solved is None:
            break
        smallest = lower
    what = "no plan keeps" if refuted or proven else "no plan was found that keeps"
    sure = "is the smallest feasible one" if proven else "is the smallest one that a plan was found for"
    return (
        f"memory limit of {limit} encode{'' if limit == 1 else 's'}: {what} every rank within it; "
        f"{smallest} encode{'' if smallest == 1 else 's'} {sure}, so raise the limit to {smallest}"
    )


def _found(graph: Graph, limit: int) -> bool:
    """Say whether a plan within a limit is found quickly."""
    if paced_plan(graph, limit, quick=True) is not None:
        return True
    return graph.actions <= _BUILT and build(graph, limit) is not None


def _solve(graph: Graph, limit: int) -> tuple[Plan | None, bool]:
    """Ask the solver for a plan within the limit: one that also keeps it when played, and whether there is none."""
    if limit < least_held(graph):
        return None, True
    if graph.actions * graph.problem.ranks > _SOLVER_LARGEST or not exact.solver_available():
        return None, False
    rows, owners, impossible = exact.within_limit(graph, limit, _SOLVER_SECONDS)
    if rows is None or not _keeps(graph, rows, owners, limit):
        return None, impossible
    return _plan(graph, rows, owners), False


def _plan(graph: Graph, rows, owners) -> Plan:
    return Plan(play(rows, graph.links(owners), graph.duration).step_time, [list(row) for row in rows], list(owners))


def _keeps(graph: Graph, rows, owners, limit: int) -> bool:
    played = play(rows, graph.links(owners), graph.duration)
    return played is not None and max(peak_live(graph, owners, played)) <= limit


def build(graph: Graph, limit: int) -> Plan | None:
    """Build a plan within a limit.

    Args:
        graph: the numbered problem.
        limit: most live encodes of a rank.

    Returns:
        The plan, None when an encode finds no place.
    """
    builder = _Builder(graph, limit)
    encodes = graph.problem.encodes
    place = {task: index for index, task in enumerate(graph.task_order)}
    for index in sorted(range(graph.encodes), key=lambda index: (place[encodes[index].feeds], index)):
        if not builder.insert(index):
            return None
    return _plan(graph, builder.rows, builder.owners)


class _Builder:
    def __init__(self, graph: Graph, limit: int) -> None:
        self.graph, self.limit = graph, limit
        self.rows = [list(row) for row in graph.problem.rows]
        self.owners = [-1] * graph.encodes
        self.links = graph.needs + [()] * (2 * graph.encodes)
        self.played = play(self.rows, self.links, graph.duration)

    def insert(self, index: int) -> bool:
        """Put an encode at the best place that keeps the limit."""
        encode, graph = self.graph.problem.encodes[index], self.graph
        forward, backward, feeds = graph.forward(index), graph.backward(index), encode.feeds
        linked = self.links[feeds]
        for _, _, rank, first, last in sorted(self.places(index))[:_TRIED]:
            away = rank != graph.problem.homes[index]
            row = self.rows[rank]
            if encode.backward is not None:
                row.insert(last, backward)
                self.links[backward] = ((encode.follows, encode.receive if away else 0.0),)
            row.insert(first, forward)
            self.links[feeds] = (*linked, (forward, encode.send if away else 0.0))
            self.owners[index] = rank
            played = play(self.rows, self.links, graph.duration)
            if played is not None and max(peak_live(graph, self.owners, played)) <= self.limit:
                self.played = played
                return True
            row.remove(forward)
            if encode.backward is not None:
                row.remove(backward)
            self.links[feeds], self.owners[index] = linked, -1
        return False

    def places(self, index: int) -> Iterator[tuple[float, float, int, int, int]]:
        """List the places: length of the path through it, minus the start, rank, index of forward and backward."""
        encode, graph = self.graph.problem.encodes[index], self.graph
        start, duration, homes = self.played.start, graph.duration, graph.problem.homes
        tail = tails(self.rows, self.links, duration, self.played.order)
        for rank in range(graph.problem.ranks) if encode.owner is None else (encode.owner,):
            row, away = self.rows[rank], rank != homes[index]
            due = tail[encode.feeds] + (encode.send if away else 0.0)
            last, behind = len(row), 0.0
            if encode.backward is not None:
                ready = start[encode.follows] + duration[encode.follows] + (encode.receive if away else 0.0)
                behind, last = self.first_after(row, ready, encode.backward, tail)
            end = 0.0
            for first in range(last + 1):
                after = tail[row[first]] if first < len(row) else 0.0
                value = max(end + encode.forward + max(after, due), behind, self.played.step_time)
                yield value, -end, rank, first, last
                if first == len(row) or start[row[first]] >= start[encode.feeds]:
                    break
                end = start[row[first]] + duration[row[first]]

    def first_after(self, row: list[int], ready: float, size: float, tail: list[float]) -> tuple[float, int]:
        """Find the first place behind a moment: the length of the path through it, and the index."""
        start, duration = self.played.start, self.graph.duration
        best, place = float("inf"), len(row)
        for index in range(len(row), -1, -1):
            end = start[row[index - 1]] + duration[row[index - 1]] if index else 0.0
            value = max(end, ready) + size + (tail[row[index]] if index < len(row) else 0.0)
            value = max(value, self.played.step_time)
            if value <= best:
                best, place = value, index
            if end <= ready:
                break
        return best, place
