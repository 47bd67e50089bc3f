"""The exact engine: the problem as intervals for OR-Tools' constraint solver CP-SAT.

Times are whole numbers for the solver. Durations are rounded down to its grid, so its bound is valid for the true
ones; the step time that counts is that of the order it finds, played with the true durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hyperparallel.errors import ScheduleError
from hyperparallel.planner.bounds import CLOSE, Refutation
from hyperparallel.planner.play import Graph, play
from hyperparallel.planner.unit import serial_time, time_unit

_FINE = 100_000_000  # grid points in a step when the durations have no common unit


class Solved(NamedTuple):
    """What the solver found.

    Args:
        rows: per rank, numbered actions in order; those given when it found none that is better.
        owners: per encode, its rank.
        bound: no plan is faster.
    """

    rows: list[list[int]]
    owners: list[int]
    bound: float


def solver_available() -> bool:
    """Say whether OR-Tools can be imported."""
    try:
        require_solver()
    except ScheduleError:
        return False
    return True


def require_solver():
    """Import OR-Tools' CP-SAT.

    Raises:
        ScheduleError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ScheduleError(
            "engine 'exact' needs OR-Tools, which is not installed: pip install 'hyperparallel[plan]', "
            "or take engine 'search', which needs nothing"
        ) from error
    return cp_model


def solve(
    graph: Graph,
    rows: Sequence[Sequence[int]],
    owners: Sequence[int],
    bound: float,
    *,
    time_limit_s: float | None,
    work_limit: float | None = None,
    seed: int = 0,
) -> Solved:
    """Search for the best order and owners.

    Args:
        graph: the numbered problem.
        rows: a plan to start from.
        owners: of that plan.
        bound: a lower bound on the step time.
        time_limit_s: seconds of the clock; None for no limit.
        work_limit: the solver's own deterministic time, about seconds; the same input then gives the same plan.
        seed: of the solver.

    Raises:
        ScheduleError: OR-Tools is not installed.

    Returns:
        The plan and a bound at least as good as the given one.
    """
    given = [list(row) for row in rows], list(owners)
    step_time = play(rows, graph.links(owners), graph.duration).step_time
    # Step times are whole multiples of the unit, so a better plan is better by one.
    target = step_time - float(time_unit(graph.problem) or 0.0)
    windows = Refutation(graph.problem).windows(target)
    if windows is None:
        return Solved(given[0], given[1], max(bound, step_time * (1 - CLOSE)))
    model = _Model(graph, target, bound)
    model.narrow(*windows)
    if graph.problem.live_limit is not None:
        model.limit_live(graph.problem.live_limit)
    model.minimise(rows, owners)
    solved, owners, low, impossible = model.solve(time_limit_s, work_limit, seed)
    if solved is None:
        solved, owners = given
    return Solved(solved, owners, step_time if impossible else max(bound, min(low, step_time)))


def within_limit(graph: Graph, limit: int, time_limit_s: float) -> tuple[list[list[int]] | None, list[int], bool]:
    """Look for any plan in which no rank holds more than `limit` encodes.

    Returns:
        Its rows (None when none was found), owners, and whether it is certain that there is none.
    """
    model = _Model(graph, serial_time(graph.problem), 0.0)
    model.limit_live(limit)
    rows, owners, _, impossible = model.solve(time_limit_s, None, 0)
    return rows, owners, impossible


