"""Why the best row of a search wins, in one line made of its numbers."""

from __future__ import annotations

from hyperparallel.algebra.program import F
from hyperparallel.errors import ScheduleError
from hyperparallel.planner.choose import Found
from hyperparallel.planner.rows import Job, Row, text_only

PAYS = 0.01
"""Transposing that gains less than this share of the step is said to hardly pay."""


def explain(job: Job, found: Found, unit: str = "ms") -> str:
    """Compare the best row with the best of the other family.

    Args:
        job: that was searched.
        found: rows of it.
        unit: of times.

    Returns:
        A line that says whether transposing pays, and where its gain or loss comes from.
    """
    inline, transposed = (family[0] if family else None for family in (found.inline, found.transposed))
    if transposed is None:
        why = "no transposed line was tried" if not found.excluded else "no transposed line stays within the memory"
        return f"inline: {why}{_excluded(found, unit)}"
    if inline is None:
        return f"transposing: no inline line stays within the memory; {_filled(job, transposed, unit)}"
    slower = inline.step_time / transposed.step_time - 1
    reduced = _reduced(inline, transposed, unit)
    if slower > 0:
        rival = f"the fastest inline, {inline.line} with {inline.sizes}, is {100 * slower:.2g} % slower"
        if slower >= PAYS:
            return f"transposing pays: it {_filled(job, transposed, unit)}; {rival}{reduced}"
        return f"transposing hardly pays: {rival}; {_share(transposed)}{reduced}"
    lost = 100 * (transposed.step_time / inline.step_time - 1)
    behind = f"is {lost:.2g} % slower" if lost >= 0.01 else "takes the same time"
    alone = "one rank has no bubble to fill; " * (inline.layout.ranks == 1)
    return (
        f"transposing does not pay: {alone}the fastest transposed, {transposed.line} with {transposed.sizes}, "
        f"{behind}; {_share(transposed)}{reduced}"
    )


def encode_times(row: Row) -> list[float]:
    """Sum, for every rank, what its transposed region takes."""
    first = set(range(row.plan.ranks)) if row.plan.placement.owners[0] is not None else set()
    return [sum(span.end - span.start for span in spans if span.action.stage in first) for spans in row.timeline.spans]


def _filled(job: Job, row: Row, unit: str) -> str:
    """Say how much of the encodes runs in time that the backbone alone leaves idle, over all ranks."""
    encodes = encode_times(row)
    moved = f"takes {_time(sum(encodes) - encodes[0])} of {_time(sum(encodes))} {unit} of encodes off rank 0"
    try:
        alone = text_only(job, row.layout, row.base).timeline
    except ScheduleError:
        return moved
    idle = sum(alone.bubble)
    filled = sum(encodes) - row.plan.ranks * (row.timeline.step_time - alone.step_time)
    return f"{moved} and fills {_time(max(0.0, filled))} of the {_time(idle)} {unit} that the backbone alone idles"


def _share(row: Row) -> str:
    """Say how much of the computing is transposed."""
    busy, encodes = sum(row.timeline.busy), sum(encode_times(row))
    kinds = {span.action.kind for spans in row.timeline.spans for span in spans if span.action.stage < row.plan.ranks}
    what = "forward only" if kinds <= {F} else "forward and backward"
    return f"what is transposed, {what}, is {100 * encodes / busy if busy else 0.0:.1f} % of the computing"


def _reduced(inline: Row, transposed: Row, unit: str) -> str:
    """Say what sums of gradients add, where it differs."""
    more = transposed.reduce - inline.reduce
    if abs(more) < 1e-3 * transposed.step_time:
        return ""
    pipeline = (inline.step_time - inline.reduce) / (transposed.step_time - transposed.reduce) - 1
    without = f"{100 * abs(pipeline):.2g} % {'slower' if pipeline >= 0 else 'faster'}"
    return (
        f"; gradients are summed in {_time(transposed.reduce)} {unit} against {_time(inline.reduce)} {unit} inline, "
        f"without these sums inline would be {without}"
    )


def _excluded(found: Found, unit: str) -> str:
    """Name the fastest plan that the memory limit excludes."""
    if found.over is None:
        return ""
    over = found.over
    return f" (the fastest that does not, {over.line} with {over.sizes}, would take {_time(over.step_time)} {unit})"


def _time(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
