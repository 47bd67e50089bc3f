"""The steady period of a schedule: the eigenvalue of the (max,+) map of one round.

Definitions (ports and products as in `maxplus.py`):

    cut(m)    the events that the last event of micro-batch m waits for, directly or not, and that event.
    round     cut(m+K) without cut(m). The order is *steady* when that is the round before, K micro-batches later: the
              same actions on every rank in the same order at the same costs, and the same messages under way.
    state x   at a cut: when every rank is free, and when every message under way arrives.
    A         x(m+K) = A (x) x(m): the product of the round's events, micro-batches counted from the cut. New
              micro-batches are there in time, so their ports are left out.
    period    lambda with A (x) v = lambda (x) v: the largest mean weight of a cycle of A. After its first rounds the
              schedule takes lambda for every K micro-batches.

K is the smallest that is steady: 1 for `1f1b`, P for interleaving and for owners that go round. It is read from the
plan's own order, in the middle of the step, and so needs a step that is long enough to have a middle.

A Replicated region at the input that runs before (and after) all else is not part of such a round, for its events
of all micro-batches come first. The step is then a product E' ^n A^n E^n of three maps of n = M / K rounds each.
E and E' are diagonal, a rank's encodes (encoder backwards) of one round. A step of n rounds takes
n (max E + lambda + max E') more or less, so the period is that sum: exactly when the copies cost the same on every
rank, or when every rank waits for every other in a round (as it does where gradients flow); else it is a bound.

List-scheduled orders (`zb`, `wave`, mixes of skeletons) are made for unit times and need not repeat. Where they do,
K and A are found in the same way; where not, there is no period matrix and `period` says so. `gpipe` with its
backwards has no steady round either: no backward of it starts before the last forward.

Source: design, section 4; Karp, A characterization of the minimum cycle mean in a digraph (1978).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, I
from hyperparallel.cost.maxplus import ZERO, Port, Transfer, compose, events, in_order, ports
from hyperparallel.cost.weights import Costs
from hyperparallel.errors import PlanError

Cut = tuple[int, ...]
"""Per rank, how many of its actions lie before the cut."""


@dataclass(frozen=True)
class Period:
    """What a schedule repeats.

    Args:
        micro_batches: K, micro-batches of one round.
        time: of one round, in the unit of the costs.
        matrix: A, the map of one round; ranks first, then messages under way.
        around: (max E, max E'): time of one round's encodes and encoder backwards on the busiest rank where these
            lie before and after all else, else (0, 0).
    """

    micro_batches: int
    time: float
    matrix: np.ndarray
    around: tuple[float, float]


def period(plan: Plan, costs: Costs) -> Period:
    """Find the steady period of a plan.

    Args:
        plan: with enough micro-batches for a steady state, about 2 P + 3 K.
        costs: durations; where they differ by micro-batch, they must repeat with the order.

    Raises:
        PlanError: the order, or its costs, do not repeat.

    Returns:
        The period; `time / micro_batches` is the slope of the step time in M.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)*2", ModelSpec.of({"llm": 4}), ranks=2, micro_batches=16)
        >>> costs = Costs({(stage, kind): time for stage in range(4) for kind, time in (("F", 1.0), ("B", 2.0))})
        >>> found = period(plan, costs)
        >>> found.micro_batches, found.time
        (2, 12.0)
    """
    if plan.placement.split > 1:
        raise PlanError(f"{plan.schedule} encodes in pieces, and the period is counted in micro-batches; use split=1")
    rounds = _Rounds(plan, costs)
    for size in range(1, plan.micro_batches // 3 + 1):
        around, cuts = rounds.around(size), rounds.steady(size)
        if around is not None and cuts is not None:
            matrix = rounds.matrix(*cuts, size)
            return Period(size, max_cycle_mean(matrix) + sum(around), matrix, around)
    raise PlanError(
        f"{plan.schedule} with P={plan.ranks}, M={plan.micro_batches} has no steady period: no number of micro-batches "
        f"up to {plan.micro_batches // 3} repeats in its order and costs; try a larger M"
    )


def max_cycle_mean(matrix: np.ndarray) -> float:
    """Return the (max,+) eigenvalue of a matrix: the largest mean weight of a cycle, -inf without one.

    Karp: with d(k, v) the largest weight of a walk of k steps that ends in v, and n nodes, it is
    max over v of min over k < n of (d(n, v) - d(k, v)) / (n - k).

    Args:
        matrix: square; entry (v, u) is the weight of the edge from u to v, -inf without one.

    Example:
        >>> max_cycle_mean(np.array([[ZERO, 3.0], [5.0, 1.0]]))
        4.0
    """
    size = len(matrix)
    walks = np.zeros((size + 1, size))
    for step in range(size):
        walks[step + 1] = np.max(matrix + walks[step], axis=1, initial=ZERO)
    ends = walks[size] > ZERO
    if not ends.any():
        return ZERO
    # A walk that long exists, so does every shorter one that it ends with.
    means = (walks[size, ends] - walks[:size, ends]) / (size - np.arange(size))[:, None]
    return float(means.min(axis=0).max())


class _Rounds:
    """A plan's order with its cuts, without the encodes that lie around it."""

    def __init__(self, plan: Plan, costs: Costs):
        self.plan, self.costs = plan, costs
        self.encodes = _encodes_around(plan)
        self.rows = [[action for action in row if action.stage not in self.encodes] for row in plan.compute]
        self.order = [action for action in in_order(plan) if action.stage not in self.encodes]
        self.clocks = self._clocks()

    def _clocks(self) -> dict[Action, Cut]:
        """What every event waits for, itself included: a vector clock."""
        clocks: dict[Action, Cut] = {}
        free, arrived = [(0,) * self.plan.ranks] * self.plan.ranks, {}
        for action in self.order:
            rank = action.stage % self.plan.ranks
            awaited, fed = ports(self.plan, action)
            clock = list(map(max, free[rank], free[rank], *(arrived.get(port, free[rank]) for port in awaited)))
            clock[rank] += 1
            clocks[action] = free[rank] = tuple(clock)
            arrived |= dict.fromkeys(fed, free[rank])
        return clocks

    def steady(self, size: int) -> tuple[Cut, Cut] | None:
        """Return two cuts in the middle, `size` micro-batches apart, if the rounds before, between and after agree."""
        first = (self.plan.micro_batches - size) // 2
        if first < size or first + 2 * size >= self.plan.micro_batches:
            return None
        cuts = [self.clocks[self._last(first + shift * size)] for shift in (-1, 0, 1, 2)]
        rounds = [
            self._round(cut, after, at * size) for at, (cut, after) in enumerate(zip(cuts, cuts[1:], strict=False))
        ]
        if not rounds[0] == rounds[1] == rounds[2] or not self._is_whole(rounds[1], size):
            return None
        flights = [self._under_way(cut, at * size) for at, cut in enumerate(cuts)]
        return (cuts[1], cuts[2]) if flights[0] == flights[1] == flights[2] == flights[3] else None

    def _last(self, mb: int) -> Action:
        """Return the last event of a micro-batch: its most upstream backward, else the forward at the loss."""
        path = self.plan.placement.path(mb)
        backwards = (Action(stage, kind, mb) for stage in path for kind in (B, I))
        return next((action for action in backwards if action in self.clocks), Action(path[-1], F, mb))

    def _round(self, cut: Cut, after: Cut, shift: int) -> list[list[tuple]]:
        """Per rank, its actions between two cuts with all their durations, `shift` micro-batches earlier."""
        return [
            [(stage, kind, mb - shift, self._durations(Action(stage, kind, mb))) for stage, kind, mb in row[start:end]]
            for row, start, end in zip(self.rows, cut, after, strict=True)
        ]

    def _durations(self, action: Action) -> tuple[float, ...]:
        """Time of an action, and of its message."""
        send = SEND_F if action.kind == F else SEND_B
        sends = [action._replace(kind=send, mb=port[2]) for port in ports(self.plan, action)[1]]
        return tuple(map(self.costs.duration, (action, *sends)))

    def _is_whole(self, one_round: list[list[tuple]], size: int) -> bool:
        """True when a round has every event of `size` micro-batches; gpipe's has the backwards only."""
        events_ = [(stage, kind, mb % size) for row in one_round for stage, kind, mb, _ in row]
        return sorted(events_) == sorted((stage, kind, mb) for stage, kind, mb in self.clocks if mb < size)

    def _under_way(self, cut: Cut, shift: int) -> set[Port]:
        """Return the ports that are fed before a cut and taken after it, `shift` micro-batches earlier."""
        before = (action for row, end in zip(self.rows, cut, strict=True) for action in row[:end])
        taken, fed = zip(*(ports(self.plan, action) for action in before), strict=True)
        ahead = set(chain.from_iterable(fed)) - set(chain.from_iterable(taken))
        return {(stage, kind, mb - shift) for stage, kind, mb in ahead if stage not in self.encodes}

    def matrix(self, cut: Cut, after: Cut, size: int) -> np.ndarray:
        """A of the round between two cuts."""
        state = [*((rank,) for rank in range(self.plan.ranks)), *sorted(self._under_way(cut, 0))]
        later = [port if len(port) == 1 else (*port[:2], port[2] + size) for port in state]
        inside = {action for row, start, end in zip(self.rows, cut, after, strict=True) for action in row[start:end]}
        # What a round does not touch waits for the next one.
        wait = Transfer(tuple(state), tuple(state), np.where(np.eye(len(state), dtype=bool), 0.0, ZERO))
        actions = [action for action in self.order if action in inside]
        one_round = compose([wait, *events(self.plan, self.costs, actions)])
        rows, columns = map(one_round.outputs.index, later), map(one_round.inputs.index, state)
        return one_round.matrix[np.ix_(list(rows), list(columns))]

    def around(self, size: int) -> tuple[float, float] | None:
        """Return (max E, max E') of `size` micro-batches; None if the encodes do not repeat."""
        times: dict[str, list[float]] = {F: [0.0] * self.plan.ranks, B: [0.0] * self.plan.ranks}
        encodes = {
            (kind, mb): (stage, self._durations(Action(stage, kind, mb)))
            for row in self.plan.compute
            for stage, kind, mb in row
            if stage in self.encodes
        }
        for (kind, mb), (stage, durations) in encodes.items():
            if encodes.get((kind, mb + size), (stage, durations)) != (stage, durations):
                return None
            times[kind][stage % self.plan.ranks] += durations[0] if mb < size else 0.0
        return max(times[F]), max(times[B])


def _encodes_around(plan: Plan) -> frozenset[int]:
    """Return the stages of a Replicated region at the input if on every rank they run before and after all else."""
    stages = frozenset(plan.placement.region_stages(0))
    if plan.placement.owners[0] is None or len(plan.regions) == 1:
        return frozenset()
    for row in plan.compute:
        # Forwards are 0, all else 1, backwards 2: sorted or not.
        places = [1 if action.stage not in stages else 0 if action.kind == F else 2 for action in row]
        if places != sorted(places):
            return frozenset()
    return stages
