"""A plan that was written is read back equal; what is of another plan, or broken, is refused in words."""

import json

import pytest

from hyperparallel.algebra import ModelSpec
from hyperparallel.cost import PartCost, costs_from_parts
from hyperparallel.errors import HyperParallelError
from hyperparallel.planner import Settings, plan_line
from hyperparallel.planner.plan_file import read_plan_file, to_plan_file

LINE = "transpose(vision, owner=balanced, place=fill, split=2) >> 1f1b(llm)"
MODEL = ModelSpec.of({"vision": 2, "llm": 4})


@pytest.fixture
def planned():
    parts = {"vision": PartCost(9, 9), "llm": PartCost(4, 8)}
    return plan_line(LINE, MODEL, 2, 3, lambda plan: costs_from_parts(plan, parts), Settings(engine="list"))


def test_it_reads_back_equal(tmp_path, planned):
    path = tmp_path / "plan.json"
    path.write_text(to_plan_file(planned))
    assert read_plan_file(path, LINE, MODEL, 2, 3) == planned
    spaced = LINE.replace(" >> ", ">>")
    assert read_plan_file(path, spaced, MODEL, 2, 3).plan.programs == planned.plan.programs


BROKEN = {
    "another line": ({"schedule": "1f1b(vision+llm)"}, "plan again"),
    "another P": ({"ranks": 3}, "plan again"),
    "a rank out of range": ({"owners": [[0, 7], [0, 1], [0, 1]]}, "its owners do not fit"),
    "a micro-batch too few": ({"owners": [[0, 1], [0, 1]]}, "its owners do not fit"),
    "mixed pieces": ({"owners": [[0, 1], [0], [0, 1]]}, "its owners do not fit"),
    "times too few": ({"ends": [[1.0], [1.0]]}, "not one time for each action"),
    "garbage in a row": ({"compute": "rank 0: 0F0x\nrank 1: 1F0"}, "is not an action"),
    "a row too few": ({"compute": "rank 0: 0F0.0"}, "not one time for each action"),
    "an unknown version": ({"version": 2}, "is not a plan"),
    "a key too many": ({"more": 1}, "is not a plan"),
}


@pytest.mark.parametrize("change, said", BROKEN.values(), ids=BROKEN)
def test_a_wrong_file_is_refused(tmp_path, planned, change, said):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**json.loads(to_plan_file(planned)), **change}))
    with pytest.raises(HyperParallelError) as error:
        read_plan_file(path, LINE, MODEL, 2, 3)
    assert said in str(error.value) and "plan.json" in str(error.value)


def test_an_order_that_cannot_run_is_refused_by_the_checks_of_every_plan(tmp_path, planned):
    content = json.loads(to_plan_file(planned))
    first, *others = content["compute"].splitlines()
    words = first.split(" ")
    content["compute"] = "\n".join([" ".join([*words[:2], *reversed(words[2:])]), *others])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(HyperParallelError, match="rank 0, step"):
        read_plan_file(path, LINE, MODEL, 2, 3)


def test_no_file_and_no_json_are_refused(tmp_path):
    with pytest.raises(HyperParallelError, match="cannot be read"):
        read_plan_file(tmp_path / "none.json", LINE, MODEL, 2, 3)
    (tmp_path / "plan.json").write_text("nothing")
    with pytest.raises(HyperParallelError, match="is not a plan"):
        read_plan_file(tmp_path / "plan.json", LINE, MODEL, 2, 3)
