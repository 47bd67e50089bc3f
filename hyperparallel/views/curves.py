"""The curves of a run: loss, step time and, where they were measured, waits for data and the bubble of every rank.

All panels have the same axis of steps. Raw values are light, smoothed ones strong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hyperparallel.errors import HyperParallelError, JsonError
from hyperparallel.io import parse_json
from hyperparallel.views.colours import INK
from hyperparallel.views.figure import BOTTOM, LEFT, RIGHT, WIDTH
from hyperparallel.views.sheet import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = Mapping[str, Any]
"""One line of metrics: `step`, and any of `loss`, `step_time`, `data_wait`, `bubble` (one number per rank)."""

COMPILES = 5.0
"""A step this many times as long as the median gets the step time a logarithmic axis."""

FEW = 30
"""So many losses are not smoothed."""

_LOSS, _TIME, _WAIT, _BAD = "#0072b2", "#009e73", "#d55e00", "#b2182b"
_RANKS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6b6b6b", "#f0e442")
_TOP, _GAP = 0.42, 0.34  # inches
_LABEL = 110  # characters that the page is wide enough for


def read_metrics(path: Path) -> tuple[list[Line], list[str]]:
    """Read a file of metrics.

    Args:
        path: JSON lines; of several lines of one step, which a resumed run writes, the last counts.

    Raises:
        HyperParallelError: it cannot be read, has no step, or a line before the last is no line of metrics.

    Returns:
        The lines by step, and what was left out, in sentences.
    """
    try:
        rows = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise HyperParallelError(f"{path} cannot be read ({error.strerror})") from None
    whole, rest = rows[:-1], rows[-1]
    notices = []
    if rest.strip():
        notices.append(f"{path}, line {len(rows)} is only half written and left out")
    found: dict[int, Line] = {}
    for number, row in enumerate(whole, start=1):
        if row.strip():
            line = _parse(row)
            if line is None:
                raise HyperParallelError(
                    f"{path}, line {number} is {row!r:.60}; expected a JSON object with a whole number 'step'"
                )
            found[line["step"]] = line
    if not found:
        raise HyperParallelError(f"{path} has no step yet; wait for the first, or give the folder of another run")
    return [found[step] for step in sorted(found)], notices


def values_of(lines: Sequence[Line], key: str) -> tuple[list[int], list[float]]:
    """Collect the finite numbers of a key, with their steps; lines without it are passed over.

    >>> values_of([{"step": 0, "loss": 2.0}, {"step": 1}, {"step": 2, "loss": float("nan")}], "loss")
    ([0], [2.0])
    """
    pairs = [(line["step"], float(line[key])) for line in lines if _is_finite(line.get(key))]
    return [step for step, _ in pairs], [value for _, value in pairs]


def not_finite(lines: Sequence[Line]) -> list[int]:
    """List the steps whose loss is there and is no finite number."""
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    return [step for step, loss in losses if not _is_finite(loss)]


def usual_step_time(lines: Sequence[Line]) -> float | None:
    """Give the median step time without the first quarter, which compiles, as the summary of a run has it.

    >>> usual_step_time([{"step": 0, "step_time": 9.0}, *({"step": n, "step_time": 0.5} for n in range(1, 4))])
    0.5
    """
    times = values_of(lines, "step_time")[1]
    return median(times[len(times) // 4 :]) if times else None


def smoothed(values: Sequence[float], half_life: float) -> list[float]:
    """Average over what came before; what is `half_life` values old counts half.

    >>> smoothed([4.0, 1.0], half_life=1.0)
    [4.0, 2.0]
    """
    keep, total, weight, found = 0.5 ** (1 / half_life), 0.0, 0.0, []
    for value in values:
        total, weight = keep * total + value, keep * weight + 1.0
        found.append(total / weight)
    return found


def render_curves(lines: Sequence[Line], path: str | Path, title: str) -> bytes:
    """Draw a run and return the content of the file; the same lines give the same bytes.

    Args:
        lines: of metrics, by step.
        path: ends in .svg or .png; only the suffix counts.
        title: above the figure.

    Raises:
        HyperParallelError: matplotlib is missing, another suffix, or no line has a loss or a step time.
    """
    if not values_of(lines, "loss")[0] and not values_of(lines, "step_time")[0]:
        raise HyperParallelError("no line of the metrics has a finite 'loss' or 'step_time'; there is nothing to draw")
    return picture(lambda make: draw_curves(make, lines, title), path)


def draw_curves(make: type[Figure], lines: Sequence[Line], title: str) -> Figure:
    """Lay out one panel under the other; see `render_curves`."""
    panels = [(_draw_loss, 2.3), (_draw_time, 1.9)]
    if any(_bubbles(line) for line in lines):
        panels.append((_draw_bubble, 1.5))
    height = _TOP + BOTTOM + sum(tall for _, tall in panels) + _GAP * (len(panels) - 1)
    drawing = make(figsize=(WIDTH, height))
    drawing.text(
        LEFT / WIDTH,
        1 - 0.1 / height,
        title if len(title) <= _LABEL else title[: _LABEL - 1] + "…",
        fontweight="bold",
        color=INK,
        va="top",
        parse_math=False,
    )
    first, last = lines[0]["step"], lines[-1]["step"]
    y = height - _TOP
    for index, (draw, tall) in enumerate(panels):
        y -= tall
        axes = drawing.add_axes((LEFT / WIDTH, y / height, (WIDTH - LEFT - RIGHT) / WIDTH, tall / height))
        axes.set_xlim(first - 0.5, last + 0.5)
        _frame(axes, last=index == len(panels) - 1)
        draw(axes, lines)
        _key(axes)
        y -= _GAP
    return drawing


def _frame(axes: Axes, last: bool) -> None:
    axes.tick_params(axis="x", labelsize=8, labelbottom=last, length=3.5 if last else 0)
    axes.tick_params(axis="y", labelsize=8, length=2.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="both", color="#cfcfcf", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if last:
        axes.set_xlabel("step", fontsize=8.5)


def _key(axes: Axes) -> None:
    """Name the curves to the right of their panel, where they cover nothing."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.005, 1.02),
            frameon=False,
            fontsize=8,
            handlelength=1.2,
            borderaxespad=0.0,
            borderpad=0.0,
        )


