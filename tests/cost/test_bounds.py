from itertools import product

import pytest
from cost_cases import INLINE, TEXT, WARMUP, plans_and_costs, priced, quick
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cost import Costs, lower_bound, simulate

GRID = [
    (p, m, te, tg, tf, tb)
    for p, m in [(1, 1), (1, 4), (2, 2), (3, 7), (4, 4), (4, 8), (8, 16)]
    for te, tg, (tf, tb) in product([0, 3, 12, 200], [0, 7, 24], [(4, 8), (3, 2.5)])
]


def test_the_bound_of_transpose_is_the_formula_of_the_design():
    for p, m, te, tg, tf, tb in GRID:
        x = tf + tb
        formula = max(te + (m + p - 1) * x + tg, m * x + m * (te + tg) / p)
        assert lower_bound(*priced(WARMUP, p, m, te, tg, tf, tb)) == pytest.approx(formula, rel=1e-12)


def test_the_bound_of_text_is_its_step_time():
    for p, m, _, _, tf, tb in GRID:
        assert lower_bound(*priced(TEXT, p, m, 0, 0, tf, tb)) == pytest.approx((m + p - 1) * (tf + tb), rel=1e-12)


def test_messages_of_the_pipeline_count_in_the_bound():
    assert lower_bound(*priced(WARMUP, 4, 8, 12, 24, 4, 8, alpha=2)) == 12 + 11 * 12 + 24 + 2 * 3 * 2
    assert lower_bound(*priced(INLINE, 4, 8, 12, 0, 4, 8, alpha=2)) == max(8 * 24, 12 + 11 * 12 + 2 * 3 * 2)


@pytest.mark.parametrize(
    "frozen, encode, encode_backward, bound, step_time",
    [(("vision", "llm"), [0, 10], 0, (10 + 16) / 2, 18), ((), 0, [10, 0], 4 + 16 + 4, 34)],
    ids=["only the fastest encode is sure to come first", "only the fastest backward is sure to come last"],
)
def test_uneven_images_by_hand(frozen, encode, encode_backward, bound, step_time):
    plan = derive("transpose(vision) >> gpipe(llm)", ModelSpec.of({"vision": 1, "llm": 2}, frozen), 2, 2)
    compute = {(stage, kind): 4 for stage in (2, 3) for kind in "FB"}
    compute |= {(rank, kind): time for rank in (0, 1) for kind, time in (("F", encode), ("B", encode_backward))}
    assert lower_bound(plan, Costs(compute)) == bound
    assert simulate(plan, Costs(compute)).step_time == step_time


@quick
@given(plans_and_costs())
def test_no_plan_is_faster_than_its_bound(case):
    assert lower_bound(*case) <= simulate(*case).step_time


@quick
@given(plans_and_costs(same_copies=True), st.data())
def test_the_bound_does_not_depend_on_the_owners(case, data):
    plan, costs = case
    if plan.owner is None:
        return
    owner = data.draw(st.lists(st.integers(0, plan.ranks - 1), min_size=len(plan.owner), max_size=len(plan.owner)))
    line = f"transpose(vision, owner=[{','.join(map(str, owner))}]) >> {plan.regions[1].expr}"
    other = derive(line, plan.model, plan.ranks, plan.micro_batches)
    assert lower_bound(other, costs) == lower_bound(plan, costs) <= simulate(other, costs).step_time
