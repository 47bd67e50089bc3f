import time
from itertools import accumulate

import pytest
from algebra_cases import plan_of

from hyperparallel.algebra import ModelSpec, derive, validate
from hyperparallel.algebra.listing import list_schedule

LINES = [
    "zb(llm)",
    "zb(llm)*2",
    "zb(llm, fold=v)",
    "wave(llm)",
    "1f1b(vision) >> transpose(llm)",
    "wave(vision) >> 1f1b(llm)",
]


def listed(line, ranks, micro_batches, splits=(), barriers=(), regions=None, frozen=()):
    placement = plan_of(line, ranks, micro_batches, frozen).placement
    regions = tuple(range(len(placement.owners))) if regions is None else regions
    rows = list_schedule(placement, regions, frozenset(splits), frozenset(barriers))
    return [" ".join(map(str, row)) for row in rows]


@pytest.mark.parametrize("line", LINES)
def test_the_same_question_gives_the_same_order(line):
    for ranks, micro_batches in [(1, 1), (2, 3), (4, 8), (5, 6)]:
        first = plan_of(line, ranks, micro_batches)
        again = derive(line, ModelSpec(first.model.layers), ranks, micro_batches)
        assert again.compute == first.compute


ORDERS = {  # line, splits, barriers, the order of every rank for P = 2, M = 2
    "whole backwards": ("1f1b(llm)", (), (), ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]),
    "split backwards": ("1f1b(llm)", (0,), (), ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"]),
    "a barrier": ("1f1b(llm)", (), (0,), ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]),
    "one of two regions splits": (
        "1f1b(vision) >> 1f1b(llm)", (1,), (),
        ["0F0 0F1 2F0 2F1 2I0 2I1 2W0 2W1 0B0 0B1", "1F0 1F1 3F0 3F1 3I0 3I1 3W0 1B0 1B1 3W1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_small_orders_a_reviewer_can_read(case):
    line, splits, barriers, rows = ORDERS[case]
    assert listed(line, 2, 2, splits, barriers) == rows


def test_only_what_has_weights_to_train_is_split_and_what_has_no_backward_gets_none():
    frozen_last = listed("1f1b(vision) >> 1f1b(llm)", 1, 1, splits=(0, 1), frozen=("llm",))
    assert frozen_last == ["0F0 1F0 1B0 0I0 0W0"]
    frozen_first = listed("1f1b(vision) >> 1f1b(llm)", 1, 1, splits=(0, 1), frozen=("vision",))
    assert frozen_first == ["0F0 1F0 1I0 1W0"]


def test_forwards_of_regions_before_the_first_count_as_done():
    assert listed("transpose(vision) >> 1f1b(llm)", 2, 1, regions=(1,)) == ["2F0 2B0", "3F0 3B0"]


def test_a_copy_orders_only_what_it_owns():
    assert listed("transpose(llm)", 2, 3) == ["0F0 0B0 0F2 0B2", "1F1 1B1"]


@pytest.mark.parametrize("line", LINES)
def test_what_a_rank_holds_does_not_grow_with_the_micro_batches(line):
    def peaks(micro_batches):
        changes = [[(a.kind == "F") - (a.kind in "BW") for a in row] for row in plan_of(line, 4, micro_batches).compute]
        return [max(accumulate(row)) for row in changes]

    assert peaks(64) == peaks(16)


def test_a_large_table_does_not_take_long():
    start = time.process_time()
    plan = derive("zb(llm, fold=v)", ModelSpec.of({"llm": 64}), 32, 128)
    assert sum(map(len, plan.compute)) == 32 * 2 * 128 * 3
    validate(plan)
    assert time.process_time() - start < 8
