"""Growth is checked by counting the lines that run, not by time."""

import sys

import pytest

from hyperparallel.algebra import ModelSpec, derive, parse, validate
from hyperparallel.algebra.validate import validate_programs
from hyperparallel.cost import PartCost, costs_from_parts, model_from_costs, peak_live, simulate

PARTS = {"vision": PartCost(12, 24), "llm": PartCost(4, 8)}
TRANSPOSED = "transpose(vision) >> 1f1b(llm)"


def lines_of(call):
    """Count the lines of our package that a call runs; every turn of a loop or comprehension counts."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "hyperparallel" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return count


def derived(line, ranks, micro_batches):
    # Few layers, for derive also reads every layer of the model.
    layers = {"vision": 1, "llm": 2 * ranks}
    return derive(line, model_from_costs(parse(line), PARTS, ranks, layers), ranks, micro_batches)


def stages_of(line, ranks, micro_batches):
    """Lines per action of derive, lower, validate, simulate and peak_live."""
    plan = derived(line, ranks, micro_batches)
    model, costs = plan.model, costs_from_parts(plan, PARTS)
    actions = sum(map(len, plan.programs))
    fresh = derived(line, ranks, micro_batches)
    calls = {
        "derive": lambda: derive(line, model, ranks, micro_batches),
        "lower": lambda: fresh.programs,
        "validate": lambda: validate_programs(plan.programs, plan.placement),
        "simulate": lambda: simulate(plan, costs),
        "memory": lambda: peak_live(plan.compute, plan.placement),
    }
    return {name: lines_of(call) / actions for name, call in calls.items()}


MOST = {"derive": 12, "lower": 16, "validate": 48, "simulate": 16, "memory": 3}
"""Lines per action, with room for a rewrite but not for a loop over the ranks or micro-batches."""


@pytest.mark.parametrize("line", ["1f1b(llm)*2", TRANSPOSED])
@pytest.mark.parametrize("small, large", [((4, 16), (4, 128)), ((4, 16), (24, 24)), ((4, 16), (32, 12))])
def test_work_per_action_does_not_grow(line, small, large):
    before, after = stages_of(line, *small), stages_of(line, *large)
    for name, most in MOST.items():
        assert after[name] <= most, (name, after[name])
        # Model and regions are read once per stage, which counts most where M is small.
        assert after[name] <= 1.35 * before[name] + (3 if name == "derive" else 0.5), (name, before, after)


def test_costs_of_stages_take_lines_per_stage_and_layer_not_per_both():
    counts = []
    for ranks in (8, 32):
        plan = derived(TRANSPOSED, ranks, 2)
        counts.append(lines_of(lambda plan=plan: costs_from_parts(plan, PARTS)))
    assert counts[1] <= 4.5 * counts[0]


def test_the_largest_table_of_the_page_has_the_actions_it_says():
    plan = validate(derived("1f1b(llm)*2", 16, 128))
    assert sum(map(len, plan.programs)) == 24064


def test_counting_sees_a_quadratic_loop():
    row = list(range(50))
    plan = derive("1f1b(llm)", ModelSpec.of({"llm": 1}), 1, 1)
    assert lines_of(lambda: peak_live([plan.compute[0] * 50], plan.placement)) > len(row) * 2
