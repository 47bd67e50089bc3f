"""What MindSpore's own pipeline engine can be asked for: schedule line -> its scheduler, and what it refuses.

The engine has orders of its own and takes no other. It wants the whole network on every rank and an attribute
`pipeline_stage` on each layer's Cell; a micro-batch goes back to a lower stage only from one chunk to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore import nn

from hyperparallel.algebra import LayerSpec, Plan
from hyperparallel.algebra.regions import Region
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.layer import Layer, check_layers
from hyperparallel.cells.shapes import Columns, carries
from hyperparallel.errors import ConfigError, DataError, ModelError, PlanError

_ELSEWHERE = "run.mode: graph or stepwise runs this plan as it is"


@dataclass(frozen=True)
class Engine:
    """One row of the table: a kind of plan, what the engine needs for it and how it is asked for.

    Args:
        skeleton: of all regions.
        folds: whether the regions come in pairs, out and back.
        least_regions: fewest regions of such a plan.
        most_regions: most of them; None for any number.
        rounds: M must be at least this many times P.
        scheduler: as `AutoParallel.pipeline` takes it.
        interleave: as `AutoParallel.pipeline` takes it.
        lazy_inline: whether the network must be marked with `mindspore.lazy_inline`.
        segments: whether each Cell also needs `pipeline_segment`, the number of its region.
    """

    skeleton: str
    folds: bool
    least_regions: int
    most_regions: int | None
    rounds: int
    scheduler: str
    interleave: bool
    lazy_inline: bool
    segments: bool = False


ENGINES = (
    Engine("1f1b", False, 1, 1, 1, "1f1b", interleave=False, lazy_inline=False),
    Engine("1f1b", False, 2, None, 1, "1f1b", interleave=True, lazy_inline=True),
    # With one region "gpipe" is silently 1F1B.
    Engine("gpipe", False, 2, None, 1, "gpipe", interleave=True, lazy_inline=True),
    Engine("zb", True, 2, 2, 2, "zero_bubble_v", interleave=True, lazy_inline=True, segments=True),
)
"""Every kind of plan that the engine can be asked for; each was compiled for Ascend, see docs/annotate.md."""


def check_annotate(plan: Plan) -> Engine:
    """Find the row of `ENGINES` for a plan.

    Args:
        plan: any plan.

    Raises:
        PlanError: the engine cannot express it; names the region, what stands against it and the runner that can.

    Returns:
        What to ask the engine for.

    Example:
        >>> from hyperparallel import ModelSpec, derive
        >>> check_annotate(derive("zb(llm, fold=v)", ModelSpec.of({"llm": 8}), ranks=2, micro_batches=4)).scheduler
        'zero_bubble_v'
    """
    if plan.ranks < 2:
        raise _refused(plan, plan.regions[0], "P = 1 is no pipeline, which wants 2 ranks or more")
    for region in plan.regions:
        if region.owner is not None:
            raise _refused(plan, region, "is Replicated, which needs edges from a stage to a lower one")
        if _kind(region) != _kind(plan.regions[0]):
            raise _refused(plan, region, f"has another skeleton than {plan.regions[0].expr}; one scheduler orders all")
    engine = _row(plan)
    for rank in range(plan.ranks):
        stages = range(rank, plan.placement.stages, plan.ranks)
        if not any(layer.trainable for stage in stages for layer in _layers(plan, stage)):
            raise _refused(
                plan, plan.regions[0], f"leaves rank {rank} with frozen layers only; each rank must train some"
            )
    return engine


def check_net(plan: Plan, layers: Sequence[Layer], columns: Columns, topology: Topology) -> None:
    """Refuse a model or a layout that the engine would not take, or would not do as the other runners do.

    Args:
        plan: one that `check_annotate` takes.
        layers: the whole model.
        columns: shape and type of every column of a global micro-batch.
        topology: P x D x T.

    Raises:
        ModelError: a carry of several tensors, or tied parameters where the engine fails on them.
        ConfigError: tensor parallelism.
        DataError: D does not divide a column's first axis.
    """
    check_layers(layers)
    engine = check_annotate(plan)
    for layer, carry in zip(layers[:-1], carries(layers, columns), strict=False):
        if len(carry) != 1:
            raise ModelError(
                f"layer {layer.name!r} hands on {len(carry)} tensors; run.mode: annotate takes one, run.mode: graph or "
                "stepwise any number"
            )
    for layer in layers if engine.lazy_inline else ():
        for local, target in layer.tied.items():
            raise ModelError(
                f"layer {layer.name!r} ties {local!r} to {target!r}, which MindSpore's engine compiles for one region "
                f"of 1f1b only; {plan.schedule} has {len(plan.regions)}: untie them, or use run.mode: graph or stepwise"
            )
    if topology.tensor_parallel > 1:
        raise ConfigError(
            f"parallel.tensor_parallel is {topology.tensor_parallel}; with run.mode: annotate the layers' collectives "
            "and those that MindSpore adds do not mix: use run.mode: graph or stepwise"
        )
    for name, spec in columns.items():
        if not spec.shape or spec.shape[0] % topology.data_parallel:
            raise DataError(
                f"column {name!r} of a global micro-batch has the shape {spec.shape}; D = {topology.data_parallel} "
                "must divide its first axis: change the batch size, the padding or D"
            )


def stamp(plan: Plan, cells: Sequence[nn.Cell]) -> None:
    """Give every layer's Cell its `pipeline_stage`, and `pipeline_segment` where the scheduler reads it.

    Args:
        plan: one that `check_annotate` takes.
        cells: of all layers, in order.
    """
    engine = check_annotate(plan)
    for stage, (first, last) in enumerate(plan.placement.slabs):
        for cell in cells[first:last]:
            cell.pipeline_stage = plan.placement.rank_of(stage)
            if engine.segments:
                cell.pipeline_segment = plan.placement.region_of(stage)


def _layers(plan: Plan, stage: int) -> tuple[LayerSpec, ...]:
    first, last = plan.placement.slabs[stage]
    return plan.model.layers[first:last]


def _kind(region: Region) -> tuple[str, bool]:
    return region.expr.skeleton, region.expr.skeleton == "zb" and region.expr.option("fold") == "v"


def _row(plan: Plan) -> Engine:
    """Find the row, or say which bound of the nearest one does not hold."""
    first, count = plan.regions[0], len(plan.regions)
    rows = [engine for engine in ENGINES if (engine.skeleton, engine.folds) == _kind(first)]
    if not rows:
        known = ", ".join(dict.fromkeys(engine.skeleton + ", fold=v" * engine.folds for engine in ENGINES))
        raise _refused(plan, first, f"has no scheduler of its own there; there are some for {known}")
    fits = [engine for engine in rows if engine.least_regions <= count <= (engine.most_regions or count)]
    if not fits:
        low, high = rows[0].least_regions, rows[-1].most_regions
        bound = f"exactly {low}" if low == high else f"at least {low}"
        raise _refused(plan, first, f"makes {count} region{'s' * (count > 1)}; {rows[0].scheduler} wants {bound}")
    least = fits[0].rounds * plan.ranks
    if plan.micro_batches < least:
        wants = f"M >= {fits[0].rounds if fits[0].rounds > 1 else ''}P = {least}"
        raise _refused(plan, first, f"runs M = {plan.micro_batches} micro-batches; {fits[0].scheduler} wants {wants}")
    return fits[0]


def _refused(plan: Plan, region: Region, reason: str) -> PlanError:
    return PlanError(
        f"run.mode: annotate cannot express {plan.schedule}: region {plan.regions.index(region) + 1}, {region.expr}, "
        f"{reason}; {_ELSEWHERE}"
    )
