from itertools import pairwise

import pytest
from algebra_cases import plan_of, plans, quick
from algebra_machine import nodes_of, path_of, split_of, units_of
from hypothesis import given

from hyperparallel.algebra import LayerSpec, ModelSpec, derive
from hyperparallel.algebra.program import SENDS, Piece


def test_a_micro_batch_passes_its_owner_and_then_every_slab():
    placement = plan_of("transpose(vision, owner=[2,0,2,1]) >> 1f1b(llm)", 3, 4).placement
    assert placement.paths == ((2, 3, 4, 5), (0, 3, 4, 5), (2, 3, 4, 5), (1, 3, 4, 5))
    assert placement.owners == ((2, 0, 2, 1), None)
    assert placement.stages == 6
    assert [placement.rank_of(stage) for stage in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [placement.region_of(stage) for stage in range(6)] == [0, 0, 0, 1, 1, 1]
    assert placement.neighbours[3, 0] == (((2, 0),), (4, 0))
    assert placement.neighbours[0, 1] == ((), (3, 1))
    assert placement.neighbours[5, 3] == (((4, 3),), None)
    assert (0, 0) not in placement.neighbours


@pytest.mark.parametrize("ranks, micro_batches, owner", [(3, 5, (0, 1, 2, 0, 1)), (4, 2, (0, 1)), (1, 3, (0, 0, 0))])
def test_owners_go_round(ranks, micro_batches, owner):
    assert plan_of("transpose(vision) >> 1f1b(llm)", ranks, micro_batches).owner == owner


def test_a_plan_without_replicated_region_has_no_owner():
    assert plan_of("1f1b(llm)").owner is None


def test_a_replicated_layer_is_held_by_every_rank_and_a_sharded_one_by_one():
    placement = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 5}), 3, 1).placement
    assert [placement.holders(layer) for layer in range(7)] == [(0, 1, 2)] * 2 + [(0,), (0,), (1,), (1,), (2,)]


@pytest.mark.parametrize("line", ["1f1b(llm)", "gpipe(llm)", "zb(llm)", "1f1b(llm)*2", "wave(llm)"])
def test_30_layers_on_4_ranks_are_all_there_once(line):
    placement = derive(line, ModelSpec.of({"llm": 30}), 4, 4).placement
    assert sorted(layer for first, last in placement.slabs for layer in range(first, last)) == list(range(30))
    assert all(len(placement.holders(layer)) == 1 for layer in range(30))
    if placement.stages == 4:
        assert [last - first for first, last in placement.slabs] == [8, 8, 7, 7]
        assert [layer for first, last in placement.slabs for layer in range(first, last)] == list(range(30))


def test_a_reflected_region_runs_from_the_last_rank_to_rank_0():
    placement = derive("wave(llm)", ModelSpec.of({"llm": 7}), 3, 2).placement
    assert placement.reflected == {1}
    assert placement.paths == ((0, 1, 2, 5, 4, 3),) * 2
    assert placement.slabs == ((0, 2), (2, 3), (3, 4), (6, 7), (5, 6), (4, 5))
    assert [placement.holders(layer) for layer in range(7)] == [(0,), (0,), (1,), (2,), (2,), (1,), (0,)]
    assert placement.neighbours[5, 0] == (((2, 0),), (4, 0))
    assert list(placement.region_stages(1)) == [5, 4, 3]


def test_gates_of_a_reflected_region_follow_its_layers():
    layers = (LayerSpec("llm", False),) * 4 + (LayerSpec("llm"),) * 2
    placement = derive("wave(llm)", ModelSpec(layers), 3, 1).placement
    assert [gates.receives_gradient for gates in placement.gates] == [False, False, False, True, True, False]
    assert [gates.sends_gradient for gates in placement.gates] == [False, False, False, True, False, False]


def test_a_replicated_region_at_the_end_or_in_the_middle_is_passed_at_its_owner():
    assert plan_of("1f1b(vision) >> transpose(llm)", 3, 2).placement.paths == ((0, 1, 2, 3), (0, 1, 2, 4))
    middle = plan_of("wave(vision) >> transpose(audio, owner=[1,0]) >> 1f1b(llm)", 2, 2).placement
    assert middle.paths == ((0, 1, 3, 2, 5, 6, 7), (0, 1, 3, 2, 4, 6, 7))


@quick
@given(plans())
def test_paths_follow_the_layers(plan):
    first = int(split_of(plan) > 1)  # of an encode in pieces, any of them
    paths = [path_of(plan, mb) for mb in range(plan.micro_batches)]
    assert [list(path[first:]) for path in plan.placement.paths] == paths
    for mb in range(plan.micro_batches):
        covered = [layer for stage in plan.placement.path(mb) for layer in range(*plan.placement.slabs[stage])]
        assert covered == list(range(len(plan.model.layers)))


@quick
@given(plans())
def test_neighbours_are_the_steps_of_the_paths(plan):
    placement = plan.placement
    assert sorted(map(str, placement.neighbours)) == sorted(map(str, nodes_of(plan)))
    steps = set()
    for unit in units_of(plan):
        nodes = [(stage, unit) for stage in path_of(plan, unit)]
        if isinstance(unit, Piece):
            nodes[1] = (nodes[1][0], unit.mb)
        steps |= set(pairwise(nodes))
    assert {(node, after) for node, (_, after) in placement.neighbours.items() if after} == steps
    assert {(left, node) for node, (before, _) in placement.neighbours.items() for left in before} == steps


def test_pieces_join_at_the_first_stage_of_the_next_region():
    placement = plan_of("transpose(vision, split=2, owner=[1,0,0,0]) >> 1f1b(llm)", 2, 2).placement
    assert (placement.split, placement.owners) == (2, (((1, 0), (0, 0)), None))
    assert placement.neighbours[2, 0] == (((1, Piece(0, 0)), (0, Piece(0, 1))), (3, 0))
    assert placement.neighbours[0, Piece(0, 1)] == ((), (2, 0))
    ends = {str(send): str(receive) for send, receive in placement.ends.items() if send.kind in SENDS}
    assert ends["1SEND_F0.0"] == "2RECV_F0.0" and ends["2SEND_B0.0"] == "1RECV_B0.0"
    assert "0SEND_F0.1" not in ends
