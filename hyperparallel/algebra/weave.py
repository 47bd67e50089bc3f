"""Order a rank's compute: Sharded regions woven together, Replicated ones around or between them."""

from __future__ import annotations

from collections.abc import Sequence

from hyperparallel.algebra.listing import list_schedule
from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import Action, B, F
from hyperparallel.algebra.regions import Region
from hyperparallel.algebra.skeletons import Replicated, Sharded, Wave, registry

Compute = tuple[tuple[Action, ...], ...]


def weave(regions: Sequence[Region], placement: Placement) -> Compute:
    """Order all compute actions of a plan.

    A Replicated region at the input lies around everything else, as its option `place` says. Sharded regions of
    one skeleton that follow each other to the loss are its chunks. Any other mix is list-scheduled.

    Args:
        regions: the cut.
        placement: their stages.

    Returns:
        Per rank, its actions in order.
    """
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
    own = [mb for mb, owner in enumerate(region.owner) if owner == rank]
    backward = own if placement.gates[rank].receives_gradient else []
    return skeleton.around(order, [Action(rank, F, mb) for mb in own], [Action(rank, B, mb) for mb in backward])
