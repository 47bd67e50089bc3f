"""The rows of one plan in the figure: bars, micro-batch numbers, live curve, and each rank's numbers beside it.

Where most bars are thinner than a point, columns with the shares of their time stand for them (see `stacked.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hyperparallel.algebra import Plan
from hyperparallel.algebra.program import B, F, W
from hyperparallel.cost import Costs, Span, Timeline
from hyperparallel.views.colours import BUBBLE, INK, KINDS, LIVE, ink, shade, shares
from hyperparallel.views.live import live_curve
from hyperparallel.views.stacked import Look, highest, stack

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_TOP, _BAR, _LIVE, _END = 0.06, 0.62, 0.74, 0.97  # of a row: bars from _TOP, _BAR high; curve from _END up to _LIVE
_THIN, _STACKED = 3.0, 1.2  # points: narrower bars get no border; narrower ones are stacked
_COLUMN = 4.0  # points of a stacked column
_DIGIT = 0.64  # width of a character in font sizes


class Canvas(NamedTuple):
    """Where rows are drawn, and in which colours and sizes."""

    axes: Axes
    split: dict[int, dict[str, list[tuple[str, float]]]]
    """stage -> F or B -> (part, share), see `colours.shares`."""
    colours: dict[str, str]
    longest: float
    """Time at the right end."""
    points: float
    """Width."""
    font: float
    """Size of micro-batch numbers."""
    peak: int
    """Live count that fills the height of the curve."""


def draw_rows(axes: Axes, plan: Plan, costs: Costs, timeline: Timeline, colours: dict[str, str], peak: int) -> None:
    """Draw all ranks of a plan.

    Args:
        axes: time to the right, row of rank r from y = r to r + 1, limits set.
        plan, costs, timeline: what to draw.
        colours: hue of every part.
        peak: live count that fills the height of the curve.
    """
    extent, to_points = axes.get_window_extent(), 72 / axes.figure.dpi
    font = min(7.5, 0.8 * _BAR * extent.height * to_points / plan.ranks)
    split = {stage: shares(plan, costs, stage) for stage in range(plan.placement.stages)}
    canvas = Canvas(axes, split, colours, axes.get_xlim()[1], extent.width * to_points, font, peak)
    later, stacked = _later_chunks(plan), is_stacked(timeline, canvas.longest, canvas.points)
    for rank, row in enumerate(timeline.spans):
        axes.broken_barh([(0, timeline.step_time)], (rank + _TOP, _BAR), facecolor=BUBBLE, linewidth=0)
        curve = live_curve(row, plan.placement)
        _beside(axes, rank, timeline)
        if stacked:
            _stack(canvas, rank, row, curve)
            continue
        _bars(canvas, rank, row)
        chunks = [(start, end - start) for (stage, _, _), start, end in row if stage // plan.ranks in later]
        if chunks:
            axes.broken_barh(chunks, (rank + _TOP, 0.09), facecolor=INK, linewidth=0)
        _numbers(canvas, rank, row, bool(later))
        _live(canvas, rank, [time for time, _ in curve], [count for _, count in curve])


def is_stacked(timeline: Timeline, longest: float, points: float) -> bool:
    """Tell whether more than half of the work is in bars that are too thin to be drawn one by one."""
    least = _STACKED * longest / points
    thin = sum(end - start for row in timeline.spans for _, start, end in row if end - start < least)
    return thin > 0.5 * sum(timeline.busy)


def legend_handles(
    plans: Sequence[tuple[Plan, Costs, Timeline]], colours: dict[str, str], longest: float, points: float
) -> list[Artist]:
    """Return a legend entry for everything that the figure has, and nothing else.

    Args:
        plans: what is drawn.
        colours: hue of every part.
        longest, points: time and points of the width of a row.
    """
    from matplotlib.patches import Patch

    seen: set[Look] = set()
    for plan, costs, timeline in plans:
        drawn = {(action.stage, action.kind) for row in timeline.spans for action, _, _ in row}
        for stage, kind in drawn:
            seen |= {(part, kind) for part, _ in shares(plan, costs, stage)[F if kind == F else B]}
    handles = [
        Patch(label=f"{part} {KINDS[kind]}", **_look(hue, kind))
        for part, hue in colours.items()
        for kind in KINDS
        if (part, kind) in seen
    ]
    handles += [Patch(label="idle (bubble)", facecolor=BUBBLE), Patch(label="live activations", facecolor=LIVE)]
    stacked = [is_stacked(timeline, longest, points) for _, _, timeline in plans]
    if any(_later_chunks(plan) for (plan, _, _), thin in zip(plans, stacked, strict=True) if not thin):
        handles.append(Patch(label="dark edge: a later chunk", facecolor="#ffffff", edgecolor=INK, linewidth=0.8))
    if any(stacked):
        handles.append(Patch(label="thin bars: height = share of time", facecolor="none", linewidth=0))
    return handles


def _later_chunks(plan: Plan) -> set[int]:
    """Return the regions that have one of the same parts before them on every rank."""
    parts = [region.expr.parts for region in plan.regions]
    return {index for index in range(len(parts)) if parts[index] in parts[:index]}


def _look(hue: str, kind: str) -> dict[str, Any]:
    """Return colours of bars; W is hatched, so it does not depend on lightness alone."""
    hatch = {"hatch": "////", "edgecolor": shade(hue, F)} if kind == W else {}
    return {"facecolor": shade(hue, kind), "linewidth": 0.0, **hatch}


def _pieces(canvas: Canvas, row: Sequence[Span]) -> Iterator[tuple[Look, float, float]]:
    """Yield (look, start, duration) of every bar, of a bar with several parts in the order in which they run."""
    for action, start, end in row:
        at = start
        for part, share in canvas.split[action.stage][F if action.kind == F else B]:
            lasts = share * (end - start)
            yield (part, action.kind), at, lasts
            at += lasts


def _bars(canvas: Canvas, rank: int, row: Sequence[Span]) -> None:
    """Draw a rank's bars, all of one look at once, and white borders between them."""
    looks: dict[Look, list[tuple[float, float]]] = defaultdict(list)
    for look, start, lasts in _pieces(canvas, row):
        looks[look].append((start, lasts))
    for (part, kind), segments in looks.items():
        look = _look(canvas.colours[part], kind)
        canvas.axes.broken_barh(segments, (rank + _TOP, _BAR), clip_on=False, **look)
    least = _THIN * canvas.longest / canvas.points
    borders = {time for _, start, end in row if end - start >= least for time in (start, end)}
    # One line for all of them, with a gap after each, keeps the file small.
    x = [value for time in sorted(borders) for value in (time, time, None)]
    y = [rank + _TOP, rank + _TOP + _BAR, None] * len(borders)
    canvas.axes.plot(x, y, color="#ffffff", linewidth=0.8, solid_capstyle="butt", clip_on=False)


