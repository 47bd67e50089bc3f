import pytest
from algebra_cases import LINES, SHARDED, plan_of, plans, quick, runs_correctly
from hypothesis import given

from hyperparallel.algebra import (
    ModelSpec,
    check_table,
    derive,
    from_csv,
    from_text,
    registry,
    to_csv,
    to_text,
    validate,
)

SIZES = [(ranks, micro_batches) for ranks in range(1, 6) for micro_batches in (1, 2, 3, 5, 8, 16)]


def assert_sound(plan):
    """Valid by our checks and by the independent one, read back from text, found again from its table."""
    validate(plan)
    assert runs_correctly(plan.programs, plan)
    assert runs_correctly(plan.programs, plan, rendezvous=True)
    assert from_csv(to_csv(plan.programs)) == plan.programs
    assert from_text(to_text(plan.programs)) == plan.programs
    for programs in (plan.compute, plan.programs):
        placement, lowered = check_table(programs, plan.ranks, plan.micro_batches)
        assert lowered == plan.programs
        if plan.ranks > 1:
            assert placement.owners == plan.placement.owners
        assert [g.receives_gradient for g in placement.gates] == [g.receives_gradient for g in plan.placement.gates]


@pytest.mark.parametrize("frozen", [(), ("vision",), ("llm",), ("vision", "llm")], ids=["", "enc", "llm", "all"])
@pytest.mark.parametrize("line", LINES)
def test_every_skeleton_of_the_registry_is_sound_at_every_size(line, frozen):
    for ranks, micro_batches in SIZES:
        assert_sound(plan_of(line, ranks, micro_batches, frozen))


@quick
@given(plans())
def test_any_owners_are_sound(plan):
    assert_sound(plan)


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("slabs", ["even", "balanced", "[1,5,2]"])
def test_any_slabs_are_sound(name, slabs):
    for frozen in ((), ("vision",)):
        model = ModelSpec.of({"vision": 2, "llm": 6}, frozen)
        assert_sound(derive(f"{name}(vision+llm, slabs={slabs})", model, 3, 4))


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("backward", [True, False])
def test_steps_are_every_forward_once_and_every_backward_once(name, backward):
    for ranks, micro_batches in SIZES:
        for rank in range(ranks):
            steps = registry()[name].steps(rank, ranks, micro_batches, backward)
            kinds = "FB" if backward else "F"
            assert sorted(steps) == sorted((kind, mb) for kind in kinds for mb in range(micro_batches))


@pytest.mark.parametrize(
    "rank, expected",
    [
        (0, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"),
        (1, "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"),
        (2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"),
    ],
)
def test_1f1b_keeps_at_most_p_minus_r_micro_batches_in_flight(rank, expected):
    steps = registry()["1f1b"].steps(rank, 3, 5, True)
    assert " ".join(f"{kind}{mb}" for kind, mb in steps) == expected


def test_gpipe_runs_backwards_in_the_order_of_forwards():
    steps = registry()["gpipe"].steps(0, 3, 3, True)
    assert " ".join(f"{kind}{mb}" for kind, mb in steps) == "F0 F1 F2 B0 B1 B2"


def test_warmup_puts_encodes_first_and_their_backwards_last():
    assert registry()["transpose"].around(["f", "b"], ["e0", "e1"], ["g0", "g1"]) == ["e0", "e1", "f", "b", "g0", "g1"]
