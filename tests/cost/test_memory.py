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


def test_an_activation_of_a_split_backward_lives_until_w():
    table = from_csv("0F0,0I0,0F1,0I1,0W0,0W1\n")
    placement, _ = check_table(table, 1, 2)
    assert peak_live(table, placement) == (2,)
    assert peak_live(from_csv("0F0,0I0,0W0,0F1,0I1,0W1\n"), placement) == (1,)
