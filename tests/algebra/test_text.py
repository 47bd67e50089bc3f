import pytest
from algebra_cases import actions, quick, table
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import from_csv, from_text, to_csv, to_text
from hyperparallel.errors import ProgramSyntaxError

rows = st.lists(st.lists(actions, max_size=4).map(tuple), max_size=4).map(tuple)


@quick
@given(rows)
def test_programs_read_back_from_csv_and_from_text(programs):
    assert from_csv(to_csv(programs)) == programs
    assert from_text(to_text(programs)) == programs


def test_what_the_files_look_like():
    programs = table("0F0 0SEND_F0 | 1RECV_F0 1F0 |")
    assert to_csv(programs) == "0F0,0SEND_F0\n1RECV_F0,1F0\n\n"
    assert to_text(programs) == "rank 0: 0F0 0SEND_F0\nrank 1: 1RECV_F0 1F0\nrank 2:\n"


def test_blank_cells_are_idle_time():
    assert from_csv("0F0,,  ,0B0\n, 1F0 ,\n") == table("0F0 0B0 | 1F0")


BAD_CSV = [
    ("0F0\n0F0,2F0x\n", ["plan.csv, row 2, column 2: '2F0x'"]),
    ("1B", ["plan.csv, row 1, column 1: '1B'"]),
    ("0F0,-1F0", ["row 1, column 2: '-1F0'"]),
    ("0F0\n\n٢F0", ["row 3, column 1"]),
    ("0F0;0B0", ["row 1, column 1: '0F0;0B0'"]),
    ('0F0\n1F0,"1B0\n2F0', ["plan.csv, row 2", "not a CSV table"]),
    ("0F0,0F9999999999", ["row 1, column 2"]),
]


@pytest.mark.parametrize("text, words", BAD_CSV, ids=[ascii(text) for text, _ in BAD_CSV])
def test_garbage_in_csv_is_refused_with_file_row_and_column(text, words):
    with pytest.raises(ProgramSyntaxError) as error:
        from_csv(text, "plan.csv")
    assert all(word in str(error.value) for word in words), str(error.value)


BAD_TEXT = [
    ("rank 0: 0F0\nrank 1: 1F0 2F0x", ["plan.txt, row 2, column 2: '2F0x'"]),
    ("rank 0: 1B", ["plan.txt, row 1, column 1: '1B'"]),
    ("rank 1: 1F0", ["row 1: expected 'rank 0: ...'", "rank 1: 1F0"]),
    ("rank 0: 0F0\n\nrank 1: 1F0", ["row 2: expected 'rank 1: ...'"]),
    ("rank ٠: 0F0", ["row 1: expected 'rank 0: ...'"]),
    ("0F0,0B0", ["row 1: expected 'rank 0: ...'", "0F0,0B0"]),
]


@pytest.mark.parametrize("text, words", BAD_TEXT, ids=[ascii(text) for text, _ in BAD_TEXT])
def test_garbage_in_text_is_refused_with_file_row_and_column(text, words):
    with pytest.raises(ProgramSyntaxError) as error:
        from_text(text, "plan.txt")
    assert all(word in str(error.value) for word in words), str(error.value)


pieces = st.sampled_from(["0F0", "1B12", "rank 0:", "rank 1:", ",", "\n", "\r", '"', " ", "\0", "x", "1SEND_F0", "١"])


@quick
@given(st.one_of(st.text(max_size=30), st.lists(pieces, max_size=12).map("".join)))
def test_any_text_is_programs_or_a_syntax_error(text):
    for read, write in ((from_csv, to_csv), (from_text, to_text)):
        try:
            programs = read(text)
        except ProgramSyntaxError:
            continue
        assert read(write(programs)) == programs
