"""The text timeline: golden pictures, and what must hold for any plan and width."""

import math
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views_cases import ALL, INLINE, TEXT, TRANSPOSED, planned

from hyperparallel.algebra import Action, parse_action
from hyperparallel.cost import Span, Timeline
from hyperparallel.views import grid
from hyperparallel.views.bars import bar, coarse_rows


def timeline_of(*rows):
    """Make a timeline of (action, start, end) rows; only what `grid` reads is real."""
    spans = tuple(tuple(Span(*span) for span in row) for row in rows)
    end = max((span.end for row in spans for span in row), default=0.0)
    busy = tuple(sum(span.end - span.start for span in row) for row in spans)
    nothing = (0.0,) * len(rows)
    return Timeline(spans, end, busy, nothing, (0,) * len(rows), nothing, nothing, nothing)


def rows_of(picture):
    return [line.split("|")[1] for line in picture.splitlines() if re.match(r"(rank \d+)? *(stage \d+ *)?\|", line)]


GOLDEN = {
    "frozen encoder": (
        (TRANSPOSED, 2, 2, "vision=12/0,llm=4/8"),
        """\
rank 0 |(0F0~~~~~~~)[F0][F1]........<2B0===>....<2B1===>|
rank 1 |(1F1~~~~~~~)....[F0]<3B0===>[F1]<3B1===>........|
        +---------+---------+---------+---------+-------+
        0         10        20        30        40     48
(0F0~~) encode   [2F0  ] forward   <2B0==> backward   . idle
2F0 = stage 2, forward, micro-batch 0
when short: [0], F0, F""",
    ),
    "trainable encoder, rounded columns": (
        (TRANSPOSED, 2, 3, "vision=6/9,llm=4/8"),
        """\
rank 0 |(0~)(2~)F0F1 .....<2B0=>F2<2B1>...<2B2>{0B0#}{0B2#}|
rank 1 |(1~)......F0 <3B0>F1 <3B1>F2 <3B2>{1B1#}...........|
        +------------+------------+------------+-----------+
        0            20           40           60         78
(0F0~~) encode   [2F0  ] forward   <2B0==> backward
{0B0##} encoder backward   . idle
2F0 = stage 2, forward, micro-batch 0
when short: [0], F0, F""",
    ),
    "encoder in the first slab": (
        (INLINE, 2, 2, "vision=12/0,llm=4/8"),
        """\
rank 0 |[0F0       ][0F1       ]<0B0=>...<0B1=>|
rank 1 |............[0]<1B0=>...[1]<1B1=>......|
        +--------------+--------------+--------+
        0              20             40      52
[0F0  ] forward   <0B0==> backward   . idle
0F0 = stage 0, forward, micro-batch 0
when short: [0], F0, F""",
    ),
    "many actions turn coarse": (
        (TRANSPOSED, 2, 128, "vision=12/24,llm=4/8"),
        """\
rank 0 |ffffffffff*********************bbbbbbbbbbbbbbbbbbbb|
rank 1 |ffffffffff*********************bbbbbbbbbbbbbbbbbbbb|
        +------------+------------+-------------+----------+
        0            1000         2000          3000    3852
one column = 75.5, by what fills it:   f encode   F forward
B backward   b encoder backward   * several of these
. idle for half of it or more""",
    ),
    "nothing takes time": (
        (TEXT, 2, 1, "llm=0/0"),
        """\
rank 0 |...................................................|
rank 1 |...................................................|
        +---------------------------------------------------
        0
[0F0  ] forward   . idle
0F0 = stage 0, forward, micro-batch 0
when short: [0], F0, F
not drawn: 2 actions shorter than half a column""",
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN.values(), ids=GOLDEN)
def test_golden(arguments, expected):
    assert grid(planned(*arguments)[2], width=60) == expected


def spans_of(text):
    """Read `0F0@3-7`: the action and its time."""
    words = (re.fullmatch(r"(\w+)@(\d+)-(\d+)", word) for word in text.split())
    return [(parse_action(word[1]), int(word[2]), int(word[3])) for word in words]


# By hand, so that a better order of a skeleton does not change the picture.
BY_HAND = {
    "split backwards": (
        ["0F0@0-4 0F1@4-8 0I0@13-17 0W0@17-21 0I1@21-25 0W1@25-29", "1F0@4-8 1I0@8-12 1F1@12-16 1I1@16-20 1W1@20-26"],
        """\
rank 0 |[0F0  ][0F1  ].........<0I0-->/0W0++/<0I1-->/0W1++/|
rank 1 |.......[1F0  ]<1I0-->[1F1  ]<1I1-->/1W1++++++/.....|
        +--------+--------+-------+--------+--------+------+
        0        5        10      15       20       25    29
[0F0  ] forward   <0I0--> input gradient
/0W0++/ weight gradient   . idle
0F0 = stage 0, forward, micro-batch 0
when short: [0], F0, F""",
    ),
    "a row per stage of an interleaved backbone": (
        ["0F0@0-2 0F1@2-4 2F0@4-6 2F1@6-8 2B0@10-14 0B0@17-21", "1F0@2-4 3F0@6-8 3B0@8-12 1B0@12-16"],
        """\
rank 0  stage 0 |[F0][F1]        ....        ......<0B0===>|
        stage 2 |        [F0][F1]....<2B0===>......        |
rank 1  stage 1 |....[F0]....            <1B0===>..........|
        stage 3 |....    ....[F0]<3B0===>        ..........|
                 +---------+---------+---------+-----------+
                 0         5         10        15         21
[0F0  ] forward   <2B0==> backward   . idle
blank: busy with another stage
2B0 = stage 2, backward, micro-batch 0
when short: <0>, B0, B""",
    ),
    "transposed at both ends": (
        ["0F0@0-3 2F0@3-5 4F0@7-11 4B0@11-17 2B0@19-23 0B0@23-26", "1F1@0-3 3F0@5-7 3B0@17-19"],
        """\
rank 0  stage 0 |(F0~)   ...                ....      {B0#}|
        stage 2 |     [0]...                ....<2B0=>     |
        stage 4 |        ...(4F0~~){4B0####}....           |
rank 1  stage 1 |(F1~)...   ................    ...........|
        stage 3 |     ...[0]................<0=>...........|
        stage 5 |     ...   ................    ...........|
                 +-------+-------+-------+-------+---------+
                 0       5       10      15      20       26
(0F0~~) transposed forward   [2F0  ] forward
<2B0==> backward   {4B0##} transposed backward   . idle
blank: busy with another stage
4B0 = stage 4, transposed backward, micro-batch 0
when short: {0}, b0, b""",
    ),
    "chunks, coarse": (
        [
            " ".join(f"{s}F{m}@{t}-{t + 1}" for m in range(300) for s, t in ((0, 4 * m), (1, 4 * m + 2)))
            + " 1B9@1600-1800"
        ],
        """\
rank 0  stage 0 |F. ..F.F. ..F.F.  .F.F. ..F..........     |
        stage 1 | .F.. . .F.. . .FF. . .F.. ..........BBBBB|
                 +-----------+----------+------------------+
                 0           500        1000            1800
one column = 42.9, by what fills it:   F forward
B backward   * several of these
. idle for half of it or more
blank: more of it goes to another stage""",
    ),
}


@pytest.mark.parametrize(("rows", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_golden_by_hand(rows, expected):
    assert grid(timeline_of(*map(spans_of, rows)), width=60) == expected


@pytest.mark.parametrize(
    ("kind", "replicated", "widths"),
    [
        ("F", False, {9: "[12F10  ]", 6: "[F10 ]", 4: "[10]", 3: "F10", 2: "[]", 1: "F"}),
        ("B", False, {9: "<12B10==>", 7: "<12B10>", 5: "<B10>", 3: "B10", 2: "<>", 1: "B"}),
        ("F", True, {9: "(12F10~~)", 4: "(10)", 3: "f10", 2: "()", 1: "f"}),
        ("B", True, {9: "{12B10##}", 4: "{10}", 3: "b10", 2: "{}", 1: "b"}),
        ("I", False, {9: "<12I10-->", 7: "<12I10>", 5: "<I10>", 4: "I10-", 2: "I-", 1: "I"}),
        ("W", False, {9: "/12W10++/", 7: "/12W10/", 5: "/W10/", 4: "W10+", 2: "W+", 1: "W"}),
        ("W", True, {9: "{12W10##}", 5: "{W10}", 4: "w10#", 2: "w#", 1: "w"}),
    ],
)
def test_bar_is_as_wide_as_asked_and_shows_its_kind(kind, replicated, widths):
    action = Action(12, kind, 10)
    assert {width: bar(action, width, replicated) for width in widths} == widths


def test_equal_times_have_equal_labels_though_their_columns_differ():
    row = rows_of(grid(timeline_of([(Action(0, "F", mb), math.pi * mb, math.pi * (mb + 1)) for mb in range(8)]), 64))[0]
    bars = re.findall(r"\[[^]]*\]", row)
    assert len({len(text) for text in bars}) == 2
    assert {re.sub(r"\d| ", "", text) for text in bars} == {"[F]"}


def test_coarse_signs():
    spans = [(Action(0, "F", 0), 0, 10), (Action(0, "B", 0), 10, 14), (Action(0, "F", 1), 14, 20)]
    spans += [(Action(0, "B", 1), 20, 24.9), (Action(1, "B", 1), 30, 31)]
    row = [Span(*span) for span in spans]
    assert coarse_rows(row, 0.1, 4, {1}, [{0, 1}]) == ["F*.."]
    assert coarse_rows(row, 1, 31, {1}, [{0, 1}])[0][-7:] == "B.....b"
    own, other = "FFFFFFFFFFBBBBFFFFFFBBBBB..... ", " " * 25 + ".....b"
    assert coarse_rows(row, 1, 31, {1}, [{0}, {1}]) == [own, other]


def test_one_rank_needs_to_be_told_what_is_replicated():
    timeline = planned(TRANSPOSED, 1, 1, "vision=12/0,llm=4/8")[2]
    assert rows_of(grid(timeline, 60))[0].startswith("[0F0")
    assert rows_of(grid(timeline, 60, replicated={0}))[0].startswith("(0F0")


def test_a_tiny_action_is_counted_not_drawn():
    picture = grid(planned(TRANSPOSED, 2, 2, "vision=1/0,llm=40/80")[2], 60)
    assert rows_of(picture)[0].startswith("[2F0")
    assert picture.endswith("not drawn: 2 actions shorter than half a column")


@pytest.mark.parametrize(("columns", "expected"), [("40", 60), ("60", 60), ("90", 90), ("200", 200)])
def test_default_width_is_the_terminals_but_at_least_60(monkeypatch, columns, expected):
    monkeypatch.setitem(os.environ, "COLUMNS", columns)
    timeline = planned(TEXT, 2, 3, "llm=4.1/8.7")[2]
    assert grid(timeline) == grid(timeline, expected)
    assert max(map(len, grid(timeline).splitlines())) <= expected


@pytest.mark.parametrize("line", ALL)
@pytest.mark.parametrize("width", [60, 97, 200])
def test_every_moment_of_a_rank_is_in_one_of_its_rows(line, width):
    timeline = planned(line, 3, 5, "vision=6/6,llm=5/8,gen=8/12")[2]
    picture = grid(timeline, width)
    assert picture.isascii() and max(map(len, picture.splitlines())) <= width
    rows = rows_of(picture)
    lanes = len(rows) // 3
    assert len(rows) == 3 * lanes and len({len(row) for row in rows}) == 1
    for rank in range(3):
        for signs in zip(*rows[rank * lanes : (rank + 1) * lanes], strict=True):
            idle = signs.count(".")
            assert idle in (0, lanes), signs
            if lanes > 1 and not idle:  # a forward is filled with blanks, so more cannot be asked
                assert sum(sign != " " for sign in signs) <= 1


@settings(max_examples=150, deadline=None)
@given(
    line=st.sampled_from([INLINE, TRANSPOSED, TEXT, "zb(llm)", "gpipe(vision+llm)", "transpose(vision) >> gpipe(llm)"]),
    ranks=st.integers(1, 12),
    micro_batches=st.integers(1, 24),
    times=st.tuples(*[st.floats(0, 50, allow_nan=False).map(lambda time: f"{time:.2f}")] * 4),
    width=st.integers(60, 220),
)
def test_rows_are_aligned_ascii_and_in_proportion(line, ranks, micro_batches, times, width):
    cost = "vision={}/{},llm={}/{}".format(*times)
    timeline = planned(line, ranks, micro_batches, cost)[2]
    picture = grid(timeline, width, range(ranks) if line.startswith("transpose") else ())
    assert picture.isascii()
    assert max(map(len, picture.splitlines())) <= width
    rows = rows_of(picture)
    assert len(rows) == ranks and len({len(row) for row in rows}) == 1
    if "one column" in picture or not timeline.step_time:
        return
    scale = len(rows[0]) / timeline.step_time
    for row, spans in zip(rows, timeline.spans, strict=True):
        bars = [span for span in spans if (span.end - span.start) * scale >= 1.5]
        for span in bars:  # each bar that is surely drawn starts with its own sign, in its own column
            start = row[int(span.start * scale + 0.5) :]
            assert start[0] in "[<({/FBIWfb", (row, span)
            assert not start.startswith(".")
        assert abs(row.count(".") - (timeline.step_time - sum(e - s for _, s, e in spans)) * scale) <= len(spans) + 1
