from collections import Counter

import pytest
from algebra_cases import edited, plan_of, plans, quick, table
from algebra_machine import runs_correctly
from hypothesis import assume, given
from hypothesis import strategies as st

from hyperparallel.algebra import Action
from hyperparallel.algebra.program import SENDS
from hyperparallel.algebra.validate import validate_programs
from hyperparallel.errors import PlanError

LLM, MIXED = "1f1b(llm)", "transpose(vision) >> 1f1b(llm)"
SPLIT, FOLD, OWNED = "zb(llm)", "wave(llm)", "1f1b(vision) >> transpose(llm)"
GOOD = {
    LLM: "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 | 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    MIXED: "0F0 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 2RECV_B0 2B0 2RECV_B1 2B1 2SEND_B1 0B0 | "
    "1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3B0 3SEND_B0 3F1 3B1 3SEND_B1 1RECV_B1 1B1",
    SPLIT: "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0W0 0RECV_B1 0I1 0W1 | "
    "1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1",
    FOLD: "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2B0 2RECV_F1 2SEND_B0 2F1 2B1 2SEND_B1 0RECV_B0 0B0 0RECV_B1 0B1 | "
    "1RECV_F0 1F0 1RECV_F1 3F0 3SEND_F0 1F1 3F1 3SEND_F1 3RECV_B0 3B0 1B0 3RECV_B1 1SEND_B0 3B1 1B1 1SEND_B1",
    OWNED: "0F0 0SEND_F0 0F1 2RECV_F0 0SEND_F1 2F0 2B0 2SEND_B0 0RECV_B0 0B0 0RECV_B1 0B1 | "
    "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 3F1 1RECV_B0 3B1 1B0 1SEND_B0 1B1 1SEND_B1",
}


def refusal(programs, plan):
    with pytest.raises(PlanError) as error:
        validate_programs(programs, plan.placement)
    return str(error.value)


@pytest.mark.parametrize("line", GOOD)
def test_programs_written_by_hand_are_accepted(line):
    plan = plan_of(line)
    validate_programs(table(GOOD[line]), plan.placement)
    assert runs_correctly(table(GOOD[line]), plan)