def _draw_loss(axes: Axes, lines: Sequence[Line]) -> None:
    steps, losses = values_of(lines, "loss")
    axes.set_ylabel("loss", fontsize=8.5)
    light = len(losses) > FEW
    _curve(axes, steps, losses, _LOSS, "loss", light)
    by_powers = bool(losses) and min(losses) > 0 and max(losses) > 30 * min(losses)
    if by_powers:
        _logarithmic(axes)
    if light:
        # Of what is seen by its powers, those are averaged: else a peak would lift the curve for long.
        there, back = (math.log, math.exp) if by_powers else (float, float)
        curve = [back(value) for value in smoothed([there(loss) for loss in losses], _half_life(len(losses)))]
        axes.plot(steps, curve, color=_LOSS, linewidth=1.6, label="smoothed")
    for index, step in enumerate(not_finite(lines)):
        axes.axvline(step, color=_BAD, linewidth=1.0, label="not finite" if index == 0 else None)


def _draw_time(axes: Axes, lines: Sequence[Line]) -> None:
    steps, times = values_of(lines, "step_time")
    axes.set_ylabel("step time (s)", fontsize=8.5)
    middle = usual_step_time(lines)
    if middle is None:
        return
    _curve(axes, steps, times, _TIME, "step")
    axes.axhline(middle, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label=f"median {_seconds(middle)}")
    if min(times) > 0 and max(times) > COMPILES * middle:
        _logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)
    waits = [pair for pair in zip(*values_of(lines, "data_wait"), strict=True) if pair[1] > middle / 100]
    if waits:
        dots = {"linestyle": "", "marker": "o", "markersize": 2.5}
        axes.plot(*zip(*waits, strict=True), color=_WAIT, label="wait for data", **dots)


def _draw_bubble(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the idle share of every rank, smoothed only: raw curves of many ranks hide each other."""
    by_rank: dict[int, list[tuple[int, float]]] = {}
    for line in lines:
        for rank, share in enumerate(_bubbles(line)):
            if _is_finite(share):
                by_rank.setdefault(rank, []).append((line["step"], 100 * share))
    axes.set_ylabel("bubble (%)", fontsize=8.5)
    for rank, pairs in sorted(by_rank.items()):
        shares = smoothed([share for _, share in pairs], _half_life(len(pairs)))
        label = f"rank {rank}" if rank < len(_RANKS) else None
        axes.plot([step for step, _ in pairs], shares, color=_RANKS[rank % len(_RANKS)], linewidth=1.1, label=label)
    axes.set_ylim(0, 100)


def _curve(axes: Axes, steps: Sequence[int], values: Sequence[float], colour: str, name: str, light=False) -> None:
    """Draw values as they are, lightly if a smoothed curve will go over them."""
    looks: dict[str, Any] = {"alpha": 0.3, "linewidth": 0.8} if light else {"linewidth": 1.0}
    if len(values) <= 2 * FEW:
        looks |= {"marker": ".", "markersize": 4}
    axes.plot(steps, values, color=colour, label=name, **looks)


def _logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _half_life(count: int) -> float:
    return max(1.0, count / 60)


def _seconds(time: float) -> str:
    return f"{1e3 * time:.0f} ms" if time < 1 else f"{time:.2f} s"


def _bubbles(line: Line) -> list:
    found = line.get("bubble")
    return found if isinstance(found, list) else []


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _parse(row: str) -> Line | None:
    try:
        line = parse_json(row, finite=False)  # a loss may be no number, which the figure shows
    except JsonError:
        return None
    step = line.get("step") if isinstance(line, dict) else None
    return line if isinstance(step, int) and not isinstance(step, bool) else None
