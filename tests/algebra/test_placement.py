import pytest
from algebra_cases import plan_of, plans, quick
from hypothesis import given

from hyperparallel.algebra import ModelSpec, derive


def test_a_micro_batch_passes_its_owner_and_then_every_slab():
    placement = plan_of("transpose(vision, owner=[2,0,2,1]) >> 1f1b(llm)", 3, 4).placement
    assert placement.paths == ((2, 3, 4, 5), (0, 3, 4, 5), (2, 3, 4, 5), (1, 3, 4, 5))
    assert placement.owners == ((2, 0, 2, 1), None)
    assert placement.stages == 6
    assert [placement.rank_of(stage) for stage in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [placement.region_of(stage) for stage in range(6)] == [0, 0, 0, 1, 1, 1]
    assert placement.neighbours[3, 0] == (2, 4)
    assert placement.neighbours[0, 1] == (None, 3)
    assert placement.neighbours[5, 3] == (4, None)
    assert (0, 0) not in placement.neighbours


@pytest.mark.parametrize("ranks, micro_batches, owner", [(3, 5, (0, 1, 2, 0, 1)), (4, 2, (0, 1)), (1, 3, (0, 0, 0))])
def test_owners_go_round(ranks, micro_batches, owner):
    assert plan_of("transpose(vision) >> 1f1b(llm)", ranks, micro_batches).owner == owner


def test_a_plan_without_replicated_region_has_no_owner():
    assert plan_of("1f1b(llm)").owner is None


def test_a_replicated_layer_is_held_by_every_rank_and_a_sharded_one_by_one():
    placement = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 5}), 3, 1).placement
    assert [placement.holders(layer) for layer in range(7)] == [(0, 1, 2)] * 2 + [(0,), (0,), (1,), (1,), (2,)]


@quick
@given(plans())
def test_neighbours_are_the_steps_of_the_paths(plan):
    placement = plan.placement
    assert set(placement.neighbours) == {(stage, mb) for mb, path in enumerate(placement.paths) for stage in path}
    for (stage, mb), (left, right) in placement.neighbours.items():
        path = (None, *placement.path(mb), None)
        at = path.index(stage)
        assert (left, right) == (path[at - 1], path[at + 1])
