from itertools import product

import pytest
from algebra_cases import LINES, REPLICATED, SHARDED, plan_of

from hyperparallel.algebra import ModelSpec, derive, order
from hyperparallel.algebra.footprint import footprint
from hyperparallel.algebra.order import Bwd, Coll, DpReduce, Loss


@pytest.mark.parametrize("regions", range(1, 6))
def test_the_three_gates_follow_their_definition_on_every_model(regions):
    for trainable in product([False, True], repeat=regions):
        gates = footprint(trainable)
        for j in range(regions):
            assert gates[j].sends_gradient == any(trainable[i] for i in range(regions) if i < j)
            assert gates[j].receives_gradient == any(trainable[i] for i in range(regions) if i <= j)
            assert gates[j].reduces == trainable[j]


def regions_of(events, kind):
    return {event.region for event in events if isinstance(event, kind)}


TRANSPOSED = [line for line in LINES if ">>" in line]
BACKWARDS = [  # frozen parts, regions with a B, regions that reduce, whether a gradient crosses the seam
    ((), {0, 1}, {0, 1}, True),
    (("vision",), {1}, {1}, False),
    (("llm",), {0, 1}, {0}, True),
    (("vision", "llm"), set(), set(), False),
]


@pytest.mark.parametrize("line", TRANSPOSED)
@pytest.mark.parametrize("frozen, backward, reduces, crosses", BACKWARDS, ids=["none", "vision", "llm", "all"])
def test_a_gate_that_is_off_removes_the_event_and_both_ends_of_its_message(line, frozen, backward, reduces, crosses):
    plan = plan_of(line, 3, 5, frozen)
    events = order(plan).events
    assert regions_of(events, Bwd) == backward
    assert regions_of(events, DpReduce) == reduces
    assert any(isinstance(event, Coll) and event.comm == "Scatter" for event in events) == crosses
    kinds = {(action.stage // 3, action.kind) for program in plan.programs for action in program}
    assert ((1, "SEND_B") in kinds, (0, "RECV_B") in kinds) == (bool(backward & {1}), crosses)
    assert any(a.kind == "SEND_B" and a.stage == 3 for program in plan.programs for a in program) == crosses
    assert {region for region, kind in kinds if kind == "B"} == backward
    assert len({event for event in events if isinstance(event, Loss)}) == 5


@pytest.mark.parametrize("name", REPLICATED)
def test_every_copy_of_a_trained_region_reduces_even_one_that_owns_nothing(name):
    reduces = {e for e in order(plan_of(f"{name}(vision) >> 1f1b(llm)", 4, 2)).events if isinstance(e, DpReduce)}
    assert reduces == {DpReduce(0, "ReplicaGroup", rank) for rank in range(4)} | {
        DpReduce(1, "DataGroup", rank) for rank in range(4)
    }


@pytest.mark.parametrize("frozen", [(), ("vision",), ("llm",), ("vision", "llm")])
@pytest.mark.parametrize("form", ["{}(vision+llm)", *(f"{name}(vision) >> {{}}(llm)" for name in REPLICATED)])
def test_the_events_do_not_depend_on_the_skeleton(form, frozen):
    sets = [frozenset(order(plan_of(form.format(name), 3, 4, frozen)).events) for name in SHARDED]
    assert len(set(sets)) == 1


def test_a_frozen_encoder_that_fills_the_first_slab_inline_gets_no_gradient_there():
    plan = derive("1f1b(vision+llm, slabs=[3,1,2])", ModelSpec.of({"vision": 3, "llm": 3}, {"vision"}), 3, 4)
    assert [gates.receives_gradient for gates in plan.placement.gates] == [False, True, True]
    assert [gates.sends_gradient for gates in plan.placement.gates] == [False, False, True]
    assert {action.kind for action in plan.programs[0]} == {"F", "SEND_F"}
