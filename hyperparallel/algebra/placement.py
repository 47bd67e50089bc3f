"""Placement: which rank holds which layers, and the path of every micro-batch through the stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hyperparallel.algebra.footprint import Gates, footprint
from hyperparallel.algebra.model import ModelSpec, Span
from hyperparallel.algebra.program import RECV_B, RECV_F, SEND_B, SEND_F, Action
from hyperparallel.algebra.regions import Region


@dataclass(frozen=True)
class Placement:
    """Where everything runs. A stage is a pair (region, rank); its index is r + (j-1)*P with regions j = 1..k.

    Args:
        ranks: P, ranks of one pipeline.
        micro_batches: M.
        owners: per region, None when Sharded, else the owner rank of every micro-batch.
        gates: footprint gates of every stage, by stage index.
        slabs: layers of every stage, by stage index; empty when the placement was inferred from a table.
        reflected: regions that run from rank P-1 down to rank 0.
    """

    ranks: int
    micro_batches: int
    owners: tuple[tuple[int, ...] | None, ...]
    gates: tuple[Gates, ...]
    slabs: tuple[Span, ...] = ()
    reflected: frozenset[int] = frozenset()

    @property
    def stages(self) -> int:
        """Number of stages, k * P."""
        return len(self.owners) * self.ranks

    def rank_of(self, stage: int) -> int:
        """Rank of a stage."""
        return stage % self.ranks

    def region_of(self, stage: int) -> int:
        """Region of a stage, counted from 0."""
        return stage // self.ranks

    def path(self, mb: int) -> tuple[int, ...]:
        """Stages that micro-batch `mb` passes from input to loss."""
        return self.paths[mb]

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """`path` of every micro-batch: the owner's stage of a Replicated region, all P of a Sharded one."""
        paths = []
        for mb in range(self.micro_batches):
            path: list[int] = []
            for region, owner in enumerate(self.owners):
                path += self.region_stages(region) if owner is None else [region * self.ranks + owner[mb]]
            paths.append(tuple(path))
        return tuple(paths)

    def region_stages(self, region: int) -> range:
        """Stages of a region in the order in which its layers follow each other."""
        first, last = region * self.ranks, (region + 1) * self.ranks - 1
        return range(last, first - 1, -1) if region in self.reflected else range(first, last + 1)

    @cached_property
    def neighbours(self) -> dict[tuple[int, int], tuple[int | None, int | None]]:
        """(stage, micro-batch) -> (stage before, stage after) on its path; None at input and loss."""
        table: dict[tuple[int, int], tuple[int | None, int | None]] = {}
        for mb, path in enumerate(self.paths):
            before: list[int | None] = [None, *path[:-1]]
            after: list[int | None] = [*path[1:], None]
            for stage, left, right in zip(path, before, after, strict=True):
                table[stage, mb] = (left, right)
        return table

    @cached_property
    def ends(self) -> dict[Action, Action]:
        """Every message that the paths and gates ask for, from either end to the other: SEND <-> RECV."""
        table: dict[Action, Action] = {}
        for mb, path in enumerate(self.paths):
            for left, right in zip(path, path[1:], strict=False):
                if (right - left) % self.ranks == 0:
                    continue
                pairs = [(Action(left, SEND_F, mb), Action(right, RECV_F, mb))]
                if self.gates[right].sends_gradient:
                    pairs.append((Action(right, SEND_B, mb), Action(left, RECV_B, mb)))
                for send, receive in pairs:
                    table[send], table[receive] = receive, send
        return table

    def holders(self, layer: int) -> tuple[int, ...]:
        """Ranks whose slabs hold a layer: one when Sharded, all P when Replicated."""
        return tuple(
            sorted({self.rank_of(stage) for stage, (first, last) in enumerate(self.slabs) if first <= layer < last})
        )


def place(regions: tuple[Region, ...], model: ModelSpec, ranks: int, micro_batches: int) -> Placement:
    """Lay regions on the ranks and set the gates of every stage.

    The gates are taken slab by slab, so an inline encoder that fills the first slabs and is frozen gets no
    gradient there. Source: design, section 3, "Backward footprint".
    """
    trainable: list[bool] = []  # of each slab in input-to-loss order; a Replicated region is one slab
    for region in regions:
        slabs = region.slabs[:1] if region.owner is not None else region.slabs
        trainable += [
            any(layer.trainable for layer in model.layers[first:last])
            for first, last in (slabs[::-1] if region.reflected else slabs)
        ]
    by_slab = iter(footprint(trainable))
    gates: list[Gates] = []
    for region in regions:
        if region.owner is not None:
            gates += [next(by_slab)] * ranks
        else:
            own = [next(by_slab) for _ in range(ranks)]
            gates += own[::-1] if region.reflected else own
    return Placement(
        ranks,
        micro_batches,
        tuple(region.owner for region in regions),
        tuple(gates),
        tuple(slab for region in regions for slab in region.slabs),
        frozenset(index for index, region in enumerate(regions) if region.reflected),
    )
