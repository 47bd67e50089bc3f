"""What a plan's stages need in memory, from its layers: the way from layers to the curves of `memory_bytes.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyperparallel.algebra import Plan
from hyperparallel.cost.memory_stage import LayerBytes, StageBytes, stage_bytes


def plan_stages(
    plan: Plan,
    layers: Sequence[LayerBytes],
    carries: Sequence[int],
    columns: Sequence[Mapping[str, int]],
    recompute: Sequence[int] = (),
) -> tuple[list[StageBytes], list[dict[str, int]]]:
    """Add up layers to the stages of a plan.

    Args:
        plan: gives slabs and gates.
        layers: of every layer of the model.
        carries: bytes that every layer hands on; 0 for the last.
        columns: of every layer, column it reads -> bytes in a micro-batch.
        recompute: stages whose forward is run again in the backward.

    Returns:
        Of every stage its bytes, and the columns that it reads.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 3}), ranks=2, micro_batches=2)
        >>> layer = LayerBytes(weights=8, trained=8, largest=4, constants=0, saved=100, forward=0, backward=20)
        >>> stages, batch = plan_stages(plan, [layer] * 3, [7, 7, 0], [{"ids": 5}, {}, {"ids": 5}])
        >>> [(one.saved, one.carry) for one in stages], batch
        ([(200, 7), (100, 0)], [{'ids': 5}, {'ids': 5}])
    """
    stages, batch = [], []
    for stage, (first, last) in enumerate(plan.placement.slabs):
        trains = plan.placement.gates[stage].receives_gradient
        one = stage_bytes(layers[first:last], carries[last - 1], trains=trains, recompute=stage in recompute)
        stages.append(one)
        batch.append({name: size for own in columns[first:last] for name, size in own.items()})
    return stages, batch
