"""Live bytes of every rank: a table of the peaks, and a figure with a panel per rank in the time of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import Action, B, F, I, W
from hyperparallel.cost import Span, Timeline
from hyperparallel.cost.memory_bytes import Live, peak_of
from hyperparallel.errors import HyperParallelError
from hyperparallel.views.colours import INK, shade
from hyperparallel.views.figure import BOTTOM, LEFT, MAX_ROWS, RIGHT, WIDTH
from hyperparallel.views.sheet import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[Action | None, Live]]
"""What `memory_curve` gives for a rank."""

MB = 1e6
MAX_MOMENTS = 200_000
_KINDS = tuple(one.name for one in fields(Live))
_LLM, _VISION = "#0072b2", "#e69f00"  # as in the figure of the timelines
_LOOKS = {
    "parameters": "#6b6b6b",
    "moments": "#9a9a9a",
    "inputs": "#cfcfcf",
    "activations": _LLM,
    "encoders": _VISION,
    "features": shade(_VISION, F),
    "carries": shade(_LLM, F),
    "gradients": "#009e73",
    "scratch": "#cc79a7",
}
_AFTER = 0.015  # of the step, drawn after it: its end, when gradients are summed and applied, takes no time in a plan
_GAP = 0.14  # inches between panels
_LABEL = 110  # characters that the page is wide enough for


def memory_data(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Say where every rank holds most, as JSON can.

    Args:
        curves: of every rank.

    Returns:
        Per rank: `peak` in bytes, `at`: the action that runs then, or "end" of the step, and `live`: bytes by what
        they are for.
    """
    peaks = [peak_of(curve) for curve in curves]
    return [{"peak": peak.bytes, "at": _name(peak.at), "live": asdict(peak.live)} for peak in peaks]


