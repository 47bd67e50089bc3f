import re

import pytest
from algebra_cases import LINES, SHARDED, plan_of

from hyperparallel.algebra import LayerSpec, ModelSpec, derive
from hyperparallel.errors import ScheduleError

MODEL = ModelSpec.of({"vision": 3, "audio": 2, "llm": 10})


def counts(line, ranks, model=MODEL):
    return [[last - first for first, last in region.slabs] for region in derive(line, model, ranks, 4).regions]


@pytest.mark.parametrize(
    "line, ranks, expected",
    [
        ("1f1b(vision+audio+llm)", 4, [[8, 3, 2, 2]]),
        ("1f1b", 4, [[8, 3, 2, 2]]),
        ("1f1b(vision+audio+llm)", 11, [[2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]]),
        ("1f1b(vision+audio+llm, slabs=balanced)", 3, [[5, 5, 5]]),
        ("1f1b(vision+audio+llm, slabs=[7,5,1,2])", 4, [[7, 5, 1, 2]]),
        ("transpose(vision+audio) >> gpipe(llm)", 4, [[5, 5, 5, 5], [3, 3, 2, 2]]),
        ("transpose >> transpose >> 1f1b", 2, [[5, 5], [5, 5]]),
        ("transpose(vision) >> 1f1b(audio+llm)", 2, [[3, 3], [7, 5]]),
        ("gpipe", 1, [[15]]),
        ("transpose(vision+audio) >> 1f1b(llm)*2", 2, [[5, 5], [3, 3], [2, 2]]),
        ("1f1b(vision+audio+llm)*2", 2, [[8, 3], [2, 2]]),
        ("1f1b(vision) >> transpose(audio) >> gpipe(llm)", 3, [[1, 1, 1], [2, 2, 2], [4, 3, 3]]),
        ("wave(vision+audio+llm)", 2, [[8, 3], [2, 2]]),
        ("wave(vision+audio+llm, slabs=[1,2,3,9])", 2, [[1, 2], [9, 3]]),
        ("zb(vision+audio+llm, fold=v)*2", 1, [[8], [3], [2], [2]]),
    ],
)
def test_layers_per_slab(line, ranks, expected):
    assert counts(line, ranks) == expected


def test_balanced_slabs_follow_the_costs():
    layers = [LayerSpec("vision", cost=6.0)] + [LayerSpec("llm")] * 6
    assert counts("1f1b(vision+llm, slabs=balanced)", 2, ModelSpec(tuple(layers))) == [[1, 6]]
    assert counts("1f1b(vision+llm)", 2, ModelSpec(tuple(layers))) == [[4, 3]]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("slabs", ["even", "balanced"])
def test_the_cut_tiles_the_model_exactly(line, slabs):
    if slabs == "balanced":
        line = re.sub(rf"({'|'.join(SHARDED)})\(([^)]*)\)", r"\1(\2, slabs=balanced)", line)
    for ranks in (1, 2, 3):
        for layers in (18, 23):
            plan = plan_of(line, ranks, 2, layers=layers)
            covered = [
                layer
                for region in plan.regions
                for first, last in (sorted(region.slabs) if region.owner is None else region.slabs[:1])
                for layer in range(first, last)
            ]
            assert covered == list(range(len(plan.model.layers)))
            assert all(last > first for region in plan.regions for first, last in region.slabs)
            assert all(set(region.slabs) == {region.span} for region in plan.regions if region.owner is not None)


ERRORS = [
    ("1f1b(vision+llm)", 0, ["'llm' is out of order", "expected 'audio'"]),
    ("1f1b(vision+audio)", 0, ["part 'llm' of the model is not scheduled"]),
    ("1f1b(vision)", 0, ["parts 'audio', 'llm' of the model are not scheduled"]),
    ("transpose(vision+audio) >> 1f1b(lm)", 27, ["unknown part 'lm'", "did you mean 'llm'?"]),
    ("transpose(vision+audio) >> 1f1b(audio+llm)", 27, ["'audio' is out of order or scheduled twice"]),
    ("transpose(vision+audio) >> transpose(vision) >> 1f1b(llm)", 0, ["'vision' is out of order"]),
    ("transpose(vision+audio) >> 1f1b", 27, ["1f1b names no part while others do"]),
    ("transpose(vision) >> transpose >> 1f1b(audio+llm)", 21, ["transpose names no part"]),
    ("transpose >> 1f1b", 0, ["2 regions without part names for 3 parts (vision, audio, llm)"]),
    ("transpose(vision+audio) >> 1f1b(llm)*3", 27, ["10 layers for 12 slabs", "4 ranks x 3"]),
    ("transpose(vision+audio) >> 1f1b(llm)*999999999", 27, ["10 layers for 3999999996 slabs"]),
    ("transpose(vision+audio) >> wave(llm)*2", 27, ["10 layers for 16 slabs", "4 ranks x 4"]),
    ("transpose(vision+audio) >> wave(llm)*999999999", 27, ["10 layers for 7999999992 slabs"]),
    ("transpose(vision+audio) >> zb(llm, fold=v, slabs=[5,5])", 27, ["2 slabs and 10 layers; expected 8 slabs"]),
    (
        "transpose(vision, owner=[0,0,0,0]) >> transpose(audio) >> 1f1b(llm)",
        38,
        ["transpose(vision, owner=[0,0,0,0]) and transpose(audio) are both Replicated", "the same options"],
    ),
    ("transpose(vision+audio) >> 1f1b(llm, slabs=[5,5])", 27, ["2 slabs and 10 layers; expected 4 slabs"]),
    ("transpose(vision+audio) >> 1f1b(llm, slabs=[5,5,0,0])", 27, ["expected 4 slabs of at least one"]),
    ("transpose(vision+audio) >> 1f1b(llm, slabs=[2,2,2,3])", 27, ["9 layers", "add up to 10 layers"]),
    ("transpose(vision+audio, owner=[0,1]) >> 1f1b(llm)", 0, ["lists 2 ranks for 4 micro-batches"]),
    ("transpose(vision+audio, owner=[0,1,2,4]) >> 1f1b(llm)", 0, ["micro-batch 3 to rank 4; ranks are 0..3"]),
]


@pytest.mark.parametrize("line, at, words", ERRORS, ids=[line for line, _, _ in ERRORS])
def test_a_schedule_that_does_not_fit_the_model_is_refused_with_a_caret(line, at, words):
    with pytest.raises(ScheduleError) as error:
        derive(line, MODEL, 4, 4)
    message, shown, pointer = str(error.value).split("\n")
    assert (shown, pointer) == (f"  {line}", "  " + " " * at + "^")
    assert all(word in message for word in words), message


def test_a_slab_needs_at_least_one_layer():
    with pytest.raises(ScheduleError, match="llm has 2 layers for 3 slabs"):
        derive("1f1b(llm)", ModelSpec.of({"llm": 2}), 3, 1)
