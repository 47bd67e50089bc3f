"""Exchange with torch.distributed.pipelining; `tests/data_torch` holds tables that torch 2.13 wrote itself."""

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from algebra_cases import compute_of, plan_of, quick, table
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import Action, ModelSpec, derive, to_csv
from hyperparallel.algebra.exchange import (
    check_exchanged,
    find_placement,
    from_torch_csv,
    parse_table,
    renumber,
    to_torch_csv,
)
from hyperparallel.cost import Costs, peak_live
from hyperparallel.cost.timeline import play
from hyperparallel.errors import HyperParallelError, PlanError, ProgramSyntaxError

FOLDER = Path(__file__).parents[1] / "data_torch"
SIZES = ((2, 4), (4, 8), (4, 16))
SHARDED_LINES = [
    "1f1b(llm)", "gpipe(llm)", "zb(llm)", "1f1b(llm)*2", "1f1b(llm)*3", "gpipe(llm)*2", "zb(llm)*2",
    "zb(llm, fold=v)", "wave(llm)", "wave(llm)*2",
]  # fmt: skip
UNIT = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}

# Table of torch -> step time and peak live chunks for SIZES, unit chunks, messages free.
TORCH = {
    "Interleaved1F1B": ("loop", [(27, (5, 3)), (57, (11, 9, 7, 5)), (105, (11, 9, 7, 5))]),
    "InterleavedZeroBubble": ("loop", [(25, (4, 4)), (51, (8, 8, 8, 8)), (99, (8, 8, 8, 8))]),
    "ZBVZeroBubble": ("v", [(25, (4, 4)), (51, (8, 8, 8, 8)), (99, (8, 8, 8, 8))]),
    "DualPipeV": ("v", [(25, (5, 5)), (51, (9, 9, 9, 9)), (99, (9, 9, 9, 9))]),
}
TABLES = [(name, ranks, micro_batches) for name in TORCH for ranks, micro_batches in SIZES]


def text_of(name, ranks, micro_batches):
    return (FOLDER / f"{name}_p{ranks}_m{micro_batches}.csv").read_text()


def step_time(compute, placement):
    costs = Costs({(stage, kind): time for stage in range(placement.stages) for kind, time in UNIT.items()})
    return max(row[-1].end for row in play(compute, placement, costs))


def replay(text, ranks, micro_batches):
    placement, programs = check_exchanged(parse_table(text), ranks, micro_batches)
    compute = compute_of(programs)
    return step_time(compute, placement), peak_live(compute, placement)


@cache
def derived(line, ranks, micro_batches):
    return derive(line, ModelSpec.of({"llm": 12 * ranks}), ranks, micro_batches)


@pytest.mark.parametrize("name, ranks, micro_batches", TABLES)
def test_tables_of_torch_are_valid_and_replay_in_their_time(name, ranks, micro_batches):
    placement, expected = TORCH[name]
    text = text_of(name, ranks, micro_batches)
    assert find_placement(parse_table(text)) == placement
    assert replay(text, ranks, micro_batches) == expected[SIZES.index((ranks, micro_batches))]


@pytest.mark.parametrize("name, ranks, micro_batches", TABLES)
def test_tables_of_torch_are_written_back_as_they_were(name, ranks, micro_batches):
    text = text_of(name, ranks, micro_batches)
    programs, placement = from_torch_csv(text)
    for grid in (False, True):
        written = to_torch_csv(programs, placement, grid)
        assert parse_table(written) == parse_table(text)
        assert from_torch_csv(written) == (programs, placement)


RIVALS = [
    (line, rival, *size)
    for line, rival in (
        ("1f1b(llm)*2", "Interleaved1F1B"),
        ("zb(llm)*2", "InterleavedZeroBubble"),
        ("zb(llm, fold=v)", "ZBVZeroBubble"),
        ("zb(llm, fold=v)", "DualPipeV"),
        ("wave(llm)", "Interleaved1F1B"),
    )
    for size in SIZES
    if (line, size) != ("wave(llm)", (4, 16))  # a V with whole backwards: 109 against 105
]


@pytest.mark.parametrize("line, rival, ranks, micro_batches", RIVALS)
def test_our_schedules_are_no_slower_than_those_of_torch(line, rival, ranks, micro_batches):
    plan = derived(line, ranks, micro_batches)
    ours, _ = replay(to_torch_csv(plan), ranks, micro_batches)
    assert ours == step_time(plan.compute, plan.placement)
    assert ours <= replay(text_of(rival, ranks, micro_batches), ranks, micro_batches)[0]


