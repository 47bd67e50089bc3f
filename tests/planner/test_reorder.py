"""The order of a step's micro-batches: a permutation, the same every time, and it never makes the step longer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cost import Costs, simulate
from hyperparallel.planner.reorder import permuted, reorder, step_time

MODEL = ModelSpec.of({"vision": 2, "llm": 4}, frozen={"vision"})


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["1f1b(vision+llm)", "transpose(vision) >> 1f1b(llm)", "transpose(vision, split=2) >> zb(llm)"]),
    st.integers(1, 3),
    st.lists(st.integers(0, 30), min_size=1, max_size=7),
)
def test_it_never_loses_and_is_reproducible(line, ranks, encodes):
    plan = derive(line, MODEL, ranks, len(encodes))
    compute = {(stage, kind): 4.0 for stage in range(plan.placement.stages) for kind in "FBIW"}
    compute |= {(stage, "F"): [float(time) for time in encodes] for stage in range(ranks)}
    costs = Costs(compute, 0.5, shares=[(0.5, 0.5)] * len(encodes))
    found = reorder(plan, costs, seed=1)
    assert found == reorder(plan, costs, seed=1)
    assert sorted(found.order) == list(range(len(encodes)))
    assert found.before == simulate(plan, costs).step_time
    assert found.after == simulate(plan, permuted(costs, found.order)).step_time <= found.before


def test_a_heavy_encode_that_comes_first_is_put_later():
    plan = derive("transpose(vision, owner=[0,1,0,1]) >> 1f1b(llm)", MODEL, 2, 4)
    compute = {(stage, kind): 4.0 for stage in (2, 3) for kind in "FB"}
    costs = Costs(compute | {(rank, "F"): [20.0, 2.0, 2.0, 2.0] for rank in (0, 1)})
    found = reorder(plan, costs)
    assert found.after < found.before and found.order.index(0) in (1, 3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shares_and_bytes_move_with_their_micro_batch(order):
    costs = Costs({(0, "F"): [1, 2, 3]}, 0, 1, {(0, "SEND_F"): [10, 20, 30]}, [(0.1,), (0.2,), (0.3,)])
    moved = permuted(costs, order)
    assert moved.compute[0, "F"] == [order_ + 1 for order_ in order]
    assert moved.message_bytes[0, "SEND_F"] == [10 * (mb + 1) for mb in order]
    assert [share[0] for share in moved.shares] == [pytest.approx(0.1 * (mb + 1)) for mb in order]


def test_without_an_order_the_step_time_is_that_of_the_timeline():
    plan = derive("gpipe(vision+llm)", MODEL, 2, 2)
    costs = Costs({(stage, kind): 3.0 for stage in (0, 1) for kind in "FB"})
    assert step_time(plan, costs) == simulate(plan, costs).step_time
