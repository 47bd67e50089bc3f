"""The timeline: when every action of a plan runs, by longest path.

Sends are buffered and messages do not occupy the compute track: a compute action starts when its rank is free
and what it needs has arrived. Source: design, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.algebra.placement import Node, Placement
from hyperparallel.algebra.program import SEND_B, SEND_F, Action, B, F, I, Piece, Program, Unit, W
from hyperparallel.cost.memory import peak_live
from hyperparallel.cost.weights import Costs


class Span(NamedTuple):
    """One compute action in time."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A plan in time; times are in the unit of the costs.

    Args:
        spans: per rank, its compute actions in order.
        step_time: end of the last action.
        busy: per rank, the time it computes.
        bubble: per rank, step_time - busy.
        peak_live: per rank, the most (stage, micro-batch) pairs whose backward is still to come.
        warmup_idle: per rank, w_r: when the first micro-batch could reach its backbone slab at the earliest.
        encode_time: per rank, E_r: its forward time of Replicated regions.
        spill: per rank, max(0, E_r - w_r): encode time that the natural warmup idle does not hide.
    """

    spans: tuple[tuple[Span, ...], ...]
    step_time: float
    busy: tuple[float, ...]
    bubble: tuple[float, ...]
    peak_live: tuple[int, ...]
    warmup_idle: tuple[float, ...]
    encode_time: tuple[float, ...]
    spill: tuple[float, ...]


def simulate(plan: Plan, costs: Costs) -> Timeline:
    """Compute the timeline of a plan.

    Args:
        plan: gives every rank's order.
        costs: durations of its actions and messages.

    Returns:
        The timeline.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 4}), ranks=4, micro_batches=8)
        >>> costs = Costs({(stage, kind): time for stage in range(4) for kind, time in (("F", 4.0), ("B", 8.0))})
        >>> simulate(plan, costs).step_time
        132.0
    """
    spans = play(plan.compute, plan.placement, costs)
    step_time = max((row[-1].end for row in spans if row), default=0.0)
    busy = tuple(sum(span.end - span.start for span in row) for row in spans)
    idle, encode = _warmup_idle(plan, costs), _encode_time(plan, spans)
    return Timeline(
        spans=spans,
        step_time=step_time,
        busy=busy,
        bubble=tuple(step_time - time for time in busy),
        peak_live=peak_live(plan.compute, plan.placement),
        warmup_idle=idle,
        encode_time=encode,
        spill=tuple(max(0.0, e - w) for e, w in zip(encode, idle, strict=True)),
    )


def play(compute: Sequence[Program], placement: Placement, costs: Costs) -> tuple[tuple[Span, ...], ...]:
    """Run all ranks forward in time.

    Args:
        compute: per rank, compute actions in order; must be free of circular waits (`validate`).
        placement: gives the paths.
        costs: durations.

    Returns:
        Per rank, every action with start and end.
    """
    ranks, neighbours = placement.ranks, placement.neighbours
    times = cache(partial(costs.times, micro_batches=placement.micro_batches))

    def time(stage: int, kind: str, unit: Unit) -> float:
        return costs.duration(Action(stage, kind, unit)) if isinstance(unit, Piece) else times(stage, kind)[unit]

    features: dict[Node, float] = {}  # by producer: when what its F made is where it is needed
    gradients: dict[Node, float] = {}  # by consumer: when its gradient is there
    spans: list[list[Span]] = [[] for _ in range(ranks)]
    awake = list(range(ranks))
    position, clock = [0] * ranks, [0.0] * ranks
    while awake:
        rank = awake.pop()
        program = compute[rank]
        while position[rank] < len(program):
            action = program[position[rank]]
            stage, kind, mb = action
            before, after = neighbours[stage, mb]
            start = clock[rank]
            if kind == F:
                ready = [features.get(node) for node in before]
            else:
                ready = [] if after is None or kind == W else [gradients.get((stage, mb))]
            if None in ready:
                break
            start = max([start, *ready])
            end = clock[rank] = start + time(stage, kind, mb)
            spans[rank].append(Span(action, start, end))
            position[rank] += 1
            if kind == F and after is not None:
                crosses = (after[0] - stage) % ranks
                features[stage, mb] = end + (time(stage, SEND_F, mb) if crosses else 0.0)
                awake.append(after[0] % ranks)
            elif kind in (B, I):
                for left, unit in before:
                    crosses = (left - stage) % ranks
                    gradients[left, unit] = end + (time(stage, SEND_B, unit) if crosses else 0.0)
                    awake.append(left % ranks)
    assert all(position[rank] == len(compute[rank]) for rank in range(ranks)), "simulated an invalid plan"
    return tuple(map(tuple, spans))


def _warmup_idle(plan: Plan, costs: Costs) -> tuple[float, ...]:
    """w_r: upstream forwards of micro-batch 0, and their messages, before rank r's first Sharded stage."""
    idle, clock = [0.0] * plan.ranks, 0.0
    seen: set[int] = set()
    for stage in plan.placement.path(0):
        if plan.placement.owners[plan.placement.region_of(stage)] is not None:
            continue
        rank = plan.placement.rank_of(stage)
        if rank not in seen:
            idle[rank] = clock
            seen.add(rank)
        clock += costs.duration(Action(stage, F, 0))
        if plan.ranks > 1:
            clock += costs.duration(Action(stage, SEND_F, 0))
    return tuple(idle)


def _encode_time(plan: Plan, spans: Sequence[Sequence[Span]]) -> tuple[float, ...]:
    """E_r: forward time of the Replicated regions that rank r owns."""
    replicated = [region for region, owner in enumerate(plan.placement.owners) if owner is not None]
    encodes = {stage for region in replicated for stage in plan.placement.region_stages(region)}
    return tuple(
        sum(end - start for (stage, kind, _), start, end in row if kind == F and stage in encodes) for row in spans
    )
