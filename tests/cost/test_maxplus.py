from functools import cache

import numpy as np
import pytest
from cost_cases import SHARDED, TEXT, WARMUP, priced, quick
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cost import Costs, Transfer, simulate, transfer
from hyperparallel.cost.maxplus import blocks, compose, events, in_order

SHAPES = ["{0}(vision+llm)", "{0}(vision+llm)*2", "transpose(vision) >> {0}(llm)", "{0}(vision) >> transpose(llm)"]
FOLDED = ["zb(vision+llm, fold=v)", "transpose(vision) >> zb(llm, fold=v)", "1f1b(vision) >> zb(llm)"]
LINES = [shape.format(name) for shape in SHAPES for name in SHARDED] + FOLDED


@st.composite
def cases(draw):
    """Draw any plan of the registry, with whole-number costs by stage and often by micro-batch."""
    line, ranks, micro_batches = draw(st.sampled_from(LINES)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    frozen = draw(st.sets(st.sampled_from(["vision", "llm"])))
    plan = derive(line, ModelSpec.of({"vision": 8, "llm": 16}, frozen), ranks, micro_batches)
    time = st.integers(0, 9)
    times = st.one_of(time, st.lists(time, min_size=micro_batches, max_size=micro_batches))
    kinds = draw(st.sampled_from(["FB", "FBIW"]))
    compute = {(stage, kind): draw(times) for stage in range(plan.placement.stages) for kind in kinds}
    return plan, Costs(compute, alpha=draw(time))


def longest_path(plan, costs, arrivals):
    """When every rank is done, by recursion over what each action waits for; nothing of `play` or `maxplus`."""
    ranks, placement = plan.ranks, plan.placement
    before = {action: row[at - 1] if at else None for row in plan.compute for at, action in enumerate(row)}

    @cache
    def end(action):
        stage, kind, mb = action
        path = placement.path(mb)
        at = path.index(stage)
        rank = stage % ranks
        start = arrivals.get((rank,), 0) if before[action] is None else end(before[action])
        if kind == "F" and at == 0:
            start = max(start, arrivals.get((stage, "F", mb), 0))
        elif kind != "W" and (kind == "F" or at + 1 < len(path)):
            other = path[at - 1] if kind == "F" else path[at + 1]
            source = next(a for a in before if a[0] == other and a[2] == mb and (a[1] == "F") == (kind == "F"))
            if kind != "F":
                source = next(a for a in before if a in ((other, "B", mb), (other, "I", mb)))
            message = costs.alpha if (other - stage) % ranks else 0
            start = max(start, end(source) + message)
        return start + costs.duration(action)

    return {(rank,): end(row[-1]) for rank, row in enumerate(plan.compute) if row}


@quick
@given(cases())
def test_the_largest_entry_of_a_step_s_transfer_is_its_step_time(case):
    step = transfer(*case)
    assert max(step().values()) == np.max(step.matrix) == simulate(*case).step_time


@quick
@given(cases(), st.data())
def test_a_step_maps_any_arrival_times_to_completion_times(case, data):
    plan, costs = case
    step = transfer(plan, costs)
    arrivals = {port: data.draw(st.integers(0, 30)) for port in step.inputs}
    assert step(arrivals) == longest_path(plan, costs, arrivals)


@quick
@given(cases(), st.data())
def test_where_a_plan_is_cut_does_not_matter(case, data):
    """`>>` is associative, and blocks are only one way to group the events."""
    plan, costs = case
    parts = list(events(plan, costs, in_order(plan)))
    first, second = sorted(data.draw(st.integers(0, len(parts))) for _ in range(2))
    left, middle, right = map(compose, (parts[:first], parts[first:second], parts[second:]))
    step = transfer(plan, costs)
    for other in ((left >> middle) >> right, left >> (middle >> right)):
        order = [other.outputs.index(port) for port in step.outputs]
        columns = [other.inputs.index(port) for port in step.inputs]
        assert np.array_equal(other.matrix[np.ix_(order, columns)], step.matrix)


@quick
@given(cases())
def test_blocks_keep_every_rank_s_order(case):
    plan, _ = case
    for rank in range(plan.ranks):
        assert tuple(action for action in in_order(plan) if action.stage % plan.ranks == rank) == plan.compute[rank]
    assert all(action.stage // plan.ranks == region for region, block in blocks(plan) for action in block)


def test_the_paper_s_line_is_three_blocks_joined_at_its_seam():
    plan, costs = priced(WARMUP, 2, 2, 12, 24, 4, 8, alpha=1)
    encode, backbone, back = (compose(events(plan, costs, block)) for _, block in blocks(plan))
    assert encode(), encode.inputs == ({(0,): 12, (2, "F", 0): 12, (1,): 12, (2, "F", 1): 13}, ((0,), (0, "F", 0)))
    assert {port for port in backbone.inputs if len(port) > 1} == {(2, "F", 0), (2, "F", 1)}
    assert {port for port in backbone.outputs if len(port) > 1} == {(0, "B", 0), (1, "B", 1)} == {
        port for port in back.inputs if len(port) > 1
    }  # fmt: skip
    assert max((encode >> backbone >> back)().values()) == simulate(plan, costs).step_time


def test_steps_compose_too_a_rank_starts_the_next_one_when_it_is_free():
    plan, costs = priced(TEXT, 3, 4, 0, 0, 4, 8)
    step = transfer(plan, costs)
    done = step()
    assert step(done)[0,] == 2 * done[0,]  # rank 0 starts first and ends last: the steps do not overlap
    assert step(done)[2,] == done[0,] + done[2,]


def test_a_transfer_may_have_no_ports():
    ready = Transfer((), ((0,),), np.zeros((1, 0)))
    assert (compose([]) >> ready)() == {(0,): -np.inf}


def test_an_unconnected_output_waits_for_nothing():
    one, two = (Transfer(((r,),), ((r,),), np.array([[1.0]])) for r in range(2))
    assert np.array_equal((one >> two).matrix, [[1, -np.inf], [-np.inf, 1]])


def test_a_port_cannot_be_taken_twice():
    take = Transfer(((1, "F", 0),), (), np.zeros((0, 1)))
    with pytest.raises(AssertionError, match="two events take"):
        compose([take, take])
