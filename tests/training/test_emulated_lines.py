"""The lines that are emulated: which ones by default, their times and bytes, and what the ranks are told."""

import pytest

from hyperparallel.algebra import check_table, from_text, parse_action
from hyperparallel.cost import PartCost
from hyperparallel.errors import ConfigError, ScheduleError
from hyperparallel.planner import Settings
from hyperparallel.training.emulated_lines import Setting, default_lines, job_of, plan_for

PARTS = {"vision": PartCost(40, 80), "llm": PartCost(20, 40)}
QUICK = Settings(engine="list")


def setting(ranks=4, micro_batches=8, parts=PARTS):
    return Setting(parts, ranks, micro_batches, 1e-3, 1000, QUICK)


def test_the_default_lines_have_the_encoder_everywhere():
    assert default_lines(PARTS, 4) == [
        "1f1b(vision+llm)",
        "1f1b(vision+llm, slabs=balanced)",
        "1f1b(vision+llm, slabs=[96, 32, 32, 32])",
        "transpose(vision) >> 1f1b(llm)",
        "transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)",
        "transpose(vision, owner=balanced, place=fill, split=4) >> 1f1b(llm)",
    ]


def test_no_rank_of_its_own_on_one_rank_and_no_encoder_in_one_part():
    assert not any("slabs=[" in line for line in default_lines(PARTS, 1))
    assert default_lines({"llm": PartCost(1, 2)}, 4) == ["1f1b(llm)"]


@pytest.mark.parametrize("line", default_lines(PARTS, 4))
def test_the_ranks_are_told_all_of_a_plan(line):
    planned = plan_for(line, setting())
    job = job_of([planned], steps=3)
    (entry,) = job["lines"]
    placement, programs = check_table(from_text(entry["programs"]), job["ranks"], entry["micro_batches"])
    assert programs == planned.plan.programs and job["steps"] == 3
    assert placement.neighbours == planned.plan.placement.neighbours
    assert placement.gates == planned.plan.placement.gates
    compute = [str(action) for program in programs for action in program if action.is_compute]
    assert list(entry["seconds"]) == compute
    assert list(entry["bytes"]) == [word for word in compute if parse_action(word).kind == "F"]


def test_times_are_in_seconds_and_pieces_have_shares_of_time_and_bytes():
    inline, split = (plan_for(line, setting()) for line in (default_lines(PARTS, 4)[0], default_lines(PARTS, 4)[5]))
    whole, pieces = job_of([inline, split], 1)["lines"]
    assert whole["seconds"]["0F0"] == pytest.approx(0.060) and whole["seconds"]["3B7"] == pytest.approx(0.040)
    assert whole["bytes"]["0F0"] == 1000
    encodes = [word for word in pieces["seconds"] if word.split("F")[-1] in ("5.0", "5.1", "5.2", "5.3")]
    assert len(encodes) == 4
    assert all(pieces["seconds"][word] == pytest.approx(0.010) and pieces["bytes"][word] == 250 for word in encodes)


def test_times_by_micro_batch():
    vision = PartCost(5, 0, each=(PartCost(10, 0), PartCost(0, 0)))
    parts = {"vision": vision, "llm": PartCost(20, 40)}
    (entry,) = job_of([plan_for("1f1b(vision+llm)", setting(2, 2, parts))], 1)["lines"]
    assert entry["seconds"]["0F0"] == pytest.approx(0.030) and entry["seconds"]["0F1"] == pytest.approx(0.020)


def test_the_prediction_counts_messages():
    line = plan_for("1f1b(llm)", setting(2, 1, {"llm": PartCost(20, 40)}))
    assert line.predicted(0.0, 0.0) == pytest.approx(0.120)
    assert line.predicted(0.001, 2e-6) == pytest.approx(0.120 + 2 * 0.003)


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("zb(llm)", ConfigError, "splits backwards in I and W"),
        ("1f1b(lmm)", ScheduleError, "did you mean 'llm'?"),
    ],
)
def test_lines_that_cannot_be_emulated(line, error, words):
    with pytest.raises(error, match=words.replace("?", r"\?")):
        plan_for(line, setting(parts={"llm": PartCost(20, 40)}))
