"""A step with a gradient that is no finite number changes nothing, on no rank, under both runners."""

import json
import math

import pytest
from cells_skips import BROKEN, WINDOW

pytestmark = pytest.mark.slow


@pytest.fixture(params=["jobs", "graph_jobs"])
def ranks(request, jobs, graph_jobs) -> list[dict]:
    """What both ranks saw."""
    folder = {"jobs": jobs, "graph_jobs": graph_jobs}[request.param]
    return [json.loads((folder / f"skips.{rank}.json").read_text()) for rank in range(2)]


def test_an_overflow_leaves_the_step_out_and_lowers_the_factor_on_every_rank_alike(ranks):
    steps = ranks[0]["overflow"]
    assert [step["updated"] for step in steps] == [step["updated"] for step in ranks[1]["overflow"]]
    assert [step["scale"] for step in steps] == [step["scale"] for step in ranks[1]["overflow"]]
    assert not steps[0]["updated"] and steps[-1]["updated"] + steps[-2]["updated"] >= 1
    for step in [step for rank in ranks for step in rank["overflow"]]:
        assert step["kept"] is not step["updated"] and math.isfinite(step["loss"])
        before, after = step["scale"]
        assert after in ((before, 2 * before) if step["updated"] else (before / 2,))


def test_the_factor_rises_again_after_a_window_without_overflow(ranks):
    steps, good = ranks[0]["overflow"], 0
    doubled = []
    for index, step in enumerate(steps):
        good = good + 1 if step["updated"] else 0
        before, after = step["scale"]
        if after > before:
            doubled.append(index)
            assert good == WINDOW
            good = 0
    assert doubled


def test_a_step_that_is_not_a_number_is_as_if_it_had_not_been(ranks):
    for rank in ranks:
        steps = rank["not a number"]["with"]
        broken = steps.pop(BROKEN)
        assert not broken["updated"] and broken["kept"] and not math.isfinite(broken["loss"])
        assert steps == rank["not a number"]["without"]
