"""Fill the bubbles: place encodes between the tasks of an LLM's own order, with a certificate.

Engines, from fast to thorough: a list schedule; local search from the best of those; OR-Tools' CP-SAT. `auto` goes on
to the next as long as the plan is not proven optimal and the problem is not too large.
"""

from __future__ import annotations

import time

from hyperparallel.errors import ScheduleError
from hyperparallel.planner import exact
from hyperparallel.planner.bounds import lower_bound
from hyperparallel.planner.limited import limited_plan
from hyperparallel.planner.list_plan import Plan, list_plan
from hyperparallel.planner.list_schedule import ListScheduler
from hyperparallel.planner.live import keeps_limit, most_waiting, peak_live
from hyperparallel.planner.pace_plans import tightened
from hyperparallel.planner.play import Graph, Played, play
from hyperparallel.planner.problem import Filling, Problem, Rows
from hyperparallel.planner.search import improve
from hyperparallel.planner.settle import settle

ENGINES = ("auto", "list", "search", "exact")
_ROUNDING = 1e-6
_LIST_WORK = 3000  # actions that list schedules place: 5 ms on one core
_LARGEST = 6000  # intervals that are worth giving to the solver
_SEARCH_SHARE = 0.3  # of the limits, in "auto" and "exact"
_SOLVER_WORK = 0.25  # of the solver's deterministic time to a second, about
_MOVES = 60_000  # actions that local search moves past in a second, about; the unit of `work_limit`


def fill(
    problem: Problem,
    *,
    time_limit_s: float = 10.0,
    work_limit: float | None = None,
    seed: int = 0,
    engine: str = "auto",
    start: Rows | None = None,
) -> Filling:
    """Place all encodes, so that the last action ends as early as can be found.

    Args:
        problem: the LLM's order and the encodes.
        time_limit_s: seconds of the clock for search and solver together; not looked at when `work_limit` is given.
        work_limit: bounds them by work instead, about seconds; the same input then gives the same plan.
        seed: of search and solver.
        engine: "auto", "list" (milliseconds, always the same plan), "search" or "exact".
        start: a plan of the same problem that the result must not be slower than.

    Raises:
        ScheduleError: an unknown engine, "exact" without OR-Tools, or a `start` that is no plan of this problem.
        LimitError: no plan keeps the problem's live limit.

    Returns:
        The plan, with its bound; without a live limit never slower than the paper's placement (`warmup`, round robin).

    Example:
        >>> from hyperparallel.planner.grid import one_f_one_b
        >>> filling = fill(one_f_one_b(4, [12.0] * 8, [None] * 8))
        >>> filling.step_time, filling.bound, filling.proven
        (144.0, 144.0, True)
    """
    if engine not in ENGINES:
        raise ScheduleError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    if engine == "exact":
        exact.require_solver()
    return _Fill(problem, time_limit_s, work_limit, seed, engine, start).result()


