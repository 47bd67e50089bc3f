"""The search: which layout and schedule line are fastest within a memory limit.

Bases (`candidates.py`) are tried in the order of their lower bound, which holds for every owner, place and split, so
that most lines need not be planned at all. One row is kept for each layout and kind of backbone, inline and transposed
apart: both are always found, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hyperparallel.algebra import Plan, derive
from hyperparallel.cost import lower_bound
from hyperparallel.cost.memory_bytes import Peak
from hyperparallel.errors import ScheduleError
from hyperparallel.planner.candidates import DEFAULT, FILL, FINEST, Base, Layout, bases, encodings
from hyperparallel.planner.line import Settings
from hyperparallel.planner.problem import LimitError
from hyperparallel.planner.rows import Job, Row, fullest, make_row, text_only

BEST = 10
"""Rows of each family that a search is to find."""

_NEAR = 0.01
"""A line that is as close to its bound as this leaves too little to plan the base a second time."""

_REFINED = 4
"""Transposed rows that are planned again at the end with simpler options."""

_REPLANNED, _GAP = 2, 0.002
"""Those of them that the slower engines look at, where the list engine is further from its bound than this."""

_LARGE = 2000
"""Actions of a plan beyond which those engines would take longer than the rest of the search."""

_SAME = 1e-6
"""Step times that differ by less, as a fraction, are the same; then the line that was tried first counts."""


@dataclass
class Found:
    """What a search found.

    Args:
        inline: rows with the encoder in a slab, fastest first.
        transposed: rows with something transposed, fastest first.
        text_only: step time of the fastest backbone of all these rows with an encoder that takes no time.
        over: the fastest of the planned lines that the memory limit excludes.
        excluded: how many lines it excludes, planned or not.
        tried: plans made.
        bases: bases that there were.
    """

    inline: list[Row] = field(default_factory=list)
    transposed: list[Row] = field(default_factory=list)
    text_only: float = 0.0
    over: Row | None = None
    excluded: int = 0
    tried: int = 0
    bases: int = 0

    @property
    def rows(self) -> list[Row]:
        """All rows, fastest first; of equal ones the inline ones."""
        return sorted([*self.inline, *self.transposed], key=lambda row: row.step_time)


def choose(
    job: Job,
    layouts: Sequence[Layout],
    *,
    memory_limit: int | None = None,
    live_limit: int | None = None,
    skeletons: Collection[str] = DEFAULT,
    work_limit: float = 0.5,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """Find the fastest lines of a job.

    Args:
        job: what it costs.
        layouts: those to try, as of `candidates.layouts`.
        memory_limit: bytes that no rank may exceed.
        live_limit: most encodes that a rank may hold at a time.
        skeletons: backbones to try.
        work_limit: of the planner for each of the best rows, see `Settings`; 0 leaves them as the list engine made
            them.
        progress: called with what is done and what there is to do.

    Raises:
        ScheduleError: no line keeps the limits; says the smallest number of bytes that was found.

    Returns:
        The rows; at most one for each layout and kind of backbone, of each family `BEST` or more where there are.
    """
    search = _Search(job, memory_limit, live_limit)
    queue = _bounded(job, layouts, skeletons, progress)
    found = search.found
    found.bases = len(queue)
    for done, one in enumerate(queue, 1):
        search.visit(one)
        progress(len(queue) + done, 2 * len(queue))
    search.refine(work_limit)
    if not found.rows:
        raise search.refusal()
    found.text_only = min(_text_only_times(job, found.rows))
    return found


class _Bounded(NamedTuple):
    bound: float
    layout: Layout
    base: Base
    plan: Plan


def _bounded(
    job: Job, layouts: Sequence[Layout], skeletons: Collection[str], progress: Callable[[int, int], None]
) -> list[_Bounded]:
    """Bound every base from below, and sort: those that may be fastest come first."""
    every = [
        (layout, base)
        for layout in layouts
        for base in bases(layout, job.parts, job.layers, skeletons, transpose=job.transpose)
    ]
    found = []
    for done, (layout, base) in enumerate(every, 1):
        # The smaller the pieces, the shorter the path through the longest: the bound holds for larger ones too.
        plan = derive(base.line(FINEST), job.spec(layout), layout.ranks, layout.micro_batches)
        bounds = [lower_bound(plan, costs) for costs in job.all_steps(plan, layout)]
        found.append(_Bounded(sum(bounds) / len(bounds) + job.reduce(plan, layout), layout, base, plan))
        progress(done, 2 * len(every))
    return sorted(found, key=lambda one: one.bound)


def _text_only_times(job: Job, rows: Sequence[Row]) -> list[float]:
    """Time the backbones of rows alone, and that of `1f1b`, which always has enough layers."""
    plain = Base("", "1f1b", "")
    found, times = {(row.layout, base) for row in rows for base in (row.base._replace(transposed=""), plain)}, []
    for layout, base in found:
        try:
            times.append(text_only(job, layout, base).step_time)
        except ScheduleError:  # inline, the encoder's layers were slabs too
            assert base != plain
    return times


class _Search:
    """Best-first search over bases."""

    def __init__(self, job: Job, memory_limit: int | None, live_limit: int | None):
        self.job, self.memory_limit, self.live_limit = job, memory_limit, live_limit
        self.found = Found()
        self.smallest: tuple[int, str] | None = None
        self.curable: list[Row] = []

    def visit(self, one: _Bounded) -> None:
        """Plan a base, if it may be among the best: in pieces, and where these miss the bound, whole."""
        bound, layout, base, plan = one
        family = self.found.transposed if base.transposed else self.found.inline
        tried = (f"{FILL}, {FINEST}", FILL) if base.transposed else ("",)
        for number, encoding in enumerate(tried):
            rival = next((row for row in family if (row.layout, row.base.kind) == (layout, base.kind)), None)
            slowest = family[BEST - 1].step_time if len(family) >= BEST else float("inf")
            beaten = min(slowest, rival.step_time if rival else slowest) * (1 - _SAME)
            if bound >= beaten or (number == 0 and self._never_fits(plan, layout)):
                return
            row = self._plan(layout, base, encoding, Settings(engine="list", live_limit=self.live_limit))
            if row is None or not self._fits(row):
                return
            if row.step_time < beaten:
                family[:] = sorted([row, *(old for old in family if old is not rival)], key=lambda row: row.step_time)
            if row.step_time <= bound * (1 + _NEAR):
                return

    def refine(self, work_limit: float) -> None:
        """Give the best transposed rows the simplest options that are as fast, and let the other engines look at them.

        Plans over the memory limit are tried again with fewer encodes at a time, where that may help.
        """
        rows = self.found.transposed
        for over in sorted(self.curable, key=lambda row: row.step_time)[:_REFINED]:
            if len(rows) < BEST or over.step_time < rows[BEST - 1].step_time:
                fewer = (over.layout.ranks + 1) * over.plan.placement.split
                row = self._plan(over.layout, over.base, over.encoding, Settings(engine="list", live_limit=fewer))
                rows += [row] if row is not None and self._fits(row) else []
        rows.sort(key=lambda row: row.step_time)
        for number, row in enumerate(rows[:_REFINED]):
            rows[number] = self._refined(row, work_limit if number < _REPLANNED else 0.0)
        rows.sort(key=lambda row: row.step_time)

    def _refined(self, row: Row, work_limit: float) -> Row:
        settings = Settings(engine="list", live_limit=row.live_limit)
        small = sum(map(len, row.plan.compute)) <= _LARGE
        if work_limit and small and row.certificate is not None and row.certificate.gap > _GAP:
            auto = Settings(engine="auto", work_limit=work_limit, live_limit=row.live_limit)
            again = self._plan(row.layout, row.base, row.encoding, auto)
            row = min((one for one in (row, again) if one is not None), key=lambda one: one.step_time)
        for encoding in encodings(row.base):
            if encoding == row.encoding:
                return row
            other = self._plan(row.layout, row.base, encoding, settings)
            if other is not None and self._fits(other) and other.step_time <= row.step_time * (1 + _SAME):
                return other
        return row

    def refusal(self) -> ScheduleError:
        """Say that nothing fits, and what would."""
        if self.smallest is None:
            return ScheduleError(f"no plan keeps every rank at {self.live_limit} live encodes; raise the limit")
        least, where = self.smallest
        return ScheduleError(
            f"no plan was found whose ranks stay within {self.memory_limit:,} bytes; the smallest that was found needs "
            f"{least:,} bytes: {where}. Raise the limit, use more devices or a larger T, or recompute"
        )

    def _plan(self, layout: Layout, base: Base, encoding: str, settings: Settings) -> Row | None:
        try:
            row = make_row(self.job, layout, base, encoding, settings)
        except LimitError:
            return None
        self.found.tried += 1
        return row

    def _fits(self, row: Row) -> bool:
        """Check the memory, and remember the best of what does not fit."""
        if row.bytes is None or self.memory_limit is None:
            return True
        self._weigh(row.bytes, row.line, row.layout)
        if row.bytes <= self.memory_limit:
            return True
        self.found.excluded += 1
        if (
            row.certificate is not None
            and row.live_limit is None
            and self._least(row.peak, row.plan) <= self.memory_limit
        ):
            self.curable.append(row)
        if self.found.over is None or row.step_time < self.found.over.step_time:
            self.found.over = row
        return False

    def _least(self, peak: Peak, plan: Plan) -> int:
        """Bound from below what the fullest rank would hold with fewer encodes at a time."""
        if not plan.placement.owners[0]:
            return peak.bytes
        trained = plan.placement.gates[0].receives_gradient
        return peak.bytes - peak.live.carries - (peak.live.activations if trained else 0)

    def _never_fits(self, plan: Plan, layout: Layout) -> bool:
        """Tell, before a base is planned, whether its backbone alone exceeds the limit."""
        if self.memory_limit is None:
            return False
        peaks = self.job.peaks(plan, layout)
        if peaks is None or self._least(fullest(peaks), plan) <= self.memory_limit:
            return False
        self._weigh(fullest(peaks).bytes, str(plan.schedule), layout)
        self.found.excluded += 1
        return True

    def _weigh(self, size: int, line: str, layout: Layout) -> None:
        """Remember the plan with the lowest peak."""
        if self.smallest is None or size < self.smallest[0]:
            self.smallest = (size, f"{line} with {layout.text}")
