"""The report of a plan: schedule, picture, step time against its bound, and a table by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hyperparallel.algebra import Plan
from hyperparallel.cost import Costs, Timeline, lower_bound
from hyperparallel.views.grid import grid, number


def report(
    plan: Plan,
    costs: Costs,
    timeline: Timeline,
    unit: str = "",
    width: int | None = None,
    planned: Planned | None = None,
) -> str:
    """Say what a plan does and what it costs.

    Args:
        plan: a valid plan.
        costs: what the timeline was simulated with.
        timeline: of this plan.
        unit: printed after times, such as `ms`; empty when the costs have none.
        width: see `grid`.
        planned: a planner's certificate.

    Returns:
        Lines of text without a last newline.
    """
    replicated = [stage for stage in range(plan.placement.stages) if _owner(plan, stage) is not None]
    bound = lower_bound(plan, costs)
    return "\n".join(
        [
            f"schedule     {plan.schedule}",
            f"size         P = {_count(plan.ranks, 'rank')}, M = {_count(plan.micro_batches, 'micro-batch', 'es')}",
            *_stages(plan),
            "",
            grid(timeline, width, replicated),
            "",
            f"step time    {_time(timeline.step_time, unit)}",
            f"lower bound  {_time(bound, unit)}{_above(timeline.step_time, bound)}",
            *_planned(plan, planned),
            "",
            *_table(timeline, unit, None if planned is None else planned.held),
        ]
    )


class Planned(Protocol):
    """What is printed of a planner's certificate."""

    held: Sequence[int]
    """Per rank, the most encodes that it holds at a time."""
    waiting: int
    """The most features that wait for the backbone at a time."""


def _planned(plan: Plan, planned: Planned | None) -> list[str]:
    if planned is None:
        return []
    encodes = _count(planned.waiting, "piece" if plan.placement.split > 1 else "encode")
    return [f"planned      {planned}; at most {encodes} waiting for the backbone"]


def _owner(plan: Plan, stage: int) -> tuple[int, ...] | None:
    return plan.placement.owners[plan.placement.region_of(stage)]


def _count(value: int, noun: str, plural: str = "s") -> str:
    return f"{value} {noun}{plural if value > 1 else ''}"


def _stages(plan: Plan) -> list[str]:
    """Say which stage numbers belong to which region."""
    lines = []
    for index, region in enumerate(plan.regions):
        stages = plan.placement.region_stages(index)
        trainable = any(plan.placement.gates[stage].receives_gradient for stage in stages)
        words = ["+".join(region.expr.parts) + _chunk(plan, index), region.layout.value.lower()]
        words += [f"from rank {plan.ranks - 1} back to rank 0"] * (region.reflected and plan.ranks > 1)
        words += ["forward only"] * (not trainable)
        first, last = min(stages), max(stages)
        lines.append(f"{'' if index else 'stages':13}{first}{f'-{last}' * (last > first)}: {', '.join(words)}")
    return lines


def _chunk(plan: Plan, index: int) -> str:
    """Say which of several regions over the same parts this is."""
    alike = [i for i, region in enumerate(plan.regions) if region.expr.parts == plan.regions[index].expr.parts]
    return f" {alike.index(index) + 1} of {len(alike)}" if len(alike) > 1 else ""


def _time(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip()


def _above(step_time: float, bound: float) -> str:
    """Say how far a step time is above its bound."""
    if not bound:
        return ""
    percent = 100 * (step_time - bound) / bound
    return " (reached)" if percent < 0.05 else f" (step time is {percent:.1f} % above it)"


def _table(timeline: Timeline, unit: str, held: Sequence[int] | None) -> list[str]:
    """Lay out busy, bubble, peak live, spill and encodes held of every rank, in columns aligned to the right."""
    step_time = timeline.step_time
    rows: list[Sequence[str]] = [("rank", "busy", "bubble", "bubble %", "peak live", "spill")]
    for rank, (busy, bubble) in enumerate(zip(timeline.busy, timeline.bubble, strict=True)):
        share = f"{100 * bubble / step_time:.1f}" if step_time else "0.0"
        live, spill = str(timeline.peak_live[rank]), number(timeline.spill[rank])
        rows.append((str(rank), number(busy), number(bubble), share, live, spill))
    if held is not None:
        rows = [(*row, cell) for row, cell in zip(rows, ["encodes held", *map(str, held)], strict=True)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    if unit:
        lines[0] += f"   (times in {unit})"
    return lines
