import pytest
from cost_cases import BALANCED, INLINE, TEXT, WARMUP, priced, quick
from hypothesis import given
from hypothesis import strategies as st

from hyperparallel.algebra import Action, LayerSpec, ModelSpec, derive, parse
from hyperparallel.cost import Costs, PartCost, costs_from_parts, model_from_costs, parse_part_costs
from hyperparallel.errors import HyperParallelError, ScheduleError


@pytest.mark.parametrize(
    "text, costs",
    [
        ("llm=4/8", {"llm": (4, 8)}),
        ("vision=12/0,llm=4/8", {"vision": (12, 0), "llm": (4, 8)}),
        (" vision=0.5/1. , llm=4/8 ", {"vision": (0.5, 1), "llm": (4, 8)}),
        ("vision=12/0,llm=4/5/3", {"vision": (12, 0), "llm": (4, 8, 5, 3)}),
        ("llm=4/0/0", {"llm": (4, 0, 0, 0)}),
    ],
)
def test_part_costs_are_read(text, costs):
    assert parse_part_costs(text) == {part: PartCost(*times) for part, times in costs.items()}


BAD = [
    ("", "'' is not a cost"),
    ("llm=4", "'llm=4' is not a cost; expected part=FORWARD/BACKWARD"),
    ("llm=4/8,", "'' is not a cost"),
    ("llm=4/8/", "'llm=4/8/' is not a cost"),
    ("llm=4/4/4/4", "expected part=FORWARD/BACKWARD such as llm=4/8, part=FORWARD/INPUT/WEIGHT such as llm=4/4/4"),
    ("llm=-4/8", "'llm=-4/8' is not a cost"),
    ("llm=1e3/8", "is not a cost"),
    ("llm=nan/8", "is not a cost"),
    ("llm=٤/8", "is not a cost"),
    ("llm=4/8,llm=4/8", "part 'llm' is given twice"),
    (f"llm={'9' * 400}/8", "part 'llm' is too large"),
    (f"llm=1/1/{'9' * 400}", "part 'llm' is too large"),
]


@pytest.mark.parametrize("text, words", BAD, ids=[ascii(text)[:20] for text, _ in BAD])
def test_other_text_is_refused_in_words(text, words):
    with pytest.raises(ScheduleError) as error:
        parse_part_costs(text)
    assert words in str(error.value)


@quick
@given(st.text("vl=/,.0189 e-", max_size=20))
def test_any_text_is_part_costs_or_our_error(text):
    try:
        costs = parse_part_costs(text)
    except HyperParallelError:
        return
    assert all(0 <= time < float("inf") for cost in costs.values() for time in cost)


def test_the_backbone_costs_are_those_of_one_slab_and_the_encoder_s_of_a_whole_encode():
    plan, costs = priced(WARMUP, 4, 8, 12, 24, 4, 8)
    assert [costs.compute[stage, "F"] for stage in range(8)] == [12] * 4 + [4] * 4
    assert [costs.compute[stage, "B"] for stage in range(8)] == [24] * 4 + [8] * 4
    plan, costs = priced(INLINE, 4, 8, 12, 24, 4, 8)
    assert [costs.compute[stage, "F"] for stage in range(4)] == [16, 4, 4, 4]
    assert [costs.compute[stage, "B"] for stage in range(4)] == [32, 8, 8, 8]


def test_balanced_slabs_of_a_made_up_model_are_nearly_equal_and_lose_nothing():
    plan, costs = priced(BALANCED, 4, 8, 12, 24, 4, 8)
    work = [costs.compute[stage, "F"] + costs.compute[stage, "B"] for stage in range(4)]
    assert sum(work) == pytest.approx(12 + 24 + 4 * 12)
    assert max(work) - min(work) < 1


def test_a_part_is_frozen_when_its_backward_costs_nothing():
    model = model_from_costs(
        parse(WARMUP), {"vision": PartCost(12, 0), "llm": PartCost(4, 8)}, 4, {"vision": 2, "llm": 4}
    )
    assert model == ModelSpec((LayerSpec("vision", False, 6.0),) * 2 + (LayerSpec("llm", True, 12.0),) * 4)


@pytest.mark.parametrize(
    "line, parts, ranks, backbone",
    [
        ("transpose(vision) >> 1f1b(llm)", ("vision", "llm"), 2, "llm"),
        ("transpose(vision) >> 1f1b(text)", ("vision", "text"), 2, "text"),
        ("1f1b(vision+text)", ("vision", "text"), 2, "text"),
        ("<transpose, 1f1b>", ("vision", "text"), 2, "text"),
        ("1f1b(llm+head)", ("llm", "head"), 2, "llm"),
    ],
)
def test_the_part_that_is_priced_by_slab(line, parts, ranks, backbone):
    costs = {part: PartCost(2, 4) for part in parts}
    plan = derive(line, model_from_costs(parse(line), costs, ranks), ranks, 2)
    total = sum(costs_from_parts(plan, costs).duration(action) for row in plan.compute for action in row)
    assert total == pytest.approx(2 * 6 * (ranks + 1))
    assert sum(layer.cost for layer in plan.model.layers if layer.part == backbone) == pytest.approx(6 * ranks)


def test_real_layer_counts_share_a_part_s_cost():
    plan = derive("1f1b(llm, slabs=[1,3])", ModelSpec.of({"llm": 4}), 2, 1)
    assert costs_from_parts(plan, {"llm": PartCost(4, 8)}).compute == {
        (0, "F"): 2, (0, "B"): 4, (0, "I"): 2, (0, "W"): 2, (1, "F"): 6, (1, "B"): 12, (1, "I"): 6, (1, "W"): 6,
    }  # fmt: skip


