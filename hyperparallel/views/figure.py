"""The figure: plans under one time axis, a row per rank, to see at once which is faster and why.

In a row: bars in the hue of their part and the lightness of their kind, grey where the rank is idle, and under them
the live activations as a curve. Needs the extra `figure`; matplotlib is imported when a figure is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.cost import Costs, Timeline
from hyperparallel.errors import HyperParallelError
from hyperparallel.views.colours import INK, hues
from hyperparallel.views.files import write_files
from hyperparallel.views.rows import draw_rows, legend_handles
from hyperparallel.views.sheet import check_suffix, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARS, MAX_ROWS = 400_000, 256
"""More than this take minutes to draw, or make a picture taller than viewers take."""

WIDTH, LEFT, RIGHT, BOTTOM, TITLE, GAP = 12.0, 0.75, 1.4, 0.5, 0.3, 0.16  # inches
INSIDE = WIDTH - LEFT - RIGHT


class Entry(NamedTuple):
    """One plan of a figure."""

    label: str
    plan: Plan
    costs: Costs
    timeline: Timeline


def figure(entries: Sequence[tuple[str, Plan, Costs, Timeline]], path: str | Path, unit: str = "") -> None:
    """Draw plans and write the file; the same plans give the same bytes.

    Args:
        entries: (label, plan, costs, timeline) of each plan, from top to bottom; the first is what others are
            compared with.
        path: ends in .svg or .png.
        unit: of all times, such as `ms`; empty when they have none.

    Raises:
        HyperParallelError: matplotlib is missing, another suffix, too much to draw, or the path cannot be written.
    """
    write_files({path: render(entries, path, unit)})


def render(entries: Sequence[tuple[str, Plan, Costs, Timeline]], path: str | Path, unit: str = "") -> bytes:
    """Draw plans and return the content of the file.

    Args:
        entries, path, unit: see `figure`; of the path only the suffix counts.
    """
    check_suffix(path)
    rows = [Entry(*entry) for entry in entries]
    bars = sum(len(row) for entry in rows for row in entry.timeline.spans)
    ranks = sum(entry.plan.ranks for entry in rows)
    if bars > MAX_BARS or ranks > MAX_ROWS:
        raise HyperParallelError(
            f"{bars} actions on {ranks} ranks are too many for a figure; at most {MAX_BARS} actions and {MAX_ROWS} "
            "ranks, all plans together: use fewer"
        )
    return picture(lambda make: _draw(make, rows, unit), path)


def _draw(make: type[Figure], entries: list[Entry], unit: str) -> Figure:
    """Lay out blocks from top to bottom, all with the same time axis."""
    colours = hues([entry.plan for entry in entries])
    longest = max(entry.timeline.step_time for entry in entries) or 1.0
    peak = max(max(entry.timeline.peak_live, default=0) for entry in entries) or 1
    handles = legend_handles([entry[1:] for entry in entries], colours, longest, 72 * INSIDE)
    lines = -(-len(handles) // 6)
    columns = -(-len(handles) // lines)
    top = 0.08 + 0.21 * lines
    heights = [entry.plan.ranks * _row_height(entry.plan.ranks) for entry in entries]
    height = top + BOTTOM + sum(heights) + len(entries) * TITLE + (len(entries) - 1) * GAP
    drawing = make(figsize=(WIDTH, height))
    drawing.legend(
        # A legend is filled column by column; read row by row, the kinds of a part stand together.
        handles=[handle for column in range(columns) for handle in handles[column::columns]],
        loc="upper left",
        bbox_to_anchor=(LEFT / WIDTH, 1.0),
        ncols=columns,
        frameon=False,
        borderaxespad=0.3,
        borderpad=0.2,
        handlelength=1.6,
        columnspacing=1.6,
        fontsize=8.5,
    )
    y = height - top
    for index, (entry, block) in enumerate(zip(entries, heights, strict=True)):
        y -= TITLE + block
        axes = drawing.add_axes((LEFT / WIDTH, y / height, INSIDE / WIDTH, block / height))
        _frame(axes, entry.plan.ranks, longest, last=index == len(entries) - 1, unit=unit)
        draw_rows(axes, entry.plan, entry.costs, entry.timeline, colours, peak)
        _title(axes, entry, entries[0].timeline.step_time, unit, compared=index > 0)
        y -= GAP
    return drawing


def _row_height(ranks: int) -> float:
    """Inches of a row: comfortable for few ranks, and a figure that stays on a page for many."""
    return max(0.2, min(0.46, 3.7 / ranks))


def _frame(axes: Axes, ranks: int, longest: float, last: bool, unit: str) -> None:
    """Set up the axes of a block: time to the right, rank 0 at the top."""
    axes.set_xlim(0, longest)
    axes.set_ylim(ranks + 0.04, 0)
    axes.set_yticks([rank + 0.38 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8, labelbottom=last, length=3.5 if last else 0)
    axes.grid(axis="x", color="#cfcfcf", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if last:
        axes.set_xlabel(f"time ({unit})" if unit else "time", fontsize=8.5)


def _title(axes: Axes, entry: Entry, first: float, unit: str, compared: bool) -> None:
    """Write label, step time and what is gained; mark the step's end, and the gain where there is room for it."""
    step, ranks = entry.timeline.step_time, entry.plan.ranks
    share = 100 * sum(entry.timeline.bubble) / (ranks * step) if step else 0.0
    change = f" ({_percent(step, first)})" if compared and first else ""
    says = f"step time {step:.6g} {unit}".rstrip() + f"{change}, idle {share:.0f} %"
    points = 72 * INSIDE
    room = int((points - 5.6 * len(says)) / 6.9)
    label = entry.label if len(entry.label) <= room else entry.label[: room - 1] + "…"
    above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(label, (0, 1), (0, 4), fontweight="bold", color=INK, parse_math=False, **above)
    axes.annotate(says, (1, 1), (0, 4), ha="right", color=INK, **above)
    for at, word in ((34, "idle"), (74, "peak live")):
        axes.annotate(word, (1, 1), (at, 4), ha="right", fontsize=7.5, color="#555555", **above)
    axes.axvline(step, color=INK, linewidth=1.4, clip_on=False)
    gain = (first - step) / axes.get_xlim()[1] * points
    if compared and gain > 50:
        middle = ranks / 2
        arrow = {"arrowstyle": "<->", "color": INK, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (step, middle), (first, middle), arrowprops=arrow)
        words: dict[str, Any] = {"ha": "center", "va": "bottom", "fontweight": "bold", "color": INK}
        place = ((step + first) / 2, middle)
        axes.annotate(_percent(step, first), place, (0, 4), textcoords="offset points", **words)


def _percent(step: float, first: float) -> str:
    return f"{100 * (step - first) / first:+.0f} %".replace("-", "−")
