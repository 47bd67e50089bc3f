"""The text timeline: one row per rank, characters proportional to time. Plain ASCII, safe on any terminal.

Where a rank has several regions of one layout (chunks of an interleaved backbone, transposed regions at both ends),
equal bars would not tell which; then every stage has a row, and a blank there means that the rank is busy elsewhere.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections import defaultdict
from collections.abc import Collection

from hyperparallel.cost import Timeline
from hyperparallel.views.bars import bar_rows, coarse_rows, column
from hyperparallel.views.legend import bar_legend, coarse_legend

MIN_WIDTH = 60
_TICK = 8  # fewest columns between two numbers on the time axis
_HIDDEN = 0.03  # share of the work in actions too short for a column, above which the rows turn coarse
_FULL = 0.75  # share of the line that rows with a whole number of columns per unit of time must fill


def grid(timeline: Timeline, width: int | None = None, replicated: Collection[int] | None = None) -> str:
    """Draw a timeline.

    Args:
        timeline: from `simulate`.
        width: columns of the terminal, at least 60; by default asked from the terminal.
        replicated: stages of Replicated regions; by default found from the timeline, which can be done for two
            ranks or more.

    Returns:
        A row per rank (or per stage, see above), the time axis and the legend, each line at most `width` columns,
        without a last newline.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> from hyperparallel.cost import PartCost, costs_from_parts, simulate
        >>> plan = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 2}, {"vision"}), 2, 2)
        >>> costs = costs_from_parts(plan, {"vision": PartCost(6, 0), "llm": PartCost(4, 8)})
        >>> print(grid(simulate(plan, costs), width=60))
        rank 0 |(0F0~)[F0][F1]........<2B0===>....<2B1===>|
        rank 1 |(1F1~)....[F0]<3B0===>[F1]<3B1===>........|
                +---------+---------+---------+-----------+
                0         10        20        30         42
        (0F0~~) encode   [2F0  ] forward   <2B0==> backward   . idle
        2F0 = stage 2, forward, micro-batch 0
        when short: [0], F0, F
    """
    width = max(MIN_WIDTH, width or shutil.get_terminal_size().columns)
    replicated = _replicated(timeline) if replicated is None else replicated
    lanes = _lanes(timeline, replicated)
    heads = _heads(lanes)
    scale, columns = _scale(timeline, width - len(heads[0]) - 1)
    bars = [bar_rows(row, scale, columns, replicated, own) for row, own in zip(timeline.spans, lanes, strict=True)]
    hidden = [span for _, missing in bars for span in missing]
    if sum(end - start for _, start, end in hidden) > _HIDDEN * sum(timeline.busy):
        drawn = [
            coarse_rows(row, scale, columns, replicated, own) for row, own in zip(timeline.spans, lanes, strict=True)
        ]
        legend = coarse_legend(timeline, replicated, number(float(f"{1 / scale:.3g}")), width, len(lanes[0]) > 1)
    else:
        drawn = [rows for rows, _ in bars]
        legend = bar_legend(timeline, replicated, len(hidden), width, len(lanes[0]) > 1)
    margin = " " * (len(heads[0]) - 1)
    lines = [f"{head}{row}|" for head, row in zip(heads, itertools.chain(*drawn), strict=True)]
    lines += [(margin + line).rstrip() for line in _axis(timeline.step_time, scale, columns)]
    return "\n".join(lines + legend)


def _lanes(timeline: Timeline, replicated: Collection[int]) -> list[list[set[int]]]:
    """Choose, per rank, the stages of every row: all in one, or one each where a layout has several regions."""
    ranks = len(timeline.spans)
    regions = sorted({action.stage // ranks for row in timeline.spans for action, _, _ in row}) or [0]
    layouts = [region * ranks in replicated for region in regions]
    stages = [[{region * ranks + rank} for region in regions] for rank in range(ranks)]
    return stages if len(set(layouts)) < len(layouts) else [[set().union(*own)] for own in stages]


def _heads(lanes: list[list[set[int]]]) -> list[str]:
    """Return what stands before every row, all equally long."""
    names = [f"rank {rank}".ljust(len(f"rank {len(lanes) - 1}")) for rank in range(len(lanes))]
    if len(lanes[0]) == 1:
        return [f"{name} |" for name in names]
    digits = len(str(max(max(stages) for own in lanes for stages in own)))
    return [
        f"{' ' * len(names[0]) if lane else names[rank]}  stage {min(stages):<{digits}} |"
        for rank, own in enumerate(lanes)
        for lane, stages in enumerate(own)
    ]


def number(value: float) -> str:
    """Print a number without a needless fraction or exponent.

    Example:
        >>> number(96.0), number(12.34567), number(1234567.8)
        ('96', '12.3457', '1234568')
    """
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"


def _scale(timeline: Timeline, columns: int) -> tuple[float, int]:
    """Choose columns per unit of time and the length of a row, at most `columns`.

    Where all times are multiples of some unit, a whole number of columns per unit makes equal bars look equal;
    it is taken unless it would leave too much of the line empty.
    """
    if not timeline.step_time:
        return 0.0, columns
    scale = columns / timeline.step_time
    borders = [time * 1000 for row in timeline.spans for _, *times in row for time in times]
    if all(abs(border - round(border)) < 1e-3 for border in borders):
        unit = math.gcd(*map(round, borders)) / 1000
        whole = math.floor(scale * unit) / unit if unit else 0.0
        if whole >= _FULL * scale:
            return whole, column(timeline.step_time, whole)
    return scale, columns


def _replicated(timeline: Timeline) -> set[int]:
    """Find the stages of regions where every micro-batch runs on one rank only."""
    ranks = len(timeline.spans)
    homes: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in timeline.spans:
        for action, _, _ in row:
            homes[action.stage // ranks][action.mb].add(action.stage)
    alone = [region for region, by_mb in homes.items() if all(len(stages) == 1 for stages in by_mb.values())]
    return {stage for region in alone if ranks > 1 for stage in range(region * ranks, (region + 1) * ranks)}


def _axis(step_time: float, scale: float, columns: int) -> list[str]:
    """Draw a line with ticks, and under it their times; the last one is the step time.

    A tick stands under the left border of the bar that starts then; the row's own border is column -1.
    """
    ticks, labels = [" ", "+"] + ["-"] * columns, [" ", "0"] + [" "] * columns
    end = number(step_time)
    if scale:
        step = _round_up(_TICK / scale)
        free = columns + 2 - len(end)
        for index in range(1, int(step_time / step) + 1):
            at, label = column(index * step, scale) + 1, number(index * step)
            if at + len(label) < free:
                ticks[at] = "+"
                labels[at : at + len(label)] = label
        ticks[-1] = "+"
        labels[free:] = end
    return ["".join(ticks), "".join(labels)]


def _round_up(step: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)
