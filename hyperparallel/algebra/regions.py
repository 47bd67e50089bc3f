"""Tie a schedule line to a model: which layers each region covers and how they lie on the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hyperparallel.algebra.expression import RegionExpr, Schedule, caret, did_you_mean
from hyperparallel.algebra.model import ModelSpec, Span, cut_balanced, cut_by_counts, cut_evenly
from hyperparallel.algebra.program import Action
from hyperparallel.algebra.skeletons import Layout, Replicated, Sharded, registry
from hyperparallel.errors import ScheduleError

Owner = int | tuple[int, ...]
"""Who runs a micro-batch of a Replicated region: a rank, or one rank for each of its pieces."""


@dataclass(frozen=True)
class Encodes:
    """What a planner decides about a Replicated region at the input (`hyperparallel/planner/`).

    Args:
        owners: by micro-batch.
        compute: with `place=fill`, per rank all its F, B, I, W in order; None leaves the order to `place`.
        ends: when each of them is to end, so that messages can be ordered by it.
    """

    owners: tuple[Owner, ...]
    compute: tuple[tuple[Action, ...], ...] | None = None
    ends: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class Region:
    """One region of the cut.

    Args:
        expr: the region as written, with its parts filled in.
        span: its layers, (first, one past the last).
        slabs: layers of rank r at index r; the whole span on every rank when Replicated.
        owner: owner rank by micro-batch when Replicated (a rank for each piece with `split`), else None.
        reflected: True when the layers run from rank P-1 down to rank 0 (the second half of a fold).
    """

    expr: RegionExpr
    span: Span
    slabs: tuple[Span, ...]
    owner: tuple[Owner, ...] | None
    reflected: bool = False

    @property
    def layout(self) -> Layout:
        """Sharded or Replicated."""
        return self.expr.layout


def resolve(
    schedule: Schedule, model: ModelSpec, ranks: int, micro_batches: int, encodes: Encodes | None = None
) -> tuple[Region, ...]:
    """Cut the model into the schedule's regions.

    Args:
        schedule: in normal form, every region with its parts (`fill_parts`).
        model: the layers, in parts.
        ranks: P >= 1.
        micro_batches: M >= 1.
        encodes: what a planner decided, for a line that leaves something to it.

    Raises:
        ScheduleError: the regions do not tile the model exactly, two Replicated ones are side by side, a region has
            fewer layers than ranks, or an option does not fit P, M or the layer count.

    Returns:
        The regions in input-to-loss order; their spans tile the model.
    """
    _check_tiling(schedule, model)
    _check_neighbours(schedule)
    regions: list[Region] = []
    for expr in schedule.regions:
        span = (model.span(expr.parts[0])[0], model.span(expr.parts[-1])[1])
        if expr.layout is Layout.REPLICATED:
            owner = _owners(expr, schedule, ranks, micro_batches, encodes)
            regions.append(Region(expr, span, (span,) * ranks, owner))
            continue
        regions += _sharded(expr, span, schedule, model, ranks)
    return tuple(regions)


def _sharded(expr: RegionExpr, span: Span, schedule: Schedule, model: ModelSpec, ranks: int) -> list[Region]:
    """Cut a Sharded region into its count of regions, two each where it folds, a slab per rank."""
    skeleton = registry()[expr.skeleton]
    assert isinstance(skeleton, Sharded)
    folds = skeleton.folds(expr.option)
    chunks = len(folds) * expr.count
    pieces = chunks * ranks
    if span[1] - span[0] < pieces:
        raise _error(
            schedule,
            expr,
            f"{'+'.join(expr.parts)} has {span[1] - span[0]} layers for {pieces} slabs "
            f"({ranks} ranks{f' x {chunks}' if chunks > 1 else ''}); a slab needs at least one layer: "
            "use fewer ranks, merge parts with '+', or transpose it",
        )
    slabs = _slabs(expr, span, schedule, model, pieces)
    regions = []
    for index, reflect in enumerate(folds * expr.count):  # multiplied late: a mistyped count could fill the memory
        own = tuple(slabs[index * ranks : (index + 1) * ranks])
        span = (own[0][0], own[-1][1])
        regions.append(Region(replace(expr, count=1), span, own[::-1] if reflect else own, None, reflect))
    return regions


def _error(schedule: Schedule, expr: RegionExpr, message: str) -> ScheduleError:
    return ScheduleError(caret(schedule.source or str(schedule), expr.at, message))


def fill_parts(schedule: Schedule, model: ModelSpec) -> Schedule:
    """Give parts to regions written without any: one part each, or all parts to a single region.

    Raises:
        ScheduleError: some regions name parts and others do not, or their number is not that of the parts.
    """
    regions, parts = list(schedule.regions), model.parts
    if all(region.parts for region in regions):
        return schedule
    if any(region.parts for region in regions):
        bare = next(region for region in regions if not region.parts)
        raise _error(
            schedule,
            bare,
            f"{bare.skeleton} names no part while others do; name parts in every region or in none",
        )
    if len(regions) == 1:
        return Schedule((replace(regions[0], parts=parts),), schedule.source)
    if len(regions) != len(parts):
        raise _error(
            schedule,
            regions[0],
            f"{len(regions)} regions without part names for {len(parts)} parts ({', '.join(parts)}); "
            "write the parts, such as 1f1b(vision+llm)",
        )
    named = (replace(region, parts=(part,)) for region, part in zip(regions, parts, strict=True))
    return Schedule(tuple(named), schedule.source)


def _check_tiling(schedule: Schedule, model: ModelSpec) -> None:
    """Every part exactly once, in the model's order."""
    remaining = list(model.parts)
    for region in schedule.regions:
        for part in region.parts:
            if part not in model.parts:
                hint = did_you_mean(part, model.parts)
                raise _error(schedule, region, f"unknown part {part!r}; the model has {', '.join(model.parts)}{hint}")
            if not remaining or part != remaining[0]:
                expected = f"expected {remaining[0]!r} here" if remaining else "all parts are already scheduled"
                raise _error(
                    schedule,
                    region,
                    f"part {part!r} is out of order or scheduled twice; {expected} "
                    f"(order of the model: {', '.join(model.parts)})",
                )
            remaining.pop(0)
    if remaining:
        raise _error(
            schedule,
            schedule.regions[-1],
            f"part{'s' if len(remaining) > 1 else ''} {', '.join(map(repr, remaining))} of the model "
            f"{'are' if len(remaining) > 1 else 'is'} not scheduled; add a region or merge with '+'",
        )


