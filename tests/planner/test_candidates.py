"""Candidates: layouts multiply out, and every line that is listed can be derived."""

import pytest

from hyperparallel import ModelSpec, derive
from hyperparallel.algebra.regions import needs_planner
from hyperparallel.errors import ScheduleError
from hyperparallel.planner.candidates import SKELETONS, Layout, bases, encodings, layouts


@pytest.mark.parametrize(("workers", "batch", "tensor"), [(8, 64, 1), (8, 16, 2), (6, 12, 1), (1, 3, 1)])
def test_layouts_multiply_out(workers, batch, tensor):
    found = layouts(workers, batch, tensor)
    assert len(set(found)) == len(found)
    for ranks, replicas, shared, micro_batches in found:
        assert ranks * replicas * shared == workers and shared == tensor
        assert batch % (replicas * micro_batches) == 0
        assert micro_batches >= ranks or batch // replicas < ranks


def test_a_pipeline_keeps_a_layout_when_the_batch_is_small():
    assert Layout(4, 1, 1, 2) in layouts(4, 2)


@pytest.mark.parametrize(("workers", "batch", "tensor", "words"), [(8, 64, 3, "T = 3"), (8, 3, 1, "batch of 3")])
def test_layouts_that_cannot_be_are_refused(workers, batch, tensor, words):
    with pytest.raises(ScheduleError, match=words):
        layouts(workers, batch, tensor, most_ranks=2)


def test_every_line_derives():
    model, layout = ModelSpec.of({"vision": 4, "text": 2, "llm": 16}), Layout(2, 1, 1, 4)
    found = bases(layout, model.parts, [4, 2, 16], SKELETONS)
    assert {base.transposed for base in found} == {"", "vision", "vision+text"}
    lines = [base.line(encoding) for base in found for encoding in encodings(base)]
    assert len(set(lines)) == len(lines)
    derived = 0
    for base in found:
        for encoding in encodings(base):
            if "fill" not in encoding:
                plan = derive(base.line(encoding), model, 2, 4)
                assert not needs_planner(plan.schedule.regions[0])
                derived += 1
    assert derived > 60


def test_only_what_makes_sense():
    assert [base.line() for base in bases(Layout(1, 2, 1, 8), ["vision", "llm"], [2, 4])] == ["1f1b(vision+llm)"]
    few = [base.line() for base in bases(Layout(4, 1, 1, 6), ["vision", "llm"], [2, 6])]
    assert not any("*" in line or "wave" in line for line in few if "transpose" in line)
    inline = bases(Layout(2, 1, 1, 4), ["vision", "llm"], [2, 6], transpose=False)
    assert inline and not any(base.transposed for base in inline)
