"""Cases of the graph runner: those of `cells_case` with one shape for all micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cells_case import FILL, GPIPE, HEAD, IMAGES, INLINE, PROJECTOR, SPLIT, TRANSPOSE, Case, batch_of

from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.shapes import TensorSpec

MAX_IMAGES = 2  # of a sample
LENGTH = 32


@dataclass(frozen=True)
class GraphCase:
    """One run to compare with one process."""

    case: Case
    dtype: str = "float32"
    recompute: tuple[int, ...] = ()
    evaluates: bool = False  # once, before the third step

    @property
    def name(self) -> str:
        """File-name safe and unique."""
        return f"{self.case.name}_{self.dtype}_{'-'.join(map(str, self.recompute))}"


GRAPH_CASES = [
    GraphCase(Case(INLINE, 1), evaluates=True),
    GraphCase(Case(INLINE, 1, micro_batches=2), dtype="float16"),
    GraphCase(Case(INLINE, 2, micro_batches=2)),
    GraphCase(Case(GPIPE, 2, micro_batches=2)),
    GraphCase(Case("wave(vision+llm)", 2, micro_batches=2)),
    GraphCase(Case("zb(vision+llm)", 2, micro_batches=2)),
    GraphCase(Case("1f1b(vision+llm)*2", 2, micro_batches=2)),
    GraphCase(Case(TRANSPOSE, 2), evaluates=True),
    GraphCase(Case(TRANSPOSE, 2, vision=False)),
    GraphCase(Case(TRANSPOSE, 2, micro_batches=2), recompute=(0, 1, 3)),
    GraphCase(Case(TRANSPOSE, 2, micro_batches=2), dtype="float16"),
    GraphCase(Case(TRANSPOSE, 2, micro_batches=1)),  # rank 1 encodes nothing
    GraphCase(Case("1f1b(vision) >> transpose(llm) >> zb(gen)", 2, micro_batches=2, parts="vision+llm+gen")),
    GraphCase(Case(TRANSPOSE, 2, micro_batches=2, data_parallel=2)),
    GraphCase(Case(INLINE, 4, vision=False)),
    GraphCase(Case(GPIPE, 4)),
    GraphCase(Case("wave(vision+llm)", 4, deep=True)),
    GraphCase(Case("transpose(vision) >> 1f1b(llm)", 4)),
    GraphCase(Case("transpose(vision) >> zb(llm)", 4)),
    GraphCase(Case(SPLIT, 1, micro_batches=2)),
    GraphCase(Case(SPLIT, 2), evaluates=True),
    GraphCase(Case(SPLIT, 4, vision=False)),
    GraphCase(Case(FILL, 2)),
    GraphCase(Case(FILL.replace("fill", "fill, split=2"), 4)),
    GraphCase(Case(INLINE, 1, dropout=0.2)),
    GraphCase(Case(TRANSPOSE, 2, dropout=0.2), recompute=(0, 1, 3)),
    GraphCase(Case(SPLIT, 2, dropout=0.2)),
    GraphCase(Case(INLINE, 2, dropout=0.2, micro_batches=2, data_parallel=2)),
    GraphCase(Case(TRANSPOSE, 2, freeze=PROJECTOR)),
    GraphCase(Case(INLINE, 4, freeze=HEAD, tied=False)),
    GraphCase(Case(TRANSPOSE, 2, scale=1024.0), dtype="float16"),
]


def columns_of(case: Case) -> dict[str, TensorSpec]:
    """Declare the shapes of a micro-batch: room for two images of each sample."""
    size = len(IMAGES) // (case.micro_batches * case.data_parallel)
    return {
        "pixel_values": TensorSpec((MAX_IMAGES * size, 1, 8, 8)),
        "input_ids": TensorSpec((size, LENGTH), "int32"),
        "labels": TensorSpec((size, LENGTH), "int32"),
    }


def static_batch(step: int, case: Case, replica: int) -> list[dict[str, np.ndarray]]:
    """Pad the images of `batch_of` to the declared number, with images of noise: nobody may read them."""
    room = columns_of(case)["pixel_values"].shape[0]
    batch = []
    for mb in batch_of(step, case, replica):
        pixels = np.full((room, 1, 8, 8), 7.0, np.float32)
        pixels[: len(mb["pixel_values"])] = mb["pixel_values"]
        batch.append({**mb, "pixel_values": pixels})
    return batch


def topology_of(case: Case) -> Topology:
    """P x D of a case."""
    return Topology(case.ranks, case.data_parallel)
