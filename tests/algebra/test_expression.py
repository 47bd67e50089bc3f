from itertools import pairwise

import pytest
from algebra_cases import quick, schedules
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import ModelSpec, Schedule, derive, normal_form, parse, validate
from hyperparallel.errors import ScheduleError, ScheduleSyntaxError


@quick
@given(schedules)
def test_every_schedule_parses_back_from_both_of_its_printed_forms(schedule):
    assert parse(str(schedule)) == schedule
    assert parse(schedule.bracketed()) == schedule


@pytest.mark.parametrize(
    "text, printed",
    [
        ("<transpose, 1f1b>", "transpose >> 1f1b"),
        ("< transpose( vision ) ,1f1b(llm)*1 >", "transpose(vision) >> 1f1b(llm)"),
        ("1f1b*3", "1f1b*3"),
        ("1f1b", "1f1b"),
        ("\tgpipe(vision+\nllm)", "gpipe(vision+llm)"),
        ("1f1b(slabs = [7,5, 5,05])", "1f1b(slabs=[7,5,5,5])"),
        ("transpose(vision,place=warmup,owner=roundrobin)", "transpose(vision, place=warmup, owner=roundrobin)"),
        ("1f1b(a.b+1f1b)", "1f1b(a.b+1f1b)"),
    ],
)
def test_a_line_prints_in_one_way(text, printed):
    assert str(parse(text)) == printed


def test_counts_parts_and_options_are_read():
    region, tail = parse("transpose(vision+audio, owner=[0,1]) >> 1f1b(llm)*2").regions
    assert (region.skeleton, region.parts, region.options) == (
        "transpose",
        ("vision", "audio"),
        (("owner", (0, 1)),),
    )
    assert region.option("place") == "warmup"
    assert (tail.count, tail.at) == (2, 40)


ERRORS = [
    ("", 0, ["expected a skeleton", "1f1b", "gpipe", "transpose", "the end of the line"]),
    ("   ", 0, ["expected a skeleton"]),
    ("transpose(vision) >> ", 20, ["expected a skeleton", "the end"]),
    ("transpose(vision) >> 1f2b(llm)", 21, ["unknown skeleton '1f2b'", "did you mean '1f1b'?"]),
    ("1F1B(llm)", 0, ["unknown skeleton '1F1B'", "did you mean '1f1b'?"]),
    ("tranpose(v) >> 1f1b", 0, ["did you mean 'transpose'?"]),
    ("transpose(v) > 1f1b", 13, ["expected >>, got '>'"]),
    ("transpose(v) 1f1b", 13, ["expected >>, got '1f1b'"]),
    ("transpose @ 1f1b", 10, ["unexpected character '@'"]),
    ("transpose >>\t$", 13, ["unexpected character '$'"]),
    ("1f1b(llm", 8, ["expected ','", "')'", "the end of the line"]),
    ("1f1b()", 5, ["expected a model part, got ')'"]),
    ("1f1b(a+)", 7, ["expected a model part"]),
    ("1f1b(a+b+a)", 9, ["'a' is named twice"]),
    ("1f1b(a, b)", 8, ["expected key=value", "'b'", "join parts with '+'"]),
    ("1f1b(slabs=even, a)", 17, ["expected key=value", "'a'"]),
    ("1f1b(a, slab=even)", 8, ["1f1b has no option 'slab'", "slabs", "did you mean 'slabs'?"]),
    ("transpose(a, ownr=roundrobin)", 13, ["no option 'ownr'", "owner, place", "did you mean 'owner'?"]),
    ("transpose(a, owner=round)", 19, ["owner=round is not possible", "did you mean 'roundrobin'?"]),
    ("1f1b(a, slabs=balance)", 14, ["even, balanced or a list", "did you mean 'balanced'?"]),
    ("1f1b(a, slabs=4)", 14, ["slabs=4 is not possible"]),
    ("1f1b(a, slabs=even, slabs=even)", 20, ["'slabs' is given twice"]),
    ("1f1b(a, slabs=)", 14, ["expected a value of slabs"]),
    ("1f1b(a, slabs=[])", 15, ["expected a list element"]),
    ("1f1b(a, slabs=[1,x])", 17, ["a whole number", "'x'"]),
    ("1f1b(a, slabs=[-1])", 15, ["expected a list element", "'-'"]),
    ("1f1b(a, slabs=[1 2])", 17, ["expected ']' or ','", "'2'"]),
    ("zb(a, fold=w)", 11, ["fold=w is not possible; expected none or v"]),
    ("zb(a, slab=even)", 6, ["zb has no option 'slab'", "slabs, fold"]),
    ("wave(a, fold=v)", 8, ["wave has no option 'fold'"]),
    ("1f1b*0", 5, ["count of at least 1"]),
    ("1f1b*", 5, ["expected a count"]),
    ("1f1b*two", 5, ["a whole number", "'two'"]),
    ("1f1b*1234567890", 5, ["a whole number"]),
    ("<transpose, 1f1b", 16, ["expected '>'", "the end of the line"]),
    ("<transpose >> 1f1b>", 11, ["expected '>' or ','"]),
    ("<1f1b> >> 1f1b", 7, ["expected the end"]),
]


