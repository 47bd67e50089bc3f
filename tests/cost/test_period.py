from itertools import product

import numpy as np
import pytest
from cost_cases import BALANCED, INLINE, TEXT, WARMUP, priced, quick
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.cost import Costs, period, simulate
from hyperparallel.cost.period import ZERO, max_cycle_mean
from hyperparallel.errors import PlanError

X = 4 + 8
TABLE = [  # line, P, K, time of one round; vision 12/24, llm 4/8
    (TEXT, 4, 1, X),
    (TEXT, 1, 1, X),
    ("1f1b(llm)*2", 4, 4, 4 * X),
    ("1f1b(llm)*3", 2, 2, 2 * X),
    (INLINE, 4, 1, 36 + X),
    (WARMUP, 4, 4, 4 * X + 36),
    ("transpose(vision) >> 1f1b(llm)*2", 4, 4, 4 * X + 36),
]


@pytest.mark.parametrize("line, ranks, size, time", TABLE)
def test_the_period_of_the_closed_forms(line, ranks, size, time):
    found = period(*priced(line, ranks, 40, 12, 24, 4, 8))
    assert (found.micro_batches, found.time) == (size, pytest.approx(time, rel=1e-12))


@pytest.mark.parametrize("line", ["zb(llm)", "zb(llm, fold=v)", "wave(llm)"])
def test_list_scheduled_orders_keep_every_rank_busy(line):
    found = period(*priced(line, 4, 60, 0, 0, 4, 8))
    assert found.time == pytest.approx(found.micro_batches * X)


PERIODIC = [
    "1f1b(vision+llm)",
    "1f1b(vision+llm, slabs=balanced)",
    "1f1b(vision+llm, slabs=[7,3,2])",
    "1f1b(vision+llm)*2",
    "transpose(vision) >> 1f1b(llm)",
    "transpose(vision) >> 1f1b(llm)*2",
    "transpose(vision) >> zb(llm)",
    "zb(vision+llm)",
    "wave(vision+llm)",
    "zb(vision+llm, fold=v)",
]


@pytest.mark.parametrize("line", PERIODIC)
@pytest.mark.parametrize("frozen", [(), ("vision",), ("vision", "llm")], ids=["", "enc", "all"])
def test_the_eigenvalue_is_the_slope_of_the_step_time(line, frozen):
    ranks, model = 3, ModelSpec.of({"vision": 4, "llm": 8}, frozen)
    for seed, alpha in product(range(4), (0, 2)):
        costs = uneven(line, ranks, seed, alpha)
        found = period(derive(line, model, ranks, 48), costs)
        # A critical cycle may take several rounds: 1, 2 or 3 of them, or 4.
        first, second = (step_time(line, model, ranks, 48 + rounds * found.micro_batches, costs) for rounds in (12, 24))
        assert second - first == pytest.approx(12 * found.time, abs=1e-9)


def uneven(line, ranks, seed, alpha):
    """Draw costs that differ by stage, but not between the copies of a transposed region."""
    random = np.random.default_rng(seed)
    compute = {(stage, kind): int(random.integers(1, 10)) for stage in range(4 * ranks) for kind in "FBIW"}
    if line.startswith("transpose"):
        compute |= {(rank, kind): compute[0, kind] for rank in range(ranks) for kind in "FB"}
    return Costs(compute, alpha)


def step_time(line, model, ranks, micro_batches, costs):
    return simulate(derive(line, model, ranks, micro_batches), costs).step_time


def test_a_slow_message_makes_the_way_down_and_up_the_critical_cycle():
    """Rank 0 runs P = 2 ahead: two micro-batches for a round trip of two forwards, two backwards, two messages."""
    found = period(*priced(TEXT, 2, 20, 0, 0, 4, 8, alpha=30))
    assert (found.micro_batches, found.time) == (1, (2 * X + 2 * 30) / 2)


def test_the_map_of_a_round_repeats_itself_at_its_eigenvalue():
    found = period(*priced(BALANCED, 3, 30, 12, 24, 4, 8))
    state = np.zeros(len(found.matrix))
    states = [state := np.max(found.matrix + state, axis=1) for _ in range(40)]
    assert states[39] - states[33] == pytest.approx(6 * found.time)


@pytest.mark.parametrize(
    "line, micro_batches",
    [("gpipe(vision+llm)", 40), (WARMUP.replace("vision", f"vision, owner=[{','.join('0112' * 2)},0,0]", 1), 10)],
    ids=["gpipe has no round of forwards and backwards", "owners that do not go round"],
)
def test_what_does_not_repeat_is_refused(line, micro_batches):
    with pytest.raises(PlanError, match="has no steady period: no number of micro-batches up to"):
        period(*priced(line, 3, micro_batches, 12, 24, 4, 8))


def test_costs_that_do_not_repeat_are_refused_and_those_that_do_lengthen_the_round():
    plan = derive(TEXT, ModelSpec.of({"llm": 2}), 2, 24)
    assert period(plan, Costs({(s, k): [1, 3] * 12 for s in range(2) for k in "FB"})).micro_batches == 2
    with pytest.raises(PlanError, match="no steady period"):
        period(plan, Costs({(s, k): list(range(24)) for s in range(2) for k in "FB"}))


def test_a_step_that_is_too_short_has_no_middle():
    with pytest.raises(PlanError, match="try a larger M"):
        period(*priced(TEXT, 4, 3, 0, 0, 4, 8))


entries = st.one_of(st.just(ZERO), st.integers(-9, 9).map(float))
squares = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(entries, min_size=n, max_size=n), min_size=n, max_size=n)
)


@quick
@given(squares)
def test_the_eigenvalue_is_the_largest_mean_of_a_cycle(rows):
    matrix, means = np.array(rows), [ZERO]
    power = matrix
    for length in range(1, len(rows) + 1):
        means.append(np.diag(power).max() / length)
        power = np.max(power[:, :, None] + matrix[None, :, :], axis=1)
    assert max_cycle_mean(matrix) == pytest.approx(max(means), abs=1e-12)
