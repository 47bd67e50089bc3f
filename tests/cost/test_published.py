"""What is published about interleaved 1F1B, waves and zero bubble, on grids of sizes."""

import pytest
from cost_cases import priced

from hyperparallel.algebra import ModelSpec, derive, validate
from hyperparallel.cost import simulate

SIZES = [(ranks, micro_batches) for ranks in range(1, 6) for micro_batches in (1, 2, 3, 5, 8, 16)]


def step_time(line, ranks, micro_batches, forward=1.0, backward=2.0):
    return simulate(*priced(line, ranks, micro_batches, 0, 0, forward, backward)).step_time


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("forward, backward", [(1, 2), (4, 8), (1, 1), (3, 2.5), (2, 7), (5, 1), (0, 3)])
def test_interleaved_1f1b_takes_m_plus_p_minus_1_by_v(chunks, forward, backward):
    for ranks in (1, 2, 3, 4, 6):
        for micro_batches in (ranks, 2 * ranks, 5 * ranks):
            expected = (micro_batches + (ranks - 1) / chunks) * (forward + backward)
            time = step_time(f"1f1b(llm)*{chunks}", ranks, micro_batches, forward, backward)
            assert time == pytest.approx(expected, rel=1e-12), (ranks, micro_batches)


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("forward, backward", [(1, 2), (1, 1), (3, 2.5)])
def test_any_number_of_micro_batches_is_valid_and_no_slower_than_the_next_multiple_of_p(chunks, forward, backward):
    for ranks, micro_batches in SIZES:
        line, whole = f"1f1b(llm)*{chunks}", -(-micro_batches // ranks) * ranks
        validate(priced(line, ranks, micro_batches, 0, 0, forward, backward)[0])
        time, limit = (step_time(line, ranks, m, forward, backward) for m in (micro_batches, whole))
        assert time <= limit * (1 + 1e-12), (ranks, micro_batches)


FIGURES = [  # line, step time and live activations for P = 4, M = 8 in unit time: F = 1, B = 2, I = W = 1 by slab
    ("1f1b(llm)", 33, (4, 3, 2, 1)),
    ("1f1b(llm)*2", 57 / 2, (11, 9, 7, 5)),
    ("wave(llm)", 57 / 2, None),
    ("zb(llm)", 27, None),
    ("zb(llm)*2", 51 / 2, None),
    ("zb(llm, fold=v)", 51 / 2, None),
]


@pytest.mark.parametrize("line, time, peaks", FIGURES, ids=[line for line, _, _ in FIGURES])
def test_figures_in_unit_time(line, time, peaks):
    """A chunk is half a slab where there are two, so its unit is half as long."""
    timeline = simulate(*priced(line, 4, 8, 0, 0, 1, 2))
    assert timeline.step_time == time
    assert peaks is None or timeline.peak_live == peaks


PAIRS = [
    ("zb(llm)", "1f1b(llm)"),
    ("zb(llm)*2", "1f1b(llm)*2"),
    ("zb(llm, fold=v)", "1f1b(llm)*2"),
    ("wave(llm)", "1f1b(llm)"),
]


@pytest.mark.parametrize("line, other", PAIRS)
def test_never_slower_in_unit_time(line, other):
    for ranks, micro_batches in SIZES:
        assert step_time(line, ranks, micro_batches) <= step_time(other, ranks, micro_batches), (ranks, micro_batches)


def test_splitting_backwards_removes_bubbles_wherever_there_are_some():
    for ranks, micro_batches in SIZES:
        saved = step_time("1f1b(llm)", ranks, micro_batches) - step_time("zb(llm)", ranks, micro_batches)
        assert (saved > 0) == (ranks > 1), (ranks, micro_batches)


@pytest.mark.parametrize("ranks", range(1, 6))
def test_a_wave_lays_the_layers_in_a_v(ranks):
    plan = derive("wave(llm)", ModelSpec.of({"llm": 2 * ranks}), ranks, 3)
    held = [[layer for layer in range(2 * ranks) if plan.placement.holders(layer) == (rank,)] for rank in range(ranks)]
    assert held == [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", range(1, 6))
@pytest.mark.parametrize(
    "line, frozen, ways", [("wave(llm)", (), 2), ("wave(llm)", ("llm",), 1), ("zb(llm, fold=v)", (), 2)]
)
def test_a_wave_sends_nothing_at_its_turn(line, frozen, ways, ranks):
    micro_batches = 3
    plan = derive(line, ModelSpec.of({"llm": 2 * ranks}, frozen), ranks, micro_batches)
    sends = [action for program in plan.programs for action in program if action.kind.startswith("SEND")]
    assert len(sends) == ways * micro_batches * 2 * (ranks - 1)
    turn = {(ranks - 1, "SEND_F"), (2 * ranks - 1, "SEND_B")}
    assert not turn & {(action.stage, action.kind) for action in sends}