def _check_neighbours(schedule: Schedule) -> None:
    """No two Replicated regions side by side: the normal form has joined those that can be."""
    for left, right in zip(schedule.regions, schedule.regions[1:], strict=False):
        if left.layout is right.layout is Layout.REPLICATED:
            raise _error(
                schedule,
                right,
                f"{left} and {right} are both Replicated and side by side; give them the same options, so that they "
                "become one region, or put a Sharded region between them",
            )


def needs_planner(expr: RegionExpr) -> bool:
    """Tell whether a region leaves owners or places to a planner."""
    if expr.layout is not Layout.REPLICATED:
        return False
    return expr.option("owner") == "balanced" or expr.option("place") == "fill"


def _owners(
    expr: RegionExpr, schedule: Schedule, ranks: int, micro_batches: int, encodes: Encodes | None
) -> tuple[Owner, ...]:
    skeleton, split = registry()[expr.skeleton], int(expr.option("split"))
    assert isinstance(skeleton, Replicated)
    if split > 1 and (expr is not schedule.regions[0] or len(schedule.regions) == 1):
        raise _error(
            schedule, expr, f"split={split} cuts the images of a micro-batch, so it needs the first of several regions"
        )
    if needs_planner(expr):
        if expr is not schedule.regions[0] or len(schedule.regions) == 1:
            raise _error(schedule, expr, "owner=balanced and place=fill are for the first of several regions")
        if encodes is None:
            raise _error(
                schedule,
                expr,
                "owner=balanced and place=fill are decided by the planner, which needs costs; give them "
                "(hyperparallel plan --cost, or hyperparallel.plan_line in Python)",
            )
        return encodes.owners
    owner = skeleton.owners(expr.option("owner"), ranks, micro_batches * split)
    if len(owner) not in (micro_batches, micro_batches * split):
        pieces = f", or one per piece, {micro_batches * split} in all" if split > 1 else ""
        raise _error(
            schedule,
            expr,
            f"owner= lists {len(owner)} ranks for {micro_batches} micro-batches; give one rank per micro-batch{pieces}",
        )
    for number, rank in enumerate(owner):
        if rank >= ranks:
            what = f"micro-batch {number}" if len(owner) == micro_batches else f"piece {number}"
            raise _error(schedule, expr, f"owner= gives {what} to rank {rank}; ranks are 0..{ranks - 1}")
    if split == 1:
        return owner
    if len(owner) == micro_batches:
        return tuple((rank,) * split for rank in owner)
    return tuple(owner[mb * split : (mb + 1) * split] for mb in range(micro_batches))


def _slabs(expr: RegionExpr, span: Span, schedule: Schedule, model: ModelSpec, pieces: int) -> list[Span]:
    """Cut a span into slabs, in the order of the layers, as the option `slabs` says."""
    choice = expr.option("slabs")
    if choice == "balanced":
        return cut_balanced(span, pieces, [layer.cost for layer in model.layers])
    if isinstance(choice, tuple):
        layers = span[1] - span[0]
        if len(choice) != pieces or sum(choice) != layers or min(choice) < 1:
            raise _error(
                schedule,
                expr,
                f"slabs={list(choice)} has {len(choice)} slabs and {sum(choice)} layers; expected {pieces} slabs of "
                f"at least one layer that add up to {layers} layers ({'+'.join(expr.parts)})",
            )
        return cut_by_counts(span[0], choice)
    return _even_slabs(expr, span, model, pieces)


def _even_slabs(expr: RegionExpr, span: Span, model: ModelSpec, pieces: int) -> list[Span]:
    """Cut the last part evenly and let the parts before it join the first slab (the usual baseline).

    Where the backbone has fewer layers than slabs this cannot be, and the whole region is cut evenly.
    """
    backbone_first = model.span(expr.parts[-1])[0]
    if span[1] - backbone_first < pieces:
        return cut_evenly(span, pieces)
    slabs = cut_evenly((backbone_first, span[1]), pieces)
    return [(span[0], slabs[0][1]), *slabs[1:]]
