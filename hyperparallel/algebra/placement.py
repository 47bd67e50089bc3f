"""Placement: which rank holds which layers, and the path of every micro-batch through the stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hyperparallel.algebra.footprint import Gates, footprint
from hyperparallel.algebra.model import ModelSpec, Span
from hyperparallel.algebra.program import RECV_B, RECV_F, SEND_B, SEND_F, Action, Piece, Unit
from hyperparallel.algebra.regions import Owner, Region

Node = tuple[int, Unit]
"""A stage and what it works on: a micro-batch, or one piece of it."""


@dataclass(frozen=True)
class Placement:
    """Where everything runs. A stage is a pair (region, rank); its index is r + (j-1)*P with regions j = 1..k.

    Args:
        ranks: P, ranks of one pipeline.
        micro_batches: M.
        owners: per region, None when Sharded, else the owner rank of every micro-batch, or one rank per piece of it.
        gates: footprint gates of every stage, by stage index.
        slabs: layers of every stage, by stage index; empty when the placement was inferred from a table.
        reflected: regions that run from rank P-1 down to rank 0.
    """

    ranks: int
    micro_batches: int
    owners: tuple[tuple[Owner, ...] | None, ...]
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
        """`path` of every micro-batch: the owner's stage of a Replicated region, all P of a Sharded one.

        Of a region that encodes in pieces it is the stage of the first piece; `neighbours` has them all.
        """
        paths = []
        for mb in range(self.micro_batches):
            path: list[int] = []
            for region, owner in enumerate(self.owners):
                path += self.region_stages(region) if owner is None else [self.nodes(region, mb)[0][0]]
            paths.append(tuple(path))
        return tuple(paths)

    @property
    def split(self) -> int:
        """Pieces in which the first region encodes a micro-batch's images; 1 without pieces."""
        owner = self.owners[0][0] if self.owners[0] else 0
        return 1 if isinstance(owner, int) else len(owner)

    def nodes(self, region: int, mb: int) -> tuple[Node, ...]:
        """Return what a Replicated region runs of a micro-batch: one node, or one per piece."""
        owners = self.owners[region]
        assert owners is not None, f"region {region} is Sharded"
        if isinstance(owners[mb], int):
            return ((region * self.ranks + owners[mb], mb),)
        return tuple((region * self.ranks + rank, Piece(mb, index)) for index, rank in enumerate(owners[mb]))

    def region_stages(self, region: int) -> range:
        """Stages of a region in the order in which its layers follow each other."""
        first, last = region * self.ranks, (region + 1) * self.ranks - 1
        return range(last, first - 1, -1) if region in self.reflected else range(first, last + 1)

    @cached_property
    def neighbours(self) -> dict[Node, tuple[tuple[Node, ...], Node | None]]:
        """Node -> (nodes before it, node after it): none at the input, several where pieces join, None at the loss."""
        table: dict[Node, tuple[tuple[Node, ...], Node | None]] = {}
        for mb, path in enumerate(self.paths):
            nodes = [(stage, mb) for stage in path]
            if self.split > 1:
                nodes = nodes[1:]
                first = self.nodes(0, mb)
                table |= dict.fromkeys(first, ((), nodes[0]))
            else:
                first = ()
            before: list[tuple[Node, ...]] = [first, *((node,) for node in nodes[:-1])]
            after: list[Node | None] = [*nodes[1:], None]
            table |= dict(zip(nodes, zip(before, after, strict=True), strict=True))
        return table

    @cached_property
    def ends(self) -> dict[Action, Action]:
        """Every message that the paths and gates ask for, from either end to the other: SEND <-> RECV."""
        table: dict[Action, Action] = {}
        for (left, unit), (_, after) in self.neighbours.items():
            if after is None or (after[0] - left) % self.ranks == 0:
                continue
            right = after[0]
            pairs = [(Action(left, SEND_F, unit), Action(right, RECV_F, unit))]
            if self.gates[right].sends_gradient:
                pairs.append((Action(right, SEND_B, unit), Action(left, RECV_B, unit)))
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
