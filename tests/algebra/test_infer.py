import time

import pytest
from algebra_cases import compute_of, placement_name, plans, quick, table
from algebra_machine import runs_correctly
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import Action, check_table, from_csv
from hyperparallel.algebra.placement import Placement
from hyperparallel.errors import HyperParallelError, PlanError

HUGE = 999999999

ACCEPTED = {
    "a forward-only region": ("0F0 0F1 | 1F0 1F1", 2, 2, (None,), [False, False]),
    "a replicated region": (
        "0F0 2F0 2F1 2B0 2B1 0B0 | 1F1 3F0 3B0 3F1 3B1 1B1", 2, 2, ((0, 1), None), [True] * 4,
    ),
    "a frozen replicated region": (
        "0F0 2F0 2F1 2B0 2B1 | 1F1 3F0 3B0 3F1 3B1", 2, 2, ((0, 1), None), [False, False, True, True],
    ),
    "I and W by hand": ("0F0 0F1 0I0 0I1 0W0 0W1 | 1F0 1I0 1F1 1I1 1W0 1W1", 2, 2, (None,), [True, True]),
    "one backward whole, one split": ("0F0 0I0 0W0 0F1 0B1", 1, 2, (None,), [True]),
    "a first slab that is frozen": ("0F0 0F1 | 1F0 1B0 1F1 1B1", 2, 2, (None,), [False, True]),
    "two Sharded regions": ("0F0 2F0 2B0 0B0 | 1F0 3F0 3B0 1B0", 2, 1, (None, None), [True] * 4),
    "an encoder on one rank only": ("0F0 0F1 2F0 2F1 | 3F0 3F1", 2, 2, ((0, 0), None), [False] * 4),
    "a replicated region at the end": (
        "0F0 0F1 2F0 2B0 0B0 0B1 | 1F0 1F1 3F1 3B1 1B0 1B1", 2, 2, (None, (0, 1)), [True] * 4,
    ),
    "a replicated region alone": ("0F0 0B0 | 1F1 1B1", 2, 2, ((0, 1),), [True, True]),
}  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_table_by_hand_is_accepted_and_understood(case):
    text, ranks, micro_batches, owners, backward = ACCEPTED[case]
    placement, programs = check_table(table(text), ranks, micro_batches)
    assert placement.owners == owners
    assert [gates.receives_gradient for gates in placement.gates] == backward
    assert compute_of(programs) == table(text)
    assert check_table(programs, ranks, micro_batches) == (placement, programs)