@pytest.mark.parametrize("text, at, words", ERRORS, ids=[text or "empty" for text, _, _ in ERRORS])
def test_a_caret_stands_under_the_mistake(text, at, words):
    with pytest.raises(ScheduleSyntaxError) as error:
        parse(text)
    message, line, pointer = str(error.value).split("\n")
    assert line == "  " + text.replace("\t", " ")
    assert pointer == "  " + " " * at + "^"
    assert all(word in message for word in words), message


def test_only_words_that_are_legal_are_offered():
    for wrong in ("1f1b(a, slabs=lists)", "transpose(a, owner=rank)", "transpose(a, owner=list)"):
        with pytest.raises(ScheduleSyntaxError) as error:
            parse(wrong)
        assert "did you mean" not in str(error.value)


pieces = st.sampled_from(
    ["1f1b", "gpipe", "transpose", "llm", " ", ">>", "<", ">", "(", ")", ",", "=", "+", "*", "[", "]", "-", "0", "12"]
    + ["owner", "slabs", "even", "place", "\n", "\r", "\u2028", "é", "١"]
)


@quick
@given(st.one_of(st.text(max_size=30), st.lists(pieces, max_size=14).map("".join)))
def test_any_text_is_a_schedule_or_a_syntax_error_of_three_lines(text):
    try:
        schedule = parse(text)
    except ScheduleSyntaxError as error:
        assert len(str(error).splitlines()) == 3
    else:
        assert isinstance(schedule, Schedule)
        assert parse(str(schedule)) == schedule


NORMAL = [
    ("transpose(a) >> transpose(b)", "transpose(a+b)"),
    ("transpose(a) >> transpose(b+c) >> transpose(d) >> 1f1b(e)", "transpose(a+b+c+d) >> 1f1b(e)"),
    ("transpose >> transpose", "transpose"),
    ("transpose(a)*4", "transpose(a)"),
    ("transpose(a, owner=roundrobin) >> transpose(b, place=warmup)", "transpose(a+b, owner=roundrobin)"),
    ("transpose(a, owner=[0]) >> transpose(b)", "transpose(a, owner=[0]) >> transpose(b)"),
    ("transpose(a) >> transpose", "transpose(a) >> transpose"),
    ("transpose(a) >> 1f1b(b) >> transpose(c)", "transpose(a) >> 1f1b(b) >> transpose(c)"),
    ("1f1b(a) >> 1f1b(b)", "1f1b(a) >> 1f1b(b)"),
    ("1f1b(a)*3", "1f1b(a)*3"),
    ("zb(a, fold=v) >> transpose(b)*2 >> transpose(c)", "zb(a, fold=v) >> transpose(b+c)"),
]


@pytest.mark.parametrize("text, reduced", NORMAL)
def test_normal_form_joins_neighbouring_replicated_regions(text, reduced):
    assert str(normal_form(parse(text))) == reduced


@quick
@given(schedules)
def test_normal_form_is_idempotent_and_keeps_every_part_in_order(schedule):
    normal = normal_form(schedule)
    assert normal_form(normal) == normal
    assert [part for region in normal.regions for part in region.parts] == [
        part for region in schedule.regions for part in region.parts
    ]


def test_two_transposes_of_equal_options_join_and_those_of_other_options_stay():
    for options in ("", ", owner=[0,1]", ", place=warmup"):
        text = f"transpose(a{options}) >> transpose(b{options})"
        assert str(normal_form(parse(text))) == f"transpose(a+b{options})"


PARTS = ("a", "b", "c")


@st.composite
def cuts(draw):
    """Draw regions over some parts, in any order, each with a skeleton and perhaps owners."""
    names = draw(st.one_of(st.just(PARTS), st.lists(st.sampled_from(PARTS), min_size=1, max_size=4)))
    regions, part = [], iter(names)
    for name in part:
        parts = [name] + ([more] if draw(st.booleans()) and (more := next(part, None)) and more != name else [])
        skeleton = draw(st.sampled_from(["transpose", "transpose", "1f1b", "gpipe", "wave", "zb"]))
        options = draw(st.sampled_from(["", ", owner=[0,1]"])) if skeleton == "transpose" else ""
        regions.append((skeleton, parts, options))
    return regions


@quick
@given(cuts())
def test_a_schedule_is_accepted_iff_its_cut_tiles_the_model_and_no_two_transposes_stay_side_by_side(regions):
    line = " >> ".join(f"{skeleton}({'+'.join(parts)}{options})" for skeleton, parts, options in regions)
    tiles = [part for _, parts, _ in regions for part in parts] == list(PARTS)
    # `owner=[0,1]` is round robin on two ranks, but only equal options join.
    stuck = any(
        left[0] == right[0] == "transpose" and left[2] != right[2]
        for left, right in zip(regions, regions[1:], strict=False)
    )
    model = ModelSpec.of(dict.fromkeys(PARTS, 4))
    if tiles and not stuck:
        plan = validate(derive(line, model, 2, 2))
        assert [layer for r in plan.regions for layer in range(*r.span)] == list(range(12))
        assert not any(a.owner and b.owner for a, b in pairwise(plan.regions))
    else:
        with pytest.raises(ScheduleError):
            derive(line, model, 2, 2)