@quick
@given(st.sampled_from(SHARDED_LINES), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_round_trip(line, ranks, micro_batches, grid):
    plan = derived(line, ranks, micro_batches)
    text = to_torch_csv(plan, grid=grid)
    programs, placement = from_torch_csv(text)
    assert programs == plan.compute
    assert placement == ("v" if plan.placement.reflected and ranks > 1 else "loop")
    found, checked = check_exchanged(parse_table(text), ranks, micro_batches)
    assert compute_of(checked) == plan.compute
    assert ranks == 1 or found.reflected == plan.placement.reflected


@quick
@given(st.sampled_from(SHARDED_LINES), st.integers(1, 5), st.integers(1, 6))
def test_layers_follow_each_other_in_the_numbers_of_torch(line, ranks, micro_batches):
    plan = derived(line, ranks, micro_batches)
    placement = "v" if plan.placement.reflected else "loop"
    path = [
        [Action(stage, "F", 0) for stage in plan.placement.path(0) if stage % ranks == rank] for rank in range(ranks)
    ]
    written = {action.stage: rank for rank, row in enumerate(renumber(path, placement)) for action in row}
    assert sorted(written) == list(range(plan.placement.stages))
    assert [written[stage] for stage in sorted(written)] == [stage % ranks for stage in plan.placement.path(0)]


def test_renumber_reflects_odd_chunks_and_is_its_own_inverse():
    ours = table("0F0 3F0 6F0 9F0 | 1F0 4F0 7F0 10F0 | 2F0 5F0 8F0 11F0")
    torch = table("0F0 5F0 6F0 11F0 | 1F0 4F0 7F0 10F0 | 2F0 3F0 8F0 9F0")
    assert renumber(ours, "v") == torch and renumber(torch, "v") == ours
    assert renumber(ours, "loop") == ours
    assert find_placement(torch) == "v" and find_placement(ours) == "loop"


@pytest.mark.parametrize("pair", ["(0F7;7B3)", "(7B3;0F7)", " ( 0F7 ; 7B3 )"])
def test_a_fused_cell_is_its_forward_then_its_backward(pair):
    assert parse_table(f"0F0,{pair}OVERLAP_F_B,,0B0\n") == table("0F0 0F7 7B3 0B0")


@pytest.mark.parametrize(
    "cell, words",
    [
        ("(0F7;7F3)OVERLAP_F_B", "does not fuse a forward and a backward"),
        ("(0F7;7W3)OVERLAP_F_B", "does not fuse"),
        ("(0F7)OVERLAP_F_B", "is not an action"),
        ("(0F7;7B3)", "is not an action"),
        ("(0F7;7B3;0F8)OVERLAP_F_B", "is not an action"),
        ("(0F7;)OVERLAP_F_B", "'' is not an action"),
        ("0UNSHARD", "is not an action"),
        ("None", "is not an action"),
    ],
)
def test_a_cell_that_is_no_action_is_named(cell, words):
    with pytest.raises(ProgramSyntaxError, match=re.escape(words)) as error:
        parse_table(f"0F0\n1F0,,{cell}\n", "t.csv")
    assert str(error.value).startswith("t.csv, row 2, column 3: ")


@pytest.mark.parametrize("header", ["step 0,step 1", "rank,0,1,2", " Time ,,3", "step_0,STEP1"])
def test_a_header_is_skipped(header):
    assert parse_table(f"{header}\n0F0,0B0\n") == table("0F0 0B0")


@pytest.mark.parametrize("row", ["0,1,2", "step 0,0F0", "stage 0", "F,B", "step 0x"])
def test_a_first_row_that_is_no_clear_header_is_refused(row):
    with pytest.raises(ProgramSyntaxError, match="row 1, column"):
        parse_table(f"{row}\n0F0,0B0\n")


def test_a_row_of_blanks_or_a_later_heading_is_no_header():
    assert parse_table(",,\n0F0\n") == ((), *table("0F0"))
    with pytest.raises(ProgramSyntaxError, match="row 2, column 1"):
        parse_table("0F0\nstep 0\n")


def test_a_v_in_our_own_numbers_is_understood():
    plan = derived("zb(llm, fold=v)", 4, 8)
    for placement in (None, "v"):
        found, programs = check_exchanged(plan.compute, 4, 8, placement)
        assert found.reflected == {1} and compute_of(programs) == plan.compute
    with pytest.raises(PlanError, match="wait"):
        check_exchanged(plan.compute, 4, 8, "loop")


def test_rows_that_run_as_loop_and_as_v_are_loop_unless_told_otherwise():
    both = table("0F0 2F0 | 1F0 3F0")
    assert check_exchanged(both, 2, 1)[0].reflected == frozenset()
    assert check_exchanged(both, 2, 1, "v")[0].reflected == {1}


ZBV = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"


@pytest.mark.parametrize(
    "content, placement, words",
    [
        (ZBV.replace("3F0,3B0", "3B0,3F0"), None, ["3B0 runs before 3F0", " 0F0  >3B0<  3F0   0B0", "move 3B0"]),
        (ZBV.replace(",2B0", ""), None, ["rank 1, step 3: 2B0 is missing", "add 2B0 to rank 1", " 2F0   1B0  >?<"]),
        (ZBV.replace("3F0", "2F0"), None, ["rank 0, step 1: 2F0 is on rank 0, but with V placement stage 2 is rank 1's",
                                           "3 with loop placement, 1 with V placement", ">2F0<"]),
        (ZBV.replace("3B0", "3B9"), None, ["rank 0, step 2: micro-batch 9 of 3B9 does not exist", ">3B9<"]),
        (ZBV.replace("1B0", "1I0,1I0"), None, ["1I0 appears twice", ">1I0<"]),
        (ZBV, "loop", ["3F0 is on rank 0, but with loop placement stage 3 is rank 1's", "check the number of ranks"]),
        ("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0,0B0\n", None, ["rank 1, step 4: 0B0 is on rank 1, but with loop placement"]),
        ("0F0\n", None, ["1 rows for 2 ranks"]),
        ("\n\n", None, ["no compute action"]),
        (ZBV, "w", ["placement='w'", "loop or v"]),
    ],
)  # fmt: skip
def test_errors_show_the_numbers_of_the_file(content, placement, words):
    with pytest.raises(PlanError) as error:
        check_exchanged(parse_table(content), 2, 1, placement)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_columns_stay_aligned_where_a_number_gets_longer():
    rows = [list(row) for row in parse_table(to_torch_csv(derived("wave(llm)", 6, 8)))]  # stages 6-11 are reflected
    rows[3].append(rows[3][-1])
    with pytest.raises(PlanError) as error:
        check_exchanged(rows, 6, 8)
    grid = [line for line in str(error.value).splitlines() if line.startswith("  rank ")]
    starts = [[match.start(1) for match in re.finditer(r">?\b(\d+[A-Z]\d+)", line)] for line in grid]
    longest = max(starts, key=len)
    assert len(grid) == 5 and all(row == longest[: len(row)] for row in starts), str(error.value)


@quick
@given(st.sampled_from(["zb(llm, fold=v)", "wave(llm)", "wave(llm)*2"]), st.integers(2, 7), st.data())
def test_a_damaged_v_is_shown_in_the_cells_of_the_file(line, ranks, data):
    rows = [list(row) for row in parse_table(to_torch_csv(derived(line, ranks, 3)))]
    row = rows[data.draw(st.integers(0, ranks - 1))]
    at, other = (data.draw(st.integers(0, len(row) - 1)) for _ in range(2))
    damage = data.draw(st.sampled_from(["swap", "drop", "repeat"]))
    if damage == "swap":
        row[at], row[other] = row[other], row[at]
    elif damage == "drop":
        del row[at]
    else:
        row.insert(other, row[at])
    try:
        check_exchanged(rows, ranks, 3)
    except PlanError as error:
        shown = [drawn for drawn in str(error).splitlines() if drawn.startswith("  rank ")]
        assert shown
        for drawn in shown:
            cells = re.findall(r"\d+[FBIW]\d+", drawn)
            own = list(map(str, rows[int(re.match(r"  rank (\d+)", drawn)[1])]))
            assert any(own[start : start + len(cells)] == cells for start in range(len(own) + 1)), str(error)
    else:
        assert damage == "swap"


def test_what_is_written_has_no_messages_needs_our_numbers_and_for_a_grid_an_order_that_runs():
    plan = derived("1f1b(llm)", 2, 2)
    assert to_torch_csv(plan.programs) == to_torch_csv(plan) == to_csv(plan.compute)
    assert to_torch_csv(plan, grid=True) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
    with pytest.raises(PlanError, match="wait for each other at 0B0, 1B0"):
        to_torch_csv(table("0B0 0F0 | 1B0 1F0"), grid=True)
    with pytest.raises(PlanError, match="3F0 is on rank 0"):
        to_torch_csv(parse_table(ZBV), "v")


@pytest.mark.parametrize(
    "line, placement, words",
    [
        ("transpose(vision) >> 1f1b(llm)", None, "runs a region on every rank"),
        ("1f1b(llm)*2", "v", "that run back: none (of 2)"),
        ("wave(llm)", "loop", "that run back: 2"),
        ("1f1b(vision) >> wave(llm)", None, "that run back: 3"),
        ("1f1b(llm)", "w", "placement='w'"),
    ],
)
def test_a_plan_that_torch_cannot_place_is_refused(line, placement, words):
    with pytest.raises(PlanError, match=re.escape(words)):
        to_torch_csv(plan_of(line), placement)


cells = st.sampled_from(["", "0F0", "1F0", "3F0", "2F0", "0B0", "3I0", "(0F1;3B0)OVERLAP_F_B", "step", "0SEND_F0",
                         "1RECV_F0", "999999999F0", "0F999999999", "x", '"', "(;)OVERLAP_F_B"])  # fmt: skip


@quick
@given(
    st.one_of(st.text(), st.lists(st.lists(cells, max_size=6).map(",".join), max_size=4).map("\n".join)),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([None, "loop", "v"]),
)
def test_any_text_is_programs_or_an_error_of_ours(text, ranks, micro_batches, placement):
    with suppress(HyperParallelError):
        programs, found = from_torch_csv(text, placement)
        assert all(isinstance(action, Action) for program in programs for action in program) and found in ("loop", "v")
        to_torch_csv(programs, found)
    with suppress(HyperParallelError):
        check_exchanged(parse_table(text), ranks, micro_batches, placement)