# What is wrong: (line, text to replace in the good programs, replacement, rank, step, marked cell, words)
EDITS = {
    "a duplicate 0F0": (LLM, "0F0 0SEND_F0", "0F0 0F0 0SEND_F0", 0, 1, "0F0", "0F0 appears twice"),
    "a duplicate message": (LLM, "0RECV_B1 ", "0RECV_B1 0RECV_B1 ", 0, 7, "0RECV_B1", "0RECV_B1 appears twice"),
    "ids {0, 7} for M = 2": (LLM, "0F1", "0F7", 0, 2, "0F7", "micro-batch 7 of 0F7 does not exist"),
    "a stage that is not there": (LLM, "1F1", "2F1", 1, 5, "2F1", "stage 2 of 2F1 does not exist; stages are 0..1"),
    "a huge stage": (LLM, "1F1", "999999999F1", 1, 5, "999999999F1", "does not exist"),
    "B and also I and W": (LLM, "0B0", "0B0 0I0 0W0", 0, 6, "0I0", "both a whole backward B and a split one"),
    "I and W and also B": (LLM, "0B0", "0I0 0W0 0B0", 0, 7, "0B0", "both a whole backward B and a split one"),
    "a missing forward": (LLM, " 1F1", "", 1, 7, "?", "1F1 is missing"),
    "a missing backward": (LLM, " 1B0", "", 1, 7, "?", "1B0 is missing"),
    "I without W": (LLM, "1B0", "1I0", 1, 8, "?", "1W0 is missing"),
    "W without I": (LLM, "1B0", "1W0", 1, 8, "?", "1I0 is missing"),
    "W before I": (LLM, "0B0", "0W0 0I0", 0, 5, "0W0", "0W0 runs before 0I0"),
    "an action on the wrong rank": (LLM, "0F1 ", "1F1 ", 0, 2, "1F1", "stage 1 lives on rank 1"),
    "a copy that does not own": (MIXED, "0B0", "0B1", 0, 11, "0B1", "is owned by rank 1"),
    "F after its SEND": (LLM, "0F1 0SEND_F1", "0SEND_F1 0F1", 0, 2, "0SEND_F1", "0SEND_F1 runs before 0F1"),
    "B after its SEND": (LLM, "1B0 1SEND_B0", "1SEND_B0 1B0", 1, 3, "1SEND_B0", "1SEND_B0 runs before 1B0 or 1I0"),
    "B before F": (LLM, "1F1 1B1", "1B1 1F1", 1, 5, "1B1", "1B1 runs before 1F1"),
    "B before its gradient": (LLM, "0RECV_B1 0B1", "0B1 0RECV_B1", 0, 6, "0B1", "0B1 runs before 0RECV_B1"),
    "F before its activation": (LLM, "1RECV_F0 1F0", "1F0 1RECV_F0", 1, 0, "1F0", "1F0 runs before 1RECV_F0"),
    "a slab before its encode": (MIXED, "0F0 2RECV_F1 2F0", "2F0 2RECV_F1 0F0", 0, 0, "2F0", "2F0 runs before 0F0"),
    "an encode's backward before its slab's": (
        MIXED, "2B0 2RECV_B1 2B1 2SEND_B1 0B0", "0B0 2B0 2RECV_B1 2B1 2SEND_B1", 0, 7, "0B0", "0B0 runs before 2B0",
    ),
    "a missing RECV": (LLM, " 0RECV_B1", "", 0, 7, "?", "0RECV_B1 is missing; its other end is 1SEND_B1 on rank 1"),
    "another missing RECV": (LLM, "1RECV_F1 ", "", 1, 7, "?", "1RECV_F1 is missing; its other end is 0SEND_F1"),
    "a RECV never sent": (LLM, " 0SEND_F1", "", 0, 7, "?", "0SEND_F1 is missing; its other end is 1RECV_F1"),
    "a message out of the pipeline": (LLM, "1F1", "1F1 1SEND_F1", 1, 6, "1SEND_F1", "a message that nothing asks for"),
    "a message inside a rank": (MIXED, "0F0", "0F0 0SEND_F0", 0, 1, "0SEND_F0", "a message that nothing asks for"),
    "swapped order of a channel": (
        LLM, "1RECV_F0 1F0 1RECV_F1", "1RECV_F1 1RECV_F0 1F0", 1, 0, "1RECV_F1",
        "the two ends of channel 0 -> 1 differ in order",
    ),
    "circular wait with buffered sends": (
        LLM, "0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1", "0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1", 0, 2, "0RECV_B0",
        "deadlock with buffered sends: (rank 0, 0RECV_B0) waits for 1SEND_B0, (rank 1, 1RECV_F1) waits for 0SEND_F1",
    ),
    "W before its I": (SPLIT, "0I1 0W1", "0W1 0I1", 0, 8, "0W1", "0W1 runs before 0I1"),
    "W is missing": (SPLIT, " 1W0", "", 1, 9, "?", "1W0 is missing"),
    "W twice": (SPLIT, "1W0 1W1", "1W0 1W0 1W1", 1, 9, "1W0", "1W0 appears twice"),
    "B and W for one micro-batch": (SPLIT, "1I0", "1B0", 1, 8, "1W0", "both a whole backward B and a split one"),
    "B instead of W": (SPLIT, "1W1", "1B1", 1, 9, "1B1", "both a whole backward B and a split one"),
    "a gradient sent before I": (SPLIT, "1I0 1SEND_B0", "1SEND_B0 1I0", 1, 3, "1SEND_B0", "before 1B0 or 1I0"),
    "I before its gradient": (SPLIT, "0RECV_B0 0I0", "0I0 0RECV_B0", 0, 4, "0I0", "0I0 runs before 0RECV_B0"),
    "a fold's way back before its way out": (FOLD, "1F0 1RECV_F1 3F0", "3F0 1RECV_F1 1F0", 1, 1, "3F0", "before 1F0"),
    "a fold's backward out before that back": (FOLD, "3B0 1B0", "1B0 3B0", 1, 9, "1B0", "1B0 runs before 3B0 or 3I0"),
    "a message inside a fold's last rank": (FOLD, "1F1 3F1", "1F1 1SEND_F1 3F1", 1, 6, "1SEND_F1", "nothing asks for"),
    "a fold's RECV that is missing": (FOLD, " 2RECV_F1", "", 0, 15, "?", "its other end is 3SEND_F1 on rank 1"),
    "a copy that does not own, at the end": (OWNED, "3F1", "3F0", 1, 5, "3F0", "is owned by rank 0"),
    "an owner before the slab that feeds it": (OWNED, "1F1 3F1", "3F1 1F1", 1, 4, "3F1", "3F1 runs before 1F1"),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS)
