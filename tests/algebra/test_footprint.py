from itertools import pairwise, product

import pytest
from algebra_cases import FOLDING, REPLICATED, SHARDED, plan_of, quick
from algebra_machine import path_of, slab_of
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive, order
from hyperparallel.algebra.footprint import footprint
from hyperparallel.algebra.order import Bwd, Coll, DpReduce, Loss, WeightGrad


@pytest.mark.parametrize("regions", range(1, 6))
def test_the_three_gates_follow_their_definition_on_every_model(regions):
    for trainable in product([False, True], repeat=regions):
        gates = footprint(trainable)
        for j in range(regions):
            assert gates[j].sends_gradient == any(trainable[i] for i in range(regions) if i < j)
            assert gates[j].receives_gradient == any(trainable[i] for i in range(regions) if i <= j)
            assert gates[j].reduces == trainable[j]


TRANSPOSED = [f"transpose(vision) >> {name}(llm)" for name in SHARDED]
BACKWARDS = [  # frozen parts, whether the encoder has backwards and reduces, the same of the backbone
    ((), (True, True), (True, True)),
    (("vision",), (False, False), (True, True)),
    (("llm",), (True, True), (True, False)),
    (("vision", "llm"), (False, False), (False, False)),
]


@pytest.mark.parametrize("line", TRANSPOSED)
@pytest.mark.parametrize("frozen, encoder, backbone", BACKWARDS, ids=["none", "vision", "llm", "all"])
def test_a_gate_that_is_off_removes_the_event_and_both_ends_of_its_message(line, frozen, encoder, backbone):
    plan = plan_of(line, 3, 5, frozen)
    events = order(plan).events
    parts = [plan.model.layers[region.span[0]].part for region in plan.regions]
    for part, (backward, reduces) in (("vision", encoder), ("llm", backbone)):
        assert any(isinstance(e, Bwd) and parts[e.region] == part for e in events) == backward
        assert any(isinstance(e, DpReduce) and parts[e.region] == part for e in events) == reduces
    crosses = encoder[0]
    assert any(isinstance(event, Coll) and event.comm == "Scatter" for event in events) == crosses
    kinds = {(action.stage // 3, action.kind) for program in plan.programs for action in program}
    assert ((1, "SEND_B") in kinds, (0, "RECV_B") in kinds) == (backbone[0], crosses)
    assert any(a.kind == "SEND_B" and a.stage == 3 for program in plan.programs for a in program) == crosses
    assert len({event for event in events if isinstance(event, Loss)}) == 5


@pytest.mark.parametrize("name", REPLICATED)
def test_every_copy_of_a_trained_region_reduces_even_one_that_owns_nothing(name):
    reduces = {e for e in order(plan_of(f"{name}(vision) >> 1f1b(llm)", 4, 2)).events if isinstance(e, DpReduce)}
    assert reduces == {DpReduce(0, "ReplicaGroup", rank) for rank in range(4)} | {
        DpReduce(1, "DataGroup", rank) for rank in range(4)
    }


PARTS = ("a", "b", "c")


@st.composite
def models(draw):
    """Draw P, M and a model of parts, each of them trainable or not."""
    frozen = draw(st.sets(st.sampled_from(PARTS)))
    return draw(st.integers(1, 4)), draw(st.integers(1, 4)), ModelSpec.of(dict.fromkeys(PARTS, 16), frozen)


@st.composite
def lines(draw):
    """Draw a region for every part: any skeleton, count and fold, no two Replicated ones side by side."""
    regions = []
    for part in PARTS:
        before = regions[-1].split("(")[0] if regions else ""
        name = draw(st.sampled_from(SHARDED if before in REPLICATED else SHARDED + REPLICATED))
        fold = draw(st.sampled_from(["", ", fold=v"])) if name in FOLDING else ""
        count = draw(st.sampled_from(["", "*2"])) if name in SHARDED else ""
        regions.append(f"{name}({part}{fold}){count}")
    return " >> ".join(regions)


def backward_footprint(plan):
    """What an order asks of the backward pass, by layers: backwards, gradient messages at borders, reduces."""
    graph = order(plan)

    def layers(event):
        return range(*slab_of(plan, event.region * plan.ranks + event.rank))

    backward = [(layer, e.mb) for e in graph.events if isinstance(e, Bwd) for layer in layers(e)]
    assert len(backward) == len(set(backward))
    messages = {e for _, e, kind in graph.edges if kind == "Gradient" and isinstance(e, Coll)}
    crossing = {(slab_of(plan, e.seam[0])[1], e.mb) for e in messages}
    return set(backward), crossing, {layer for e in graph.events if isinstance(e, DpReduce) for layer in layers(e)}


def borders_within_a_rank(plan):
    """The borders that a micro-batch crosses without leaving its rank: they need no message."""
    return {
        (slab_of(plan, left)[1], mb)
        for mb in range(plan.micro_batches)
        for left, right in pairwise(path_of(plan, mb))
        if left % plan.ranks == right % plan.ranks
    }


@quick
@given(models(), lines(), lines())
def test_the_backward_footprint_is_that_of_the_gates_and_no_skeleton_changes_it(sizes, line, other):
    ranks, micro_batches, model = sizes
    trainable = [layer.trainable for layer in model.layers]
    first = trainable.index(True) if True in trainable else len(trainable)
    for text in (line, other):
        plan = derive(text, model, ranks, micro_batches)
        backward, crossing, reduces = backward_footprint(plan)
        assert backward == {(layer, mb) for layer in range(first, len(trainable)) for mb in range(micro_batches)}
        assert reduces == {layer for layer, trained in enumerate(trainable) if trained}
        borders = {
            (slab_of(plan, stage)[1], mb) for mb in range(micro_batches) for stage in path_of(plan, mb)[:-1]
        } - borders_within_a_rank(plan)
        assert crossing == {(border, mb) for border, mb in borders if border > first}
        # The gates of every slab, by definition, from its layers alone.
        for stage, gates in enumerate(plan.placement.gates):
            start, end = slab_of(plan, stage)
            assert gates == (any(trainable[:start]), any(trainable[:end]), any(trainable[start:end]))


@pytest.mark.parametrize("frozen", [(), ("vision",), ("llm",), ("vision", "llm")])
@pytest.mark.parametrize("form", ["{}(vision+llm)", "transpose(vision) >> {}(llm)", "{}(vision) >> transpose(llm)"])
def test_on_the_same_placement_the_events_are_the_same_but_for_the_split(form, frozen):
    straight = [name for name in SHARDED if not plan_of(f"{name}(llm)").placement.reflected]
    sets = [
        frozenset(e for e in order(plan_of(form.format(name), 3, 4, frozen)).events if not isinstance(e, WeightGrad))
        for name in straight
    ]
    assert len(sets) >= 3 and len(set(sets)) == 1


def test_a_frozen_encoder_that_fills_the_first_slab_inline_gets_no_gradient_there():
    plan = derive("1f1b(vision+llm, slabs=[3,1,2])", ModelSpec.of({"vision": 3, "llm": 3}, {"vision"}), 3, 4)
    assert [gates.receives_gradient for gates in plan.placement.gates] == [False, True, True]
    assert [gates.sends_gradient for gates in plan.placement.gates] == [False, False, True]
    assert {action.kind for action in plan.programs[0]} == {"F", "SEND_F"}
