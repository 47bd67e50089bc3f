"""The planner's problem: encodes to be placed between the tasks of an LLM whose order is fixed.

Everything is a number here, so the engine knows neither plans nor models. Ranks are rows of tasks, an encode is a
forward and perhaps a backward on one rank, messages are delays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hyperparallel.errors import ScheduleError

Action = tuple[str, int]  # ("T", task), ("F", encode) or ("B", encode)
Rows = tuple[tuple[Action, ...], ...]


class LimitError(ScheduleError):
    """A limit on live encodes that no plan keeps, or on the planner's time; says what would do."""


class Task(NamedTuple):
    """One forward or backward of a slab of the LLM.

    Args:
        duration: at least 0.
        needs: (task, delay): it starts no sooner than `delay` after that task's end. The order of its own rank is
            not listed.
    """

    duration: float
    needs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Encode:
    """The encoder's work for one piece of a micro-batch.

    Args:
        forward: duration, at least 0.
        backward: duration, None when the encoder is frozen.
        feeds: the task that needs the features; its rank is the encode's home.
        follows: the task whose end brings the gradient; None when the encoder is frozen.
        send: delay of the features when the owner is not the home rank.
        receive: delay of the gradient when the owner is not the home rank.
        owner: the rank, None for the planner to choose.
        group: micro-batch.
    """

    forward: float
    backward: float | None
    feeds: int
    follows: int | None = None
    send: float = 0.0
    receive: float = 0.0
    owner: int | None = None
    group: int = 0


@dataclass(frozen=True)
class Problem:
    """An LLM's order and the encodes to place.

    Args:
        tasks: the LLM's work.
        rows: per rank, its tasks in order.
        encodes: what is to be placed.
        live_limit: most encodes a rank may hold at a time, None for no limit.
    """

    tasks: tuple[Task, ...]
    rows: tuple[tuple[int, ...], ...]
    encodes: tuple[Encode, ...]
    live_limit: int | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks P."""
        return len(self.rows)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """Per task, its rank."""
        ranks = [0] * len(self.tasks)
        for rank, row in enumerate(self.rows):
            for task in row:
                ranks[task] = rank
        return tuple(ranks)

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """Per encode, the rank of the task it feeds."""
        return tuple(self.rank_of[encode.feeds] for encode in self.encodes)


@dataclass(frozen=True)
class Filling:
    """A plan: per rank a static order, with its certificate.

    Args:
        rows: per rank, ("T", task), ("F", encode) and ("B", encode) in order.
        owners: per encode, its rank.
        step_time: end of the last action when every action starts as early as the order allows.
        bound: no plan with this LLM order, and these owners where given, is faster.
        proven: the step time is the bound, up to rounding.
        engine: which engine found it: "list", "local search" or "exact".
    """

    rows: Rows
    owners: tuple[int, ...]
    step_time: float
    bound: float
    proven: bool
    engine: str

    @property
    def gap(self) -> float:
        """How much slower than the bound the plan is at most, as a fraction of the bound."""
        return self.step_time / self.bound - 1.0 if self.bound else 0.0