def memory_table(curves: Sequence[Curve]) -> str:
    """Lay out `memory_data`, in MB of 10^6 bytes; what no rank holds at its peak is left out.

    Args:
        curves: of every rank.

    Returns:
        Lines of text without a last newline.

    Example:
        >>> curve = [(Action(0, F, 0), Live(2_000_000, 4_000_000, activations=30_500_000)), (None, Live(2_000_000))]
        >>> print(memory_table([curve]))
        peak memory of the graph runner, MB, and what it is for
        rank    peak    at   parameters   moments   activations
           0   36.50   0F0         2.00      4.00         30.50
    """
    data = memory_data(curves)
    held = [kind for kind in _KINDS if any(row["live"][kind] for row in data)]
    rows = [["rank", "peak", "at", *held]]
    for rank, row in enumerate(data):
        rows.append([str(rank), _mb(row["peak"]), row["at"], *(_mb(row["live"][kind]) for kind in held)])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["   ".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join(["peak memory of the graph runner, MB, and what it is for", *lines])


def times_of(curve: Curve, row: Sequence[Span], step_time: float) -> list[tuple[float, float]]:
    """Say when the actions of a rank's program run; a message is where the compute action before it ends.

    Args:
        curve: of the rank, in the order of its program.
        row: its compute actions in time, in order.
        step_time: of the plan; there the end of the step is put.

    Returns:
        (start, end) of every moment of the curve.
    """
    spans, clock = iter(row), 0.0
    found = []
    for action, _ in curve:
        if action is not None and action.kind in (F, B, I, W):
            _, start, clock = next(spans)
            found.append((start, clock))
        else:
            clock = step_time if action is None else clock
            found.append((clock, clock))
    return found


def in_time(curve: Curve, times: Sequence[tuple[float, float]]) -> list[tuple[float, Live]]:
    """Put a rank's curve into the time of its plan: between two actions it holds what the first did, but its scratch.

    Args:
        curve: of the rank.
        times: of its moments, see `times_of`.

    Returns:
        (time, what is live from then on), by time, each time once.
    """
    found: dict[float, Live] = {}
    for (action, live), (start, end) in zip(curve, times, strict=True):
        found[start] = live
        if action is not None:
            found[end] = replace(live, scratch=0)
    return sorted(found.items(), key=lambda moment: moment[0])


def render_memory(plan: Plan, timeline: Timeline, curves: Sequence[Curve], path: str | Path, unit: str = "") -> bytes:
    """Draw the live bytes of every rank over time, stacked by what they are for, and mark the peaks.

    Args:
        plan: whose programs the curves follow.
        timeline: of this plan.
        curves: of every rank.
        path: ends in .svg or .png; only the suffix counts.
        unit: of times, such as `ms`; empty when they have none.

    Raises:
        HyperParallelError: matplotlib is missing, another suffix, or too much to draw.

    Returns:
        The content of the file; the same plan gives the same bytes.
    """
    moments = sum(map(len, curves))
    if plan.ranks > MAX_ROWS or moments > MAX_MOMENTS:
        raise HyperParallelError(
            f"{moments} actions on {plan.ranks} ranks are too many for a figure of the memory; at most {MAX_MOMENTS} "
            f"actions, messages included, and {MAX_ROWS} ranks: use fewer, or --memory for the table"
        )
    return picture(lambda make: draw_memory(make, plan, timeline, curves, unit), path)


def draw_memory(make: type[Figure], plan: Plan, timeline: Timeline, curves: Sequence[Curve], unit: str = "") -> Figure:
    """Lay out one panel per rank, all with the same axes; see `render_memory`."""
    held = [kind for kind in _KINDS if any(getattr(live, kind) for curve in curves for _, live in curve)]
    most = max(peak_of(curve).bytes for curve in curves) / MB or 1.0
    panel = max(0.4, min(1.15, 9.0 / plan.ranks))
    top = 0.62
    height = top + plan.ranks * (panel + _GAP) + BOTTOM - _GAP
    drawing = make(figsize=(WIDTH, height))
    _legend(drawing, plan, held)
    step_time = timeline.step_time
    for rank, curve in enumerate(curves):
        y = height - top - (rank + 1) * panel - rank * _GAP
        inside = (LEFT / WIDTH, y / height, (WIDTH - LEFT - RIGHT) / WIDTH, panel / height)
        axes = drawing.add_axes(inside)
        times = times_of(curve, timeline.spans[rank], step_time)
        _panel(axes, rank, most, step_time, last=rank == plan.ranks - 1, unit=unit)
        _stack(axes, in_time(curve, times), held, step_time)
        _mark(axes, curve, times)
    return drawing


def _legend(drawing: Figure, plan: Plan, held: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    label = f"live bytes of every rank: {plan.schedule}"
    drawing.text(
        LEFT / WIDTH,
        1 - 0.12 / drawing.get_figheight(),
        label if len(label) <= _LABEL else label[: _LABEL - 1] + "…",
        fontweight="bold",
        color=INK,
        va="top",
        parse_math=False,
    )
    drawing.legend(
        handles=[Patch(label=kind, facecolor=_LOOKS[kind]) for kind in held],
        loc="upper left",
        bbox_to_anchor=(LEFT / WIDTH, 1.0 - 0.3 / drawing.get_figheight()),
        ncols=len(held),
        frameon=False,
        borderaxespad=0.0,
        borderpad=0.2,
        handlelength=1.6,
        columnspacing=1.6,
        fontsize=8.5,
    )


def _panel(axes: Axes, rank: int, most: float, step_time: float, last: bool, unit: str) -> None:
    """Set up the axes of a rank: time to the right, MB up."""
    axes.set_xlim(0, (step_time or 1.0) * (1 + _AFTER))
    axes.set_ylim(0, 1.12 * most)
    axes.locator_params(axis="y", nbins=3)
    axes.set_ylabel(f"rank {rank}\nMB", fontsize=8)
    axes.tick_params(axis="y", labelsize=7.5, length=2.5)
    axes.tick_params(axis="x", labelsize=8, labelbottom=last, length=3.5 if last else 0)
    axes.grid(axis="both", color="#cfcfcf", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if last:
        axes.set_xlabel(f"time ({unit})" if unit else "time", fontsize=8.5)


def _stack(axes: Axes, moments: Sequence[tuple[float, Live]], held: Sequence[str], step_time: float) -> None:
    """Draw the bytes of a rank, what lasts longest at the bottom."""
    times = [time for time, _ in moments] + [step_time * (1 + _AFTER)]
    live = [one for _, one in moments] + [moments[-1][1]]
    floor = [0.0] * len(times)
    for kind in held:
        top = [low + getattr(one, kind) / MB for low, one in zip(floor, live, strict=True)]
        axes.fill_between(times, floor, top, step="post", facecolor=_LOOKS[kind], linewidth=0)
        floor = top
    axes.axvline(step_time, color=INK, linewidth=0.8)


def _mark(axes: Axes, curve: Curve, times: Sequence[tuple[float, float]]) -> None:
    """Put a dot where a rank holds most, and say to the right of it which action runs and how much that is."""
    peak = peak_of(curve)
    start, _ = times[[action for action, _ in curve].index(peak.at)]
    axes.plot([start], [peak.bytes / MB], marker="o", markersize=3.5, color=INK, clip_on=False, zorder=4)
    axes.annotate(
        f"peak {peak.bytes / MB:,.1f} MB\nat {_name(peak.at)}",
        (1, 1),
        (6, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=INK,
    )


def _name(action: Action | None) -> str:
    return "end" if action is None else str(action)


def _mb(size: int) -> str:
    return f"{size / MB:.2f}"
