"""Who sums which gradient with whom: replicas, copies of a transposed encoder, tied ends; each counted once."""

from dataclasses import replace

import numpy as np
import pytest
from cells_case import CASES, INLINE, TRANSPOSE, Case, layers_of, plan_of
from mindspore import Tensor

from hyperparallel import Runner, Transport, derive, model_spec
from hyperparallel.algebra.topology import Topology
from hyperparallel.cells.gradients import share
from hyperparallel.cells.own_slabs import build_slabs

TIED, ENCODER, OTHER = "llm.embed.weight", "vision.patch.project.weight", "llm.blocks.0.out.weight"


class Loopback(Transport):
    """A transport whose other ranks hold the same as this one."""

    def sum(self, values, ranks, what):
        return values * len(ranks)


def runner_of(case, rank):
    layers = layers_of(case)
    plan = plan_of(case, layers)
    return Runner(
        plan, layers, transport=Loopback(rank, case.workers), data_parallel=case.data_parallel, jit=False, seed=1
    )


@pytest.mark.parametrize(
    ("case", "rank", "name", "ranks"),
    [
        (Case(INLINE, 1), 0, TIED, (0,)),
        (Case(INLINE, 2), 0, TIED, (0, 1)),
        (Case(INLINE, 2), 1, TIED, (0, 1)),
        (Case(INLINE, 4), 3, TIED, (0, 3)),
        (Case(INLINE, 2, data_parallel=2), 3, TIED, (0, 1, 2, 3)),
        (Case(INLINE, 2, tied=False), 0, TIED, (0,)),
        (Case(INLINE, 2), 0, ENCODER, (0,)),
        (Case(INLINE, 2, data_parallel=2), 1, ENCODER, (0, 1)),
        (Case(TRANSPOSE, 2), 1, ENCODER, (0, 1)),
        (Case(TRANSPOSE, 4), 2, ENCODER, (0, 1, 2, 3)),
        (Case(TRANSPOSE, 2, data_parallel=2), 1, ENCODER, (0, 1, 2, 3)),
        (Case(TRANSPOSE, 2, data_parallel=2), 1, OTHER, (0, 1)),
        (Case(TRANSPOSE, 2), 0, OTHER, (0,)),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_a_gradient_is_summed_over_the_holders_and_their_replicas(case, rank, name, ranks):
    (shared,) = [one for one in runner_of(case, rank).gradients.shared if one.name == name]
    assert shared.ranks == ranks and shared.counted_by == ranks[0]


@pytest.mark.parametrize("case", [Case(INLINE, 1), Case(TRANSPOSE, 2), Case(TRANSPOSE, 2, data_parallel=2)], ids=str)
def test_reduce_adds_micro_batches_copies_and_ranks_and_divides_by_the_weight(case):
    gradients = runner_of(case, 0).gradients
    stages = sorted({stage for one in gradients.shared for stage, _ in one.copies})
    counts = {stage: max(i for one in gradients.shared for s, i in one.copies if s == stage) + 1 for stage in stages}
    shapes = {c: p.shape for one in gradients.shared for c, p in zip(one.copies, one.parameters, strict=True)}
    for _ in range(3):
        for stage in stages:
            gradients.add(stage, [Tensor(np.ones(shapes[stage, i], np.float32)) for i in range(counts[stage])])
    reduced = gradients.reduce(8.0)
    for one, value in zip(gradients.shared, reduced, strict=True):
        np.testing.assert_array_equal(value, 3 * len(one.copies) * len(one.ranks) / 8, err_msg=one.name)
    assert all(not value.any() for value in gradients.reduce(1.0)), "sums were kept for the next step"


@pytest.mark.parametrize("case", [case for case in CASES if case.jit and case.pad == 32], ids=lambda case: case.name)
def test_every_trained_parameter_is_counted_once_in_the_norm(case):
    runners = [runner_of(case, rank) for rank in range(case.workers)]
    counted = [one.name for r in runners for one in r.gradients.shared if one.counted_by == r.transport.rank]
    trained = {p.name for r in runners for slab in r.slabs.values() for p in slab.weights}
    assert sorted(counted) == sorted(trained - ({"llm.head.weight"} if case.tied else set()))


def test_what_a_shard_has_only_a_share_of_is_summed_over_the_shards_too():
    case = Case(INLINE, 1)
    norm = "llm.blocks.0.norm1.weight"
    layers = [
        replace(layer, partial=("norm1.weight",)) if layer.name == "llm.blocks.0" else layer
        for layer in layers_of(case)
    ]
    plan = derive(case.schedule, model_spec(layers), 1, case.micro_batches)
    slabs = build_slabs(plan, layers, 0, seed=1, jit=False, tensor_parallel=1)
    shared = {one.name: one for one in share(plan, layers, slabs, Topology(1, 2, 2), 3)}
    assert shared[norm].ranks == (0, 1, 2, 3) and shared[norm].counted_by == 0
    assert shared["llm.blocks.1.norm1.weight"].ranks == (1, 3), "the other norms are equal on all shards"