REFUSED = {
    "a duplicate 0F0": ("0F0 0F0 0F1", 1, 2, "rank 0, step 1", ">0F0<", "appears twice"),
    "ids {0, 7}": ("0F0 0B0 0F7 0B7", 1, 2, "rank 0, step 2", ">0F7<", "micro-batch 7 of 0F7 does not exist"),
    "B and also I and W": ("0F0 0F1 0B0 0I0 0W0", 1, 2, "rank 0, step 3", ">0I0<", "both a whole backward"),
    "a backward is missing": ("0F0 0F1 0B0", 1, 2, "rank 0, step 3", ">?<", "0B1 is missing"),
    "W before I": ("0F0 0W0 0I0", 1, 1, "rank 0, step 1", ">0W0<", "0W0 runs before 0I0"),
    "B before F": ("0B0 0F0", 1, 1, "rank 0, step 0", ">0B0<", "0B0 runs before 0F0"),
    "the next slab of the rank first": ("1F0 0F0", 1, 1, "rank 0, step 0", ">1F0<", "1F0 runs before 0F0"),
    "the wrong rank": ("0F0 1F0 | 1F1", 2, 2, "rank 0, step 1", ">1F0<", "stage 1 is rank 1's"),
    "a huge stage": ("0F0 1F0 999999999F0", 1, 1, "rank 0, step 2", ">999999999F0<", "out of range"),
    "a huge micro-batch": ("0F0 0F999999999", 1, 2, "rank 0, step 1", ">0F999999999<", "does not exist"),
    "a huge M": ("0F0 0F1", 1, HUGE, "rank 0, step 2", ">?<", "micro-batch 2 has no forward on any rank"),
    "a hole between stages": ("0F0 2F0", 1, 1, "rank 0, step 2", ">?<", "1F0 is missing"),
    "a circle": ("0F0 0B0 0F1 0B1 | 1F1 1F0 1B1 1B0", 2, 2, "rank 0, step 1", ">0B0<", "(rank 1, 1F1) waits for 0F1"),
    "a blank row, P = 2": ("0F0 0B0 |", 2, 1, "rank 1, step 0", ">?<", "1F0 is missing"),
    "a blank row, P = 3": ("0F0 0F1 | | 2F0 2F1", 3, 2, "rank 1, step 0", ">?<", "1F0 is missing"),
    "a blank row, two regions": ("0F0 2F0 0F1 2F1 |", 2, 2, "rank 1, step 0", ">?<", "1F0 is missing"),
    "B and I + W, by micro-batch and mixed up": ("0F0 0F1 0B0 0W0 0I1 0W1", 1, 2, "rank 0, step 3", ">0W0<", "both"),
    "W is missing": ("0F0 0F1 0I0 0W0 0I1", 1, 2, "rank 0, step 5", ">?<", "0W1 is missing"),
    "a lone message": ("0F0 0SEND_F0 | 1F0", 2, 1, "rank 1, step 1", ">?<", "1RECV_F0 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_table_is_refused_with_its_cell_marked(case):
    text, ranks, micro_batches, *words = REFUSED[case]
    with pytest.raises(PlanError) as error:
        check_table(table(text), ranks, micro_batches)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    "programs, ranks, micro_batches, words",
    [
        ([], 1, 1, "0 rows for 1 ranks"),
        ([()], 1, 1, "no compute action"),
        (table("0SEND_F0"), 1, 1, "no compute action"),
        (table("0F0 | 1F0"), 3, 1, r"2 rows for 3 ranks.*--ranks 2\?"),
        (table("0F0"), HUGE, 1, "1 rows for 999999999 ranks"),
        (table("0F0"), 0, 1, "ranks=0, micro_batches=1; both must be at least 1"),
        ([], -1, 1, "ranks=-1"),
        (table("0F0"), 1, 0, "micro_batches=0"),
    ],
)
def test_a_table_of_the_wrong_size_is_refused_in_words(programs, ranks, micro_batches, words):
    with pytest.raises(PlanError, match=words):
        check_table(programs, ranks, micro_batches)


def test_blank_lines_at_the_end_of_a_file_are_no_ranks():
    assert check_table(from_csv("0F0\n1F0\n\n\n"), 2, 1)[1] == table("0F0 0SEND_F0 | 1RECV_F0 1F0")


V = "0F0 0SEND_F0 2RECV_F0 2F0 2B0 2SEND_B0 0RECV_B0 0B0 | 1RECV_F0 1F0 3F0 3SEND_F0 3RECV_B0 3B0 1B0 1SEND_B0"


def test_a_fold_is_recognised_by_its_messages():
    placement, programs = check_table(table(V), 2, 1)
    assert placement.reflected == {1}
    assert placement.paths == ((0, 1, 3, 2),)
    assert check_table(table(V), 2, 1, "v") == (placement, programs)
    assert check_table(compute_of(programs), 2, 1, placement="v")[1] == programs
    with pytest.raises(PlanError, match="a message that nothing asks for|is missing"):
        check_table(table(V), 2, 1, placement="loop")


def test_auto_takes_the_loop_where_both_are_valid():
    both = table("0F0 2F0 2B0 0B0 | 1F0 3F0 3B0 1B0")
    assert not check_table(both, 2, 1)[0].reflected
    assert check_table(both, 2, 1, "v")[0].reflected == {1}


def test_auto_takes_the_fold_where_only_it_is_valid():
    last_slab_trained = table("0F0 2F0 2B0 | 1F0 3F0")  # as a loop, stage 3 would come after it and lack a backward
    placement, _ = check_table(last_slab_trained, 2, 1)
    assert placement.reflected == {1}
    assert [gates.receives_gradient for gates in placement.gates] == [False, False, True, False]


def test_under_auto_the_error_is_that_of_the_loop():
    upside_down, errors = table("0F0 2F0 | 3F0 1F0"), {}
    for placement in ("auto", "loop", "v"):
        with pytest.raises(PlanError) as error:
            check_table(upside_down, 2, 1, placement)
        errors[placement] = str(error.value)
    assert errors["auto"] == errors["loop"] != errors["v"]
    assert "the ranks wait for each other" in errors["loop"]
    assert "3F0 runs before 1F0" in errors["v"]


def test_an_unknown_placement_is_refused_in_words():
    with pytest.raises(PlanError, match="placement='u' is not possible; expected auto, loop, v"):
        check_table(table("0F0"), 1, 1, "u")


@quick
@given(plans(), st.data())
def test_split_backwards_are_lowered_to_programs_that_run(plan, data):
    if not (name := placement_name(plan)):
        return
    rows = []
    for row in map(list, plan.compute):
        for action in [action for action in row if action.kind == "B" and data.draw(st.booleans())]:
            at = row.index(action)
            row[at] = action._replace(kind="I")
            row.insert(data.draw(st.integers(at + 1, len(row))), action._replace(kind="W"))
        rows.append(tuple(row))
    _, programs = check_table(rows, plan.ranks, plan.micro_batches, name)
    assert compute_of(programs) == tuple(rows)
    assert runs_correctly(programs, plan)
    assert runs_correctly(programs, plan, rendezvous=True)


@quick
@given(plans())
def test_auto_finds_loops_and_folds_from_their_messages(plan):
    if (name := placement_name(plan)) and plan.ranks > 1:
        placement, programs = check_table(plan.programs, plan.ranks, plan.micro_batches)
        assert programs == plan.programs
        assert placement == check_table(plan.programs, plan.ranks, plan.micro_batches, name)[0]


numbers = st.one_of(st.integers(0, 4), st.sampled_from([17, HUGE]))
kinds = st.sampled_from(["F", "F", "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"])


@st.composite
def tables(draw):
    """Draw rows of actions, most of them on their own rank, and P and M."""
    ranks, micro_batches = draw(st.integers(-1, 3)), draw(st.sampled_from([1, 2, 3, HUGE]))
    rows = []
    for rank in range(max(ranks, 0)):
        stage = st.one_of(st.sampled_from([rank, rank + ranks]), numbers)
        rows.append(draw(st.lists(st.builds(Action, stage, kinds, numbers), max_size=6)))
    return rows, ranks, micro_batches


@quick
@given(tables())
def test_any_table_gives_a_placement_or_our_error_and_never_takes_long(case):
    start = time.process_time()
    try:
        placement, _ = check_table(*case, "auto")
    except HyperParallelError:
        pass
    else:
        assert isinstance(placement, Placement)
    assert time.process_time() - start < 1
