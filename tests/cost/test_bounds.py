import time
from dataclasses import replace
from itertools import product

import pytest
from cost_cases import INLINE, TEXT, WARMUP, plan_of, plans_and_costs, priced, quick
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.algebra.placement import place
from hyperparallel.algebra.weave import weave
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


UNIT = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
BOUNDS = {  # line, P, M, the bound in unit time, the step time
    "zb is as good as its bound": ("zb(llm)", 4, 8, 3 + 8 * 3, 27),
    "W runs while the gradients travel": ("zb(llm)", 4, 1, 4 * (1 + 1) + 1, 9),
    "interleaved, P divides M": ("1f1b(llm)*2", 4, 8, 3 + 8 * 2 * 3 + 3 * 2, 57),
    "a fold": ("wave(llm)", 4, 8, 3 + 8 * 2 * 3 + 3 * 2, 57),
    "a split fold": ("zb(llm, fold=v)", 4, 8, 3 + 8 * 2 * 3, 51),
    "one rank": ("zb(llm, fold=v)", 1, 2, 2 * 2 * 3, 12),
    "one micro-batch takes its path": ("wave(llm)", 3, 1, 6 * 3, 18),
    "transposed at the end": ("1f1b(vision) >> transpose(llm)", 3, 1, 4 * 3, 12),
    "transposed alone": ("transpose(llm)", 2, 3, 3 * 3 / 2, 6),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_bounds_by_hand(case):
    line, ranks, micro_batches, bound, step_time = BOUNDS[case]
    plan = plan_of(line, ranks, micro_batches)
    costs = Costs({(stage, kind): time for stage in range(plan.placement.stages) for kind, time in UNIT.items()})
    assert (lower_bound(plan, costs), simulate(plan, costs).step_time) == (bound, step_time)


@pytest.mark.parametrize(
    "frozen, encode, encode_backward, bound, step_time",
    [
        (("vision", "llm"), [0, 6, 0, 0], 0, 4 + 4 * 4, 22),
        (("vision",), [0, 1, 1, 1], 0, 4 + 4 * 8 + 4, 41),
        ((), 0, [1, 0, 1, 1], 4 + 4 * 8 + 4, 42),
    ],
    ids=["nothing trained", "the fastest encode comes first", "the fastest encoder backward comes last"],
)
def test_uneven_images_by_hand(frozen, encode, encode_backward, bound, step_time):
    plan = derive("transpose(vision) >> gpipe(llm)", ModelSpec.of({"vision": 1, "llm": 2}, frozen), 2, 4)
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
    owners = st.lists(st.integers(0, plan.ranks - 1), min_size=len(plan.owner), max_size=len(plan.owner))
    regions = [r if r.owner is None else replace(r, owner=tuple(data.draw(owners))) for r in plan.regions]
    placement = place(tuple(regions), plan.model, plan.ranks, plan.micro_batches)
    other = replace(plan, regions=tuple(regions), placement=placement, compute=weave(regions, placement))
    assert lower_bound(other, costs) == lower_bound(plan, costs) <= simulate(other, costs).step_time


def test_the_bound_of_many_ranks_does_not_take_long():
    plan = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 1, "llm": 512}), 256, 16)
    costs = Costs({(stage, kind): 1 for stage in range(512) for kind in "FB"})
    start = time.process_time()
    assert lower_bound(plan, costs) == 1 + (16 + 255) * 2 + 1
    assert time.process_time() - start < 1
