import pytest
from algebra_cases import compute_of, plan_of

from hyperparallel.algebra import ModelSpec, derive, parse, validate
from hyperparallel.errors import ScheduleError, ScheduleSyntaxError

GOLDEN = [
    (
        "transpose(vision) >> 1f1b(llm)",
        (),
        ["0F0 0F2 2F0 2F1 2B0 2F2 2B1 2B2 0B0 0B2", "1F1 3F0 3B0 3F1 3B1 3F2 3B2 1B1"],
    ),
    (
        "transpose(vision) >> 1f1b(llm)",
        ("vision",),
        ["0F0 0F2 2F0 2F1 2B0 2F2 2B1 2B2", "1F1 3F0 3B0 3F1 3B1 3F2 3B2"],
    ),
    ("1f1b(vision+llm)", (), ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]),
    ("gpipe(vision+llm)", (), ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]),
    ("1f1b(vision+llm)", ("vision", "llm"), ["0F0 0F1 0F2", "1F0 1F1 1F2"]),
    (
        "transpose(vision, owner=[1,1,1]) >> gpipe(llm)",
        ("vision", "llm"),
        ["2F0 2F1 2F2", "1F0 1F1 1F2 3F0 3F1 3F2"],
    ),
    (
        "zb(vision) >> 1f1b(llm)",
        ("vision",),
        ["0F0 0F1 2F0 2F1 0F2 2B0 2F2 2B1 2B2", "1F0 1F1 3F0 3F1 3B0 1F2 3B1 3F2 3B2"],
    ),
    (
        "1f1b(vision) >> transpose(llm)",
        (),
        ["0F0 0F1 2F0 0F2 2B0 2F2 2B2 0B0 0B1 0B2", "1F0 1F1 3F1 1F2 3B1 1B0 1B1 1B2"],
    ),
]


@pytest.mark.parametrize("line, frozen, rows", GOLDEN)
def test_the_order_of_every_rank(line, frozen, rows):
    plan = plan_of(line, 2, 3, frozen)
    assert [" ".join(map(str, row)) for row in plan.compute] == rows
    assert compute_of(plan.programs) == plan.compute


def test_a_plan_knows_its_schedule_in_normal_form_with_its_parts():
    plan = derive("<transpose, transpose, 1f1b>", ModelSpec.of({"vision": 2, "audio": 1, "llm": 4}), 2, 3)
    assert str(plan.schedule) == "transpose(vision+audio) >> 1f1b(llm)"
    assert (plan.ranks, plan.micro_batches, plan.owner) == (2, 3, (0, 1, 0))


def test_a_parsed_schedule_derives_as_its_text_does_and_validate_returns_its_plan():
    model, line = ModelSpec.of({"vision": 2, "llm": 4}), "transpose(vision) >> 1f1b(llm)"
    plan = derive(line, model, 2, 2)
    assert derive(parse(line), model, 2, 2) == plan
    assert validate(plan) is plan


@pytest.mark.parametrize("ranks, micro_batches", [(0, 1), (1, 0), (-1, 2)])
def test_sizes_below_one_are_refused(ranks, micro_batches):
    with pytest.raises(ScheduleError, match=f"ranks={ranks}, micro_batches={micro_batches}; both must be at least 1"):
        derive("1f1b", ModelSpec.of({"llm": 4}), ranks, micro_batches)


@pytest.mark.parametrize("line, frozen, count", [("zb(llm)", (), 2), ("zb(llm)", ("llm",), 1), ("1f1b(llm)", (), 2)])
def test_compute_holds_every_action_once_and_programs_add_only_messages(line, frozen, count):
    plan = plan_of(line, 2, 3, frozen)
    whole = sum(action.kind in "FBI" for row in plan.compute for action in row)
    assert whole == count * 2 * 3
    assert compute_of(plan.programs) == plan.compute


def test_a_text_that_does_not_parse_is_a_syntax_error():
    with pytest.raises(ScheduleSyntaxError):
        derive("1f1b >>", ModelSpec.of({"llm": 4}), 2, 2)
