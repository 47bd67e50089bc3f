"""The best of a few list schedules and the paper's placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hyperparallel.planner.list_schedule import ListScheduler
from hyperparallel.planner.mirror import mirrored, turned
from hyperparallel.planner.play import Graph, play

# Where the first targets lie between the bound and the best plan so far, and what is tried around the best of them:
# (factor on the target, encodes that go before ready tasks, as a part of the bound).
_SHARES = (0.0, 0.9, 0.5, 0.2)
_NEAR = ((0.97, 0.0), (0.985, 0.0), (0.99, 0.0), (1.01, 0.0), (1.02, 0.0), (1.0, 0.1))
_KINDS = ((False, False), (True, False), (True, True))  # the queue by latest starts; ranks kept for large encodes
# Encodes begun before their task has, per rank and piece: the first keeps what waits at home short.
_AHEAD = (3.0, 4.0, float("inf"))
_ROUNDING = 1e-9


class Plan(NamedTuple):
    """A plan in numbers.

    Args:
        step_time: when it is played.
        rows: per rank, numbered actions in order.
        owners: per encode, its rank.
    """

    step_time: float
    rows: list[list[int]]
    owners: list[int]


def warmup(graph: Graph) -> Plan:
    """Return the paper's placement: owner m mod P, all encodes of a rank first, all its encoder backwards last.

    Args:
        graph: the numbered problem; owners that it gives are kept.
    """
    problem = graph.problem
    owners = [e.group % problem.ranks if e.owner is None else e.owner for e in problem.encodes]
    rows = around(graph, owners)
    return Plan(play(rows, graph.links(owners), graph.duration).step_time, rows, owners)


def around(graph: Graph, owners: Sequence[int]) -> list[list[int]]:
    """Lay the encodes of every rank before its tasks, by micro-batch, and its encoder backwards after them."""
    problem = graph.problem
    rows: list[list[int]] = []
    for rank, row in enumerate(problem.rows):
        own = sorted((e.group, index) for index, e in enumerate(problem.encodes) if owners[index] == rank)
        back = [graph.backward(index) for _, index in own if problem.encodes[index].backward is not None]
        rows.append([*(graph.forward(index) for _, index in own), *row, *back])
    return rows


def list_plan(graph: Graph, work: int | None = None) -> Plan:
    """Make list schedules for a few targets, in both directions of time, and take the best plan.

    Args:
        graph: the numbered problem.
        work: about how many actions to place in all, at least eight schedules; None for no limit.

    Returns:
        The plan; never slower than the paper's placement.
    """
    tries = _Tries(graph, _NEVER if work is None else max(8, work // graph.actions))
    if graph.encodes:
        pieces = graph.encodes / len({encode.group for encode in graph.problem.encodes})
        for ahead in _AHEAD if work is None else _AHEAD[:1]:
            tries.ahead = ahead * graph.problem.ranks * pieces
            tries.scan()
            tries.refine()
    return tries.best


_NEVER = float("inf")


class _Tries:
    """List schedules made so far.

    Args:
        graph: the numbered problem.
        most: how many may be made.
    """

    def __init__(self, graph: Graph, most: float) -> None:
        self.graph, self.most, self.best = graph, most, warmup(graph)
        self.found: list[tuple] = []  # (step time, number, maker, late, reserve, target), to go on from the best
        self.ahead = _NEVER
        self.made = 0
        self.makers = [ListScheduler(graph)]
        if graph.encodes and all(encode.backward is not None for encode in graph.problem.encodes):
            self.makers.append(ListScheduler(Graph(mirrored(graph.problem))))
        self.low = max(maker.low for maker in self.makers)

    def scan(self) -> None:
        """Try every kind of list schedule for targets between the bound and the best plan so far."""
        self.found = []
        kinds = [
            (maker, late, reserve) for late, reserve in _KINDS for maker in self.makers if maker.uneven or not late
        ]
        for share in _SHARES:
            for maker, late, reserve in kinds:
                if self.made < 0.7 * self.most:
                    self.attempt(maker, self.low + share * (self.best.step_time - self.low), late, reserve)

    def refine(self) -> None:
        """Try targets around those of the two best."""
        for _, _, maker, late, reserve, target in sorted(self.found)[:2]:
            for factor, eager in _NEAR:
                if self.made < self.most:
                    self.attempt(maker, target * factor, late, reserve, eager * self.low)

    def attempt(self, maker: ListScheduler, target: float, late: bool, reserve: bool, eager: float = 0.0) -> None:
        if self.best.step_time <= self.low * (1 + _ROUNDING):
            return
        self.made += 1
        made = maker.run(target, late, reserve, eager, self.ahead, stop=1.005 * self.best.step_time)
        if made is None:
            return
        rows, owners, step_time = made
        if step_time < 1.02 * self.best.step_time:
            if maker is not self.makers[0]:
                rows = turned(self.graph, rows)
            step_time = play(rows, self.graph.links(owners), self.graph.duration).step_time
            if step_time < self.best.step_time:
                self.best = Plan(step_time, rows, owners)
        self.found.append((step_time, len(self.found), maker, late, reserve, target))
