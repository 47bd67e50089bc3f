"""Every layer's Cell says on which rank it is, whatever the plan and the runner."""

import pytest
from cells_case import INLINE, TRANSPOSE, Case, layers_of

from hyperparallel import Runner, Transport, derive, model_spec
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.shapes import TensorSpec

COLUMNS = {
    "pixel_values": TensorSpec((4, 1, 8, 8)),
    "input_ids": TensorSpec((2, 32), "int32"),
    "labels": TensorSpec((2, 32), "int32"),
}


class Apart(Transport):
    """One rank of a job that is not there: building needs a place and names of groups, no message."""

    def group(self, workers):
        return f"group of {sorted(workers)}"


def stepwise(plan, layers, rank):
    return Runner(plan, layers, transport=Apart(rank, plan.ranks), jit=False)


def graph(plan, layers, rank):
    return GraphRunner(plan, layers, COLUMNS, transport=Apart(rank, plan.ranks), wires="pair_sum")


@pytest.mark.parametrize("make", [stepwise, graph])
@pytest.mark.parametrize("line", [INLINE, TRANSPOSE, "1f1b(vision+llm)*2", "zb(vision+llm, fold=v)"])
def test_each_cell_carries_its_rank(line, make):
    layers = layers_of(Case(line, 2))
    plan = derive(line, model_spec(layers), 2, 4)
    seen = []
    for rank in range(2):
        cells = [cell for slab in make(plan, layers, rank).slabs.values() for cell in slab.chain.layers]
        assert {cell.pipeline_stage for cell in cells} == {rank}
        seen.append(len(cells))
    assert sum(seen) == sum(len(plan.placement.holders(index)) for index in range(len(layers)))
