import pytest
from algebra_cases import FOLDING, LINES, SHARDED, SIZES, frozen_sets, placement_name, plan_of, plans, quick
from algebra_machine import runs_correctly, slab_of, trains
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


def assert_sound(plan):
    """Valid by our checks and by the independent one, and read back from text."""
    validate(plan)
    assert runs_correctly(plan.programs, plan)
    assert runs_correctly(plan.programs, plan, rendezvous=True)
    assert from_csv(to_csv(plan.programs)) == plan.programs
    assert from_text(to_text(plan.programs)) == plan.programs


def assert_found_again(plan):
    """The table alone, with and without messages, gives the same programs, owners and gates."""
    name = placement_name(plan)
    for programs in (plan.compute, plan.programs) if name else ():
        placement, lowered = check_table(programs, plan.ranks, plan.micro_batches, name)
        assert lowered == plan.programs
        if plan.ranks > 1:
            assert (placement.owners, placement.reflected) == (plan.placement.owners, plan.placement.reflected)
        assert [g.receives_gradient for g in placement.gates] == [g.receives_gradient for g in plan.placement.gates]


def assert_splits_as_asked(plan):
    """I and W where the skeleton splits and the slab has weights to train, B elsewhere."""
    for stage, kind, _ in (action for row in plan.compute for action in row if action.kind != "F"):
        splits = getattr(registry()[plan.regions[stage // plan.ranks].expr.skeleton], "splits", False)
        assert (kind in "IW") == (splits and trains(plan, *slab_of(plan, stage)))


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_sound_at_every_size(line):
    """All parts trained at every size; some frozen at every second size, other ones each time."""
    for turn, (ranks, micro_batches) in enumerate(SIZES):
        for frozen in [()] if turn % 2 else [(), frozen_sets(line)[1 + (turn // 2 + turn // 6) % 3]]:
            plan = plan_of(line, ranks, micro_batches, frozen)
            assert_sound(plan)
            assert_found_again(plan)
            assert_splits_as_asked(plan)


@quick
@given(plans())
def test_any_owners_and_frozen_parts_are_sound(plan):
    assert_sound(plan)
    assert_found_again(plan)
    assert_splits_as_asked(plan)


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("slabs", ["even", "balanced", "by hand"])
def test_any_slabs_are_sound(name, slabs):
    pieces = 3 * len(registry()[name].folds(lambda key: registry()[name].options[key].default))
    by_hand = ",".join(map(str, [1, 9 - pieces, *[1] * (pieces - 2)]))
    for frozen in ((), ("vision",)):
        model = ModelSpec.of({"vision": 2, "llm": 6}, frozen)
        plan = derive(f"{name}(vision+llm, slabs={f'[{by_hand}]' if slabs == 'by hand' else slabs})", model, 3, 4)
        assert_sound(plan)


ORDERS = {  # line, P, M, the order of every rank
    "1f1b": ("1f1b(llm)", 3, 4, "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3", "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"),
    "1f1b in two chunks": ("1f1b(llm)*2", 2, 2, "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"),
    "what does not exist is left out": ("1f1b(llm)*2", 2, 1, "0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"),
    "gpipe runs backwards in the order of forwards": ("gpipe(llm)", 2, 2, "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"),
    "gpipe chunk by chunk": ("gpipe(llm)*2", 1, 2, "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"),
    "wave starts and ends on rank 0": ("wave(llm)", 2, 1, "0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"),
    "zb": ("zb(llm)", 2, 3, "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"),
    "place=warmup": ("transpose(vision) >> 1f1b(llm)", 2, 2, "0F0 2F0 2F1 2B0 2B1 0B0", "1F1 3F0 3B0 3F1 3B1 1B1"),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_the_order_of_every_rank_of_a_small_case(case):
    line, ranks, micro_batches, *rows = ORDERS[case]
    assert [" ".join(map(str, row)) for row in plan_of(line, ranks, micro_batches).compute] == rows


@pytest.mark.parametrize("name", FOLDING)
def test_a_fold_is_two_regions_of_which_the_second_is_reflected(name):
    plan = plan_of(f"{name}(llm, fold=v)*2", 2, 2)
    assert [region.reflected for region in plan.regions] == [False, True, False, True]
    assert [region.reflected for region in plan_of(f"{name}(llm)*2", 2, 2).regions] == [False, False]


def test_warmup_puts_encodes_first_and_their_backwards_last():
    assert registry()["transpose"].around(["f", "b"], ["e0", "e1"], ["g0", "g1"]) == ["e0", "e1", "f", "b", "g0", "g1"]