class _Fill:
    """One call of `fill`."""

    def __init__(self, problem: Problem, time_limit_s, work_limit, seed: int, engine: str, start: Rows | None) -> None:
        self.began = time.monotonic()
        self.problem, self.graph, self.seed, self.engine = problem, Graph(problem), seed, engine
        self.time_limit, self.work_limit = time_limit_s, work_limit
        limit = _LIST_WORK if work_limit is None else min(_LIST_WORK, int(work_limit * _MOVES))
        self.plan = list_plan(self.graph, limit if engine == "list" else None)
        self.found_by = "list"
        if start is not None:
            self.take_start(start)
        if problem.live_limit is not None:
            self.plan = limited_plan(self.graph, self.plan)
        self.bound = ListScheduler(self.graph).low
        if not self.proven:
            self.polish()
        if not self.proven and engine != "list" and problem.live_limit is None:
            quick, self.plan = self.plan, list_plan(self.graph)
            self.polish()
            self.plan = min(self.plan, quick, key=lambda plan: plan.step_time)

    @property
    def proven(self) -> bool:
        return self.plan.step_time <= self.bound * (1 + _ROUNDING)

    def allowed(self, rows: list[list[int]], owners: list[int]) -> bool:
        return keeps_limit(self.graph, rows, owners)

    def take_start(self, start: Rows) -> None:
        """Start from a given plan if it is the better one."""
        rows = self.graph.number(start)
        owners = self.graph.owners(rows)
        played = play(rows, self.graph.links(owners), self.graph.duration)
        if played is None:
            raise ScheduleError("start: its actions wait for each other in a circle; give a plan of the same problem")
        if played.step_time < self.plan.step_time:
            self.plan = Plan(played.step_time, rows, owners)

    def result(self) -> Filling:
        if self.engine != "list" and not self.proven:
            self.bound = max(self.bound, lower_bound(self.problem, self.plan.step_time))
            if not self.proven:
                self.search()
            if self.engine != "search" and not self.proven and self.solvable():
                self.solve()
        self.settle()
        bound = min(self.bound, self.plan.step_time)
        rows, owners = self.graph.name(self.plan.rows), tuple(self.plan.owners)
        return Filling(rows, owners, self.plan.step_time, bound, self.proven, self.found_by)

    def polish(self) -> None:
        """A few moves of local search: a small problem gains, a large one has none to spare in its milliseconds."""
        self.improve(max(0, 4000 // self.graph.actions - 20), None, self.found_by)

    def search(self) -> None:
        share = 1.0 if self.engine == "search" or not self.solvable() else _SEARCH_SHARE
        if self.work_limit is not None:
            self.improve(int(share * self.work_limit * _MOVES / self.graph.actions), None, "local search")
        else:
            self.improve(10**9, self.began + share * self.time_limit, "local search")

    def improve(self, moves: int, until: float | None, name: str) -> None:
        allowed = self.allowed if self.problem.live_limit is not None else None
        rows, owners, step_time = improve(
            self.graph,
            self.plan.rows,
            self.plan.owners,
            self.bound,
            moves=moves,
            until=until,
            seed=self.seed,
            allowed=allowed,
        )
        if step_time < self.plan.step_time:
            self.plan, self.found_by = Plan(step_time, rows, owners), name

    def solvable(self) -> bool:
        """Say whether the solver is there and the problem small enough for it."""
        size = self.graph.count + (self.graph.actions - self.graph.count) * self.problem.ranks
        return (self.engine == "exact" or size <= _LARGEST) and exact.solver_available()

    def solve(self) -> None:
        left = work = None
        if self.work_limit is None:
            left = max(0.1, self.time_limit - (time.monotonic() - self.began))
        else:
            work = (1.0 - _SEARCH_SHARE) * self.work_limit * _SOLVER_WORK
        solved = exact.solve(
            self.graph,
            self.plan.rows,
            self.plan.owners,
            self.bound,
            time_limit_s=left,
            work_limit=work,
            seed=self.seed,
        )
        self.bound = max(self.bound, solved.bound)
        played = play(solved.rows, self.graph.links(solved.owners), self.graph.duration)
        if played and played.step_time < self.plan.step_time and self.allowed(solved.rows, solved.owners):
            self.plan, self.found_by = Plan(played.step_time, solved.rows, solved.owners), "exact"

    def settle(self) -> None:
        """Let nothing wait, and nothing be kept for a backward, longer than the step time asks for."""
        graph = self.graph
        if not graph.encodes:
            return
        pieces = graph.encodes / len({encode.group for encode in self.problem.encodes})
        waits = most_waiting(graph, self.plan.owners, self.played()) > 3 * self.problem.ranks * pieces
        many = max(peak_live(graph, self.plan.owners, self.played())) > 4 * self.problem.ranks * pieces
        if many and self.problem.live_limit is None:
            self.plan = tightened(graph, self.plan, int(4 * self.problem.ranks * pieces))
        if self.engine == "list" and not waits and not many:
            return
        rows = settle(graph, self.plan.rows, self.plan.owners)
        if self.problem.live_limit is None or self.allowed(rows, self.plan.owners):
            step_time = play(rows, graph.links(self.plan.owners), graph.duration).step_time
            self.plan = Plan(step_time, rows, self.plan.owners)

    def played(self) -> Played:
        return play(self.plan.rows, self.graph.links(self.plan.owners), self.graph.duration)
