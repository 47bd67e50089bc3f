from algebra_cases import table

from hyperparallel.algebra.mark import mark, refuse


def test_columns_line_up_and_the_cell_is_marked():
    assert mark(table("0F0 0SEND_F0 0B0 | 1RECV_F0 1F0 1B0"), 0, 1).split("\n") == [
        "  rank 0 |  0F0       >0SEND_F0<  0B0",
        "  rank 1 |  1RECV_F0   1F0        1B0",
    ]


def test_one_past_the_end_marks_what_is_missing():
    assert mark(table("0F0 | 1F0 1B0"), 0, 1).split("\n")[0] == "  rank 0 |  0F0  >?<"


def test_a_long_grid_is_cut_around_the_cell():
    programs = table(" | ".join(" ".join(f"{rank}F{mb}" for mb in range(30)) for rank in range(9)))
    lines = mark(programs, 4, 15).split("\n")
    assert [line.split("|")[0].strip() for line in lines] == ["rank 2", "rank 3", "rank 4", "rank 5", "rank 6"]
    assert all(" | ... " in line and line.endswith(" ...") for line in lines)
    assert ">4F15<" in lines[2]
    assert "4F10" in lines[2] and "4F20" in lines[2]
    assert "4F9 " not in lines[2] and "4F21" not in lines[2]


def test_a_refusal_says_where_what_and_one_way_out():
    lines = str(refuse(table("0F0 0F0"), 0, 1, "0F0 appears twice", "remove it")).split("\n")
    assert lines == ["rank 0, step 1: 0F0 appears twice", "  rank 0 |  0F0  >0F0<", "  remove it"]