def test_a_part_without_cost_is_refused_with_the_nearest_name():
    costs = {"visio": PartCost(1, 1), "llm": PartCost(1, 1)}
    with pytest.raises(ScheduleError, match="part 'vision' of .* has no cost; given: visio, llm; did you mean 'visio'"):
        model_from_costs(parse(WARMUP), costs, 2)
    with pytest.raises(ScheduleError, match="part 'vision' of .* has no cost"):
        costs_from_parts(derive(WARMUP, ModelSpec.of({"vision": 1, "llm": 2}), 2, 2), costs)


def test_a_mistyped_count_does_not_make_millions_of_layers():
    with pytest.raises(ScheduleError, match="makes 3999999996 slabs; at most 4096"):
        model_from_costs(parse("1f1b(llm)*999999999"), {"llm": PartCost(4, 8)}, 4)
    assert len(model_from_costs(parse("transpose(llm)*999999999"), {"llm": PartCost(4, 8)}, 2).layers) == 48


def test_durations_of_actions_and_messages():
    costs = Costs(
        {(0, "F"): 2, (0, "B"): [6, 8]}, alpha=3, beta=0.5, message_bytes={(0, "SEND_F"): [10, 20], (1, "SEND_B"): 4}
    )
    cases = {
        (0, "F", 1): 2, (0, "B", 1): 8, (0, "I", 0): 3, (0, "W", 1): 4,
        (0, "SEND_F", 0): 8, (0, "SEND_F", 1): 13, (1, "SEND_B", 9): 5, (5, "SEND_B", 0): 3,
    }  # fmt: skip
    assert {key: costs.duration(Action(*key)) for key in cases} == cases


def test_a_given_split_is_not_halved():
    costs = Costs({(0, "B"): 6, (0, "I"): 4, (0, "W"): 2})
    assert [costs.duration(Action(0, kind, 0)) for kind in "BIW"] == [6, 4, 2]


def test_times_of_all_micro_batches_are_the_durations_one_by_one():
    costs = Costs({(0, "F"): 2, (0, "B"): [6, 8], (1, "B"): 5}, 3, 0.5, {(0, "SEND_F"): [10, 20], (1, "SEND_B"): 4})
    for stage, kind in [
        (0, "F"),
        *((0, kind) for kind in "BIW"),
        (1, "I"),
        (0, "SEND_F"),
        (1, "SEND_B"),
        (7, "SEND_B"),
    ]:
        assert list(costs.times(stage, kind, 2)) == [costs.duration(Action(stage, kind, mb)) for mb in range(2)]


def test_a_backward_given_in_two_parts_prices_both_and_their_sum():
    plan, _ = priced("zb(llm)", 2, 3, 0, 0, 4, 8)
    costs = costs_from_parts(plan, parse_part_costs("llm=4/5/3"))
    assert [costs.compute[1, kind] for kind in "FBIW"] == [4, 8, 5, 3]
    halves = costs_from_parts(plan, parse_part_costs("llm=4/8"))
    assert [halves.compute[1, kind] for kind in "FBIW"] == [4, 8, 4, 4]


PASSING = [  # frozen parts, then B, I, W of the vision, head and llm stages; vision=6/5/7, head=2/1/3, llm=4/4/2
    ((), (12, 5, 7), (4, 1, 3), (6, 4, 2)),
    (("head",), (12, 5, 7), (1, 1, 0), (6, 4, 2)),
    (("llm",), (12, 5, 7), (4, 1, 3), (4, 4, 0)),
    (("vision",), (0, 0, 0), (4, 1, 3), (6, 4, 2)),
    (("vision", "head"), (0, 0, 0), (0, 0, 0), (6, 4, 2)),
    (("vision", "head", "llm"), (0, 0, 0), (0, 0, 0), (0, 0, 0)),
]


@pytest.mark.parametrize("frozen, vision, head, llm", PASSING, ids=[" ".join(row[0]) or "none" for row in PASSING])
def test_a_frozen_slab_pays_for_passing_the_gradient_and_only_where_there_is_one(frozen, vision, head, llm):
    parts = parse_part_costs("vision=6/5/7,head=2/1/3,llm=4/4/2")
    model = ModelSpec.of({"vision": 1, "head": 1, "llm": 1}, frozen)
    plan = derive("1f1b(vision) >> 1f1b(head) >> 1f1b(llm)", model, 1, 1)
    costs = costs_from_parts(plan, parts).compute
    assert [tuple(costs[stage, kind] for kind in "BIW") for stage in range(3)] == [vision, head, llm]
    joined = costs_from_parts(derive("1f1b(vision+head+llm)", model, 1, 1), parts).compute
    assert tuple(joined[0, kind] for kind in "BIW") == tuple(map(sum, zip(vision, head, llm, strict=True)))


def test_a_part_without_weight_gradients_is_frozen_and_passes_the_gradient():
    line = "transpose(vision) >> 1f1b(llm)"
    parts = parse_part_costs("vision=12/24,llm=4/4/0")
    plan = derive(line, model_from_costs(parse(line), parts, 2), 2, 2)
    costs = costs_from_parts(plan, parts)
    assert [layer.trainable for layer in plan.model.layers] == [layer.part == "vision" for layer in plan.model.layers]
    assert [costs.compute[2, kind] for kind in "BIW"] == [4, 4, 0]
    assert any(action.kind == "B" and action.stage == 3 for action in plan.compute[1])


def test_text_only_needs_no_other_part():
    plan, costs = priced(TEXT, 2, 2, 1, 1, 4, 8)
    assert plan.model.parts == ("llm",)
    assert costs.compute[1, "B"] == 8
