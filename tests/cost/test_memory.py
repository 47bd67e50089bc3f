from itertools import accumulate

import pytest
from cost_cases import TEXT, WARMUP

from hyperparallel.algebra import ModelSpec, check_table, derive, from_csv
from hyperparallel.cost import peak_live

CASES = {
    "1f1b": (TEXT, (), lambda p, m, r: min(m, p - r)),
    "gpipe": ("gpipe(llm)", (), lambda p, m, r: m),
    "nothing trainable": (TEXT, ("llm",), lambda p, m, r: 1),
    "a frozen encoder": (WARMUP, ("vision",), lambda p, m, r: min(m, p - r)),
    "a trained encoder": (WARMUP, (), lambda p, m, r: min(m, p - r) + len(range(r, m, p))),
    "a trained encoder under gpipe": ("transpose(vision) >> gpipe(llm)", (), lambda p, m, r: m + len(range(r, m, p))),
}


@pytest.mark.parametrize("case", CASES)
def test_peak_of_live_micro_batches(case):
    line, frozen, expected = CASES[case]
    counts = {"vision": 2, "llm": 5} if ">>" in line else {"llm": 5}
    for p in range(1, 6):
        for m in (1, 2, 3, 5, 8, 16):
            plan = derive(line, ModelSpec.of(counts, frozen), p, m)
            assert peak_live(plan.compute, plan.placement) == tuple(expected(p, m, r) for r in range(p)), (p, m)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_interleaved_1f1b_keeps_the_published_number_in_flight(chunks):
    """2 (P - r - 1) + (v - 1) P + 1 chunks for v > 1, P - r for v = 1, never more than there are."""
    for p in range(1, 6):
        for m in (1, 2, 3, 5, 8, 16):
            plan = derive(f"1f1b(llm)*{chunks}", ModelSpec.of({"llm": 15}), p, m)
            peaks = peak_live(plan.compute, plan.placement)
            limits = [2 * (p - r - 1) + (chunks - 1) * p + 1 if chunks > 1 else p - r for r in range(p)]
            assert all(peak <= min(limit, m * chunks) for peak, limit in zip(peaks, limits, strict=True)), (p, m)
            if m % p == 0:
                assert peaks == tuple(min(limit, m * chunks) for limit in limits), (p, m)


@pytest.mark.parametrize("line", ["1f1b(llm)*2", "wave(llm)", "zb(llm)", "zb(llm)*2", "zb(llm, fold=v)"])
def test_live_activations_do_not_grow_with_the_micro_batches(line):
    for p in (1, 2, 3, 4):
        plans = [derive(line, ModelSpec.of({"llm": 8}), p, m) for m in (16, 64)]
        few, many = (peak_live(plan.compute, plan.placement) for plan in plans)
        assert few == many, p


def live_weight_gradients(row):
    return max(accumulate((action.kind == "I") - (action.kind == "W") for action in row), default=0)


@pytest.mark.parametrize("line, chunks", [("zb(llm)", 1), ("zb(llm)*2", 2), ("zb(llm, fold=v)", 2)])
def test_postponed_weight_gradients_are_bounded_whatever_the_micro_batches(line, chunks):
    for p in range(1, 5):
        for m in (1, 2, 3, 5, 8, 16, 64):
            plan = derive(line, ModelSpec.of({"llm": 8}), p, m)
            assert max(map(live_weight_gradients, plan.compute)) <= p * chunks, (p, m)


def test_an_activation_of_a_split_backward_lives_until_w():
    table = from_csv("0F0,0I0,0F1,0I1,0W0,0W1\n")
    placement, _ = check_table(table, 1, 2)
    assert peak_live(table, placement) == (2,)
    assert peak_live(from_csv("0F0,0I0,0W0,0F1,0I1,0W1\n"), placement) == (1,)