def test_a_wrong_program_is_refused_with_its_cell_marked(case):
    line, old, new, rank, step, cell, words = EDITS[case]
    assert GOOD[line].count(old) == 1
    plan, programs = plan_of(line), table(GOOD[line].replace(old, new))
    message = refusal(programs, plan)
    assert f"rank {rank}, step {step}: " in message
    assert f">{cell}<" in message
    assert words in message
    assert len(message.split("\n")) >= 4
    assert not runs_correctly(programs, plan)


def test_one_micro_batch_with_both_backwards_and_one_with_none():
    programs = table("0F0 0F1 0B0 0I0 0W0")
    assert ">0I0<" in refusal(programs, plan_of(LLM, 1))


def test_two_ranks_that_both_send_first_are_refused_with_their_circle():
    plan = plan_of(LLM)
    programs = table(GOOD[LLM].replace("1RECV_F1 1B0 1SEND_B0", "1B0 1SEND_B0 1RECV_F1"))
    message = refusal(programs, plan)
    assert "deadlock with rendezvous sends: " in message
    assert "(rank 0, 0SEND_F1) waits for 1RECV_F1" in message
    assert "(rank 1, 1SEND_B0) waits for 0RECV_B0" in message
    assert ">0SEND_F1<" in message
    assert runs_correctly(programs, plan)
    assert not runs_correctly(programs, plan, rendezvous=True)


@pytest.mark.parametrize(
    "line, old, new, circle",
    [
        (
            FOLD,
            "1RECV_F1 3F0 3SEND_F0",
            "3F0 3SEND_F0 1RECV_F1",
            "(rank 0, 0SEND_F1) waits for 1RECV_F1, (rank 1, 3SEND_F0) waits for 2RECV_F0",
        ),
        (
            OWNED,
            "0F1 2RECV_F0 0SEND_F1",
            "0F1 0SEND_F1 2RECV_F0",
            "(rank 0, 0SEND_F1) waits for 1RECV_F1, (rank 1, 1SEND_F0) waits for 2RECV_F0",
        ),
    ],
    ids=["fold", "transposed at the end"],
)
def test_a_deadlock_of_sends_that_wait_is_a_cycle_of_ranks_and_actions(line, old, new, circle):
    plan, programs = plan_of(line), table(GOOD[line].replace(old, new))
    assert f"deadlock with rendezvous sends: {circle}" in refusal(programs, plan)
    assert runs_correctly(programs, plan)
    assert not runs_correctly(programs, plan, rendezvous=True)


