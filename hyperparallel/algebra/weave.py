"""Order a rank's compute: Sharded regions woven together, Replicated ones around or between them."""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra.listing import list_schedule
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import Action, B, F
from hyperparallel.algebra.regions import Encodes, Region
from hyperparallel.algebra.skeletons import Replicated, Sharded, Wave, registry

Compute = tuple[tuple[Action, ...], ...]


def weave(regions: Sequence[Region], placement: Placement, encodes: Encodes | None = None) -> Compute:
    """Order all compute actions of a plan.

    A Replicated region at the input lies around everything else, as its option `place` says. Sharded regions of
    one skeleton that follow each other to the loss are its chunks. Any other mix is list-scheduled.

    Args:
        regions: the cut.
        placement: their stages.
        encodes: what a planner decided, for a line that leaves something to it.

    Returns:
        Per rank, its actions in order.
    """
    if encodes is not None and encodes.compute is not None:
        return encodes.compute
    skeletons = [registry()[region.expr.skeleton] for region in regions]
    first = 1 if isinstance(skeletons[0], Replicated) and len(regions) > 1 else 0
    rest = tuple(range(first, len(regions)))
    alike = {skeletons[index].name for index in rest}
    if len(alike) == 1 and isinstance(skeletons[-1], Sharded):
        orders = skeletons[-1].orders(Wave(placement, rest))
    else:
        splits = frozenset(index for index in rest if getattr(skeletons[index], "splits", False))
        barriers = frozenset(index for index in rest if skeletons[index].name == "gpipe")
        orders = list_schedule(placement, rest, splits, barriers)
    if first:
        orders = [_around(regions[0], placement, rank, order) for rank, order in enumerate(orders)]
    return tuple(map(tuple, orders))


def _around(region: Region, placement: Placement, rank: int, order: list[Action]) -> list[Action]:
    """Put a rank's own micro-batches of the first, Replicated region around its other actions."""
    skeleton = registry()[region.expr.skeleton]
    assert isinstance(skeleton, Replicated)
    nodes = [node for mb in range(placement.micro_batches) for node in placement.nodes(0, mb)]
    own = [unit for stage, unit in nodes if stage == rank]
    backward = own if placement.gates[rank].receives_gradient else []
    return skeleton.around(order, [Action(rank, F, unit) for unit in own], [Action(rank, B, unit) for unit in backward])