class _Model:
    """The problem in whole numbers.

    Args:
        graph: the numbered problem.
        most: no plan that takes longer is looked for.
        bound: a lower bound on the step time.
    """

    def __init__(self, graph: Graph, most: float, bound: float) -> None:
        self.cp = require_solver()
        self.graph, self.problem = graph, graph.problem
        self.model = self.cp.CpModel()
        unit = time_unit(self.problem)
        self.scale = float(1 / unit) if unit and most / unit < _FINE else _FINE / (most or 1.0)
        self.most = most
        self.high, self.low = self.grid(most), self.grid(bound)
        self.duration = [self.grid(time) for time in graph.duration]
        self.start: list = [None] * graph.size
        self.on: list[dict] = []  # per encode: rank -> whether it is the owner
        self.on_rank: list[list] = [[] for _ in self.problem.rows]  # the intervals of each rank
        self.alike: list[list[int]] = []  # equal encodes, in the order in which they must be ready
        self.step_time = self.model.NewIntVar(self.low, self.high, "")
        self.add_tasks()
        for index in range(graph.encodes):
            self.add_encode(index)
        for intervals in self.on_rank:
            self.model.AddNoOverlap(intervals)
        if self.problem.live_limit is None:
            self.break_symmetry()

    def grid(self, time: float) -> int:
        return int(time * self.scale + 1e-6)

    def interval(self, action: int):
        """Make an action's start and its interval, which ends before the step does."""
        start = self.start[action] = self.model.NewIntVar(0, self.high, "")
        self.model.Add(self.step_time >= start + self.duration[action])
        return self.model.NewFixedSizedIntervalVar(start, self.duration[action], "")

    def end(self, action: int):
        return self.start[action] + self.duration[action]

    def narrow(self, heads: list[float], tails: list[float]) -> None:
        """Give every task the time between what must come before it and what must come behind it."""
        for task, duration in enumerate(self.graph.duration[: self.graph.count]):
            self.model.Add(self.start[task] >= self.grid(heads[task]))
            self.model.Add(self.start[task] <= self.grid(self.most - tails[task] - duration))

    def add_tasks(self) -> None:
        """The LLM: each rank's order, and what tasks need."""
        every = []
        for rank, row in enumerate(self.problem.rows):
            self.on_rank[rank] += [self.interval(task) for task in row]
            for left, right in zip(row, row[1:], strict=False):
                self.model.Add(self.start[right] >= self.end(left))
            every += self.on_rank[rank]
        self.every = every
        for index, task in enumerate(self.problem.tasks):
            for need, delay in task.needs:
                self.model.Add(self.start[index] >= self.end(need) + self.grid(delay))

    def add_encode(self, index: int) -> None:
        """One encode: its owner, its forward before the task it feeds, its backward after the task it follows."""
        encode, forward, backward = self.problem.encodes[index], self.graph.forward(index), self.graph.backward(index)
        ranks = range(self.problem.ranks) if encode.owner is None else (encode.owner,)
        on = {rank: self.model.NewBoolVar("") for rank in ranks}
        self.on.append(on)
        self.model.AddExactlyOne(on.values())
        for action in (forward,) if encode.backward is None else (forward, backward):
            self.every.append(self.interval(action))
            for rank, owns in on.items():
                start, size = self.start[action], self.duration[action]
                self.on_rank[rank].append(self.model.NewOptionalFixedSizedIntervalVar(start, size, owns, ""))
        self.model.Add(self.start[encode.feeds] >= self.arrival(index))
        if encode.backward is not None:
            gradient = self.end(encode.follows) + self.grid(encode.receive) * self.away(index)
            self.model.Add(self.start[backward] >= gradient)

    def add_loads(self) -> None:
        """Let no rank have more work than the step is long: nothing new either, but linear."""
        for rank, row in enumerate(self.problem.rows):
            load = sum(self.duration[task] for task in row)
            for index, on in enumerate(self.on):
                if rank in on:
                    pair = self.duration[self.graph.forward(index)] + self.duration[self.graph.backward(index)]
                    load += pair * on[rank]
            self.model.Add(self.step_time >= load)

    def away(self, index: int):
        """1 if the owner is not the home rank, else 0."""
        return 1 - self.on[index].get(self.problem.homes[index], 0)

    def arrival(self, index: int):
        """When the features are there."""
        send = self.grid(self.problem.encodes[index].send)
        return self.end(self.graph.forward(index)) + send * self.away(index)

    def limit_live(self, limit: int) -> None:
        """Let no rank hold more encodes than the limit."""
        held: list[list] = [[] for _ in self.problem.rows]
        for index, encode in enumerate(self.problem.encodes):
            if not self.duration[self.graph.forward(index)]:
                continue
            home, begin = self.problem.homes[index], self.start[self.graph.forward(index)]
            for rank, owns in self.on[index].items():
                last = self.end(self.graph.backward(index)) if encode.backward is not None else self.start[encode.feeds]
                if encode.backward is None and rank != home:
                    last = self.end(self.graph.forward(index))
                held[rank].append(self.optional(begin, last, owns))
                if rank != home:
                    there = self.end(self.graph.forward(index)) + self.grid(encode.send)
                    held[home].append(self.optional(there, self.start[encode.feeds], owns))
        for intervals in held:
            self.model.AddCumulative(intervals, [1] * len(intervals), limit)

    def optional(self, begin, end, present):
        size = self.model.NewIntVar(0, self.high, "")
        return self.model.NewOptionalIntervalVar(begin, size, end, present, "")

    def minimise(self, rows: Sequence[Sequence[int]], owners: Sequence[int]) -> None:
        """Ask for the shortest step, starting from a plan."""
        if self.problem.ranks > 1:  # says nothing new, but lets the solver see that the ranks together are full
            self.model.AddCumulative(self.every, [1] * len(self.every), self.problem.ranks)
        self.add_loads()
        self.model.Minimize(self.step_time)
        links = [[(need, self.grid(delay)) for need, delay in before] for before in self.graph.links(owners)]
        start, owners = play(rows, links, self.duration).start, list(owners)
        for alike in self.alike:  # swap equal encodes until they come in the order that `break_symmetry` asks for
            slots = []
            for index in alike:
                forward, backward = self.graph.forward(index), self.graph.backward(index)
                away = owners[index] != self.problem.homes[index]
                ready = start[forward] + self.grid(self.problem.encodes[index].send) * away
                slots.append((ready, start[forward], start[backward], owners[index]))
            for index, (_, first, last, owner) in zip(alike, sorted(slots), strict=True):
                owners[index] = owner
                start[self.graph.forward(index)], start[self.graph.backward(index)] = first, last
        for action, variable in enumerate(self.start):
            if variable is not None:
                self.model.AddHint(variable, int(start[action]))
        for owner, on in zip(owners, self.on, strict=True):
            for rank, owns in on.items():
                self.model.AddHint(owns, int(rank == owner))

    def break_symmetry(self) -> None:
        """Equal encodes can be swapped, so let the one that is due first be ready first.

        Pieces of one micro-batch can always be swapped. Encodes of two micro-batches can, if frozen: the plan stays
        legal when the earlier features go to the earlier task. With a backward they cannot: its owner is the same.
        """
        place = {task: index for row in self.problem.rows for index, task in enumerate(row)}
        kinds: dict[tuple, list[int]] = {}
        for index, encode in enumerate(self.problem.encodes):
            same = (encode.feeds, encode.follows) if encode.backward is not None else self.problem.homes[index]
            key = encode.forward, encode.backward, encode.send, encode.receive, encode.owner, same
            kinds.setdefault(key, []).append(index)
        for alike in kinds.values():
            alike.sort(key=lambda index: place[self.problem.encodes[index].feeds])
            for left, right in zip(alike, alike[1:], strict=False):
                self.model.Add(self.arrival(left) <= self.arrival(right))
        self.alike = list(kinds.values())

    def solve(self, time_limit_s: float | None, work_limit: float | None, seed: int) -> tuple:
        """Run the solver: rows (None without a plan), owners, the bound, and whether there is no plan at all."""
        solver = self.cp.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = 1
        solver.parameters.linearization_level = 2
        if work_limit is not None:
            solver.parameters.max_deterministic_time = work_limit
        if time_limit_s is not None:
            solver.parameters.max_time_in_seconds = time_limit_s
        status = solver.Solve(self.model)
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            low = 0.0 if status == self.cp.INFEASIBLE else solver.BestObjectiveBound() / self.scale
            return None, [], low, status == self.cp.INFEASIBLE
        owners = [next(rank for rank, owns in on.items() if solver.Value(owns)) for on in self.on]
        when = [-1 if start is None else solver.Value(start) for start in self.start]
        return self.read(when, owners), owners, solver.BestObjectiveBound() / self.scale, False

    def read(self, when: list[int], owners: list[int]) -> list[list[int]]:
        """Order every rank by the solver's starts; of actions at one time, those without a duration come first."""
        rank_of = list(self.problem.rank_of) + owners + owners
        rows: list[list[int]] = [[] for _ in self.problem.rows]
        place = {task: index for row in self.problem.rows for index, task in enumerate(row)}
        for action in range(self.graph.size):
            if when[action] >= 0:
                rows[rank_of[action]].append(action)
        for row in rows:
            row.sort(key=lambda a: (when[a], when[a] + self.duration[a], place.get(a, -1)))
        return rows