@pytest.mark.parametrize(
    "line, frozen, extra",
    [
        (LLM, ("llm",), "0B0"),
        (MIXED, ("vision",), "0B0"),
        (MIXED, ("vision", "llm"), "2B1"),
        (MIXED, ("vision",), "0I0"),
    ],
)
def test_a_backward_of_a_frozen_stage_is_refused(line, frozen, extra):
    plan = plan_of(line, 2, 2, frozen)
    programs = edited(plan.programs, 0, [*plan.programs[0], *table(extra)[0]])
    message = refusal(programs, plan)
    assert f">{extra}<" in message
    assert "is trainable, so it has no backward" in message


def test_a_gradient_message_to_a_frozen_encoder_is_refused():
    plan = plan_of(MIXED, 2, 2, ("vision",))
    programs = edited(plan.programs, 0, [*plan.programs[0], Action(2, "SEND_B", 1)])
    assert "2SEND_B1 is a message that nothing asks for" in refusal(programs, plan)


def test_the_number_of_rows_must_be_p():
    assert "1 programs for 2 ranks" in refusal(table("0F0"), plan_of(LLM))


@pytest.mark.parametrize("line, frozen", [(LLM, ("llm",)), (MIXED, ("vision", "llm")), (MIXED, ("vision",))])
def test_forward_only_and_replicated_regions_are_accepted(line, frozen):
    plan = plan_of(line, 3, 5, frozen)
    validate_programs(plan.programs, plan.placement)
    assert {a.kind[-1] for program in plan.programs for a in program if a.stage < 3} == {"F"}


@quick
@given(plans(), st.data())
def test_any_backward_may_be_split_by_hand(plan, data):
    rank = data.draw(st.integers(0, plan.ranks - 1))
    row = list(plan.programs[rank])
    for action in [action for action in row if action.kind == "B" and data.draw(st.booleans())]:
        at = row.index(action)
        row[at] = action._replace(kind="I")
        row.insert(data.draw(st.integers(at + 1, len(row))), action._replace(kind="W"))
    validate_programs(edited(plan.programs, rank, row), plan.placement)


def test_hops_are_the_sends_of_the_programs():
    plan = plan_of(MIXED, 3, 4)
    sends = [a for program in plan.programs for a in program if a.kind.startswith("SEND")]
    assert Counter(action for action in plan.placement.ends if action.kind in SENDS) == Counter(sends)


@st.composite
def mutated(draw):
    """Draw a valid plan and its programs with one action deleted, doubled or changed."""
    plan = draw(plans())
    rank = draw(st.sampled_from([rank for rank in range(plan.ranks) if plan.programs[rank]]))
    row = list(plan.programs[rank])
    at = draw(st.integers(0, len(row) - 1))
    how = draw(st.sampled_from(["delete", "double", "stage", "kind", "mb"]))
    if how == "delete":
        del row[at]
    elif how == "double":
        row.insert(draw(st.integers(0, len(row))), row[at])
    else:
        values = {"kind": st.sampled_from(["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"])}
        value = draw(values.get(how, st.integers(0, 9)))
        assume(value != getattr(row[at], how))
        row[at] = row[at]._replace(**{how: value})
    return plan, edited(plan.programs, rank, row)


@quick
@given(mutated())
def test_any_deleted_doubled_or_changed_action_is_refused(case):
    plan, programs = case
    message = refusal(programs, plan)
    assert message.startswith("rank ")
    assert ">" in message


@quick
@given(plans(), st.data())
def test_after_any_swap_our_verdict_is_that_of_running_the_programs(plan, data):
    rank = data.draw(st.sampled_from([rank for rank in range(plan.ranks) if plan.programs[rank]]))
    row = list(plan.programs[rank])
    first, second = (data.draw(st.integers(0, len(row) - 1)) for _ in range(2))
    row[first], row[second] = row[second], row[first]
    programs = edited(plan.programs, rank, row)
    try:
        validate_programs(programs, plan.placement)
    except PlanError:
        accepted = False
    else:
        accepted = True
    assert accepted == all(runs_correctly(programs, plan, rendezvous) for rendezvous in (False, True))