def _stack(canvas: Canvas, rank: int, row: Sequence[Span], curve: list[tuple[float, int]]) -> None:
    """Draw a rank's shares of time in columns, forwards at the bottom, and the highest live count of each."""
    columns = int(canvas.points / _COLUMN)
    times = [canvas.longest * index / columns for index in range(columns + 1)]
    floor = [rank + _TOP + _BAR] * columns
    by_look = stack(_pieces(canvas, row), canvas.longest, columns)
    for (part, kind), height in sorted(by_look.items(), key=lambda item: list(KINDS).index(item[0][1])):
        top = [y - _BAR * share for y, share in zip(floor, height, strict=True)]
        changes = [0, *(i for i in range(1, columns) if (floor[i], top[i]) != (floor[i - 1], top[i - 1])), columns]
        x, *ends = ([line[min(i, len(line) - 1)] for i in changes] for line in (times, floor, top))
        canvas.axes.fill_between(x, *ends, step="post", **_look(canvas.colours[part], kind))
        floor = top
    tops = highest(curve, canvas.longest, columns)
    _live(canvas, rank, times, [*tops, tops[-1]])


def _live(canvas: Canvas, rank: int, times: Sequence[float], counts: Sequence[int]) -> None:
    tops = [rank + _END - (_END - _LIVE) * count / canvas.peak for count in counts]
    canvas.axes.fill_between(times, rank + _END, tops, step="post", facecolor=LIVE, linewidth=0)


def _numbers(canvas: Canvas, rank: int, row: Sequence[Span], chunks: bool) -> None:
    """Write micro-batch numbers into bars that have room; with chunks the whole action, where it fits."""
    if canvas.font < 4.5:
        return
    for span in row:
        (part, kind), start, lasts = max(_pieces(canvas, [span]), key=lambda piece: piece[2])
        for text in [str(span.action)] * chunks + [str(span.action.mb)]:
            if len(text) * _DIGIT * canvas.font + 2 <= lasts * canvas.points / canvas.longest:
                canvas.axes.text(
                    start + lasts / 2,
                    rank + _TOP + _BAR / 2 + 0.02,
                    text,
                    ha="center",
                    va="center_baseline",
                    fontsize=canvas.font,
                    color=ink(shade(canvas.colours[part], kind)),
                )
                break


def _beside(axes: Axes, rank: int, timeline: Timeline) -> None:
    """Write idle share and peak live count of a rank to the right of its row."""
    share = 100 * timeline.bubble[rank] / timeline.step_time if timeline.step_time else 0.0
    for at, text in ((34, f"{share:.0f} %"), (74, str(timeline.peak_live[rank]))):
        axes.annotate(
            text,
            (1, rank + 0.38),
            (at, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="center_baseline",
            fontsize=8,
            color=INK,
        )
