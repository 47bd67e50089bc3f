import pytest

from hyperparallel.algebra import Action, ModelSpec, derive
from hyperparallel.algebra.program import Piece
from hyperparallel.cost import Costs, PartCost, costs_from_parts
from hyperparallel.cost.parts import backbone
from hyperparallel.cost.roofline import Count, LayerTime, Rate, by_size, costs_from_layers, gated, layer_time

RATE = Rate(flops=10.0, bandwidth=4.0, element=2)
PRICED = [  # count, then F, I, W in seconds
    pytest.param(Count(60), (6, 6, 6), id="FLOPs alone"),
    pytest.param(Count(60, mixing=20), (6, 8, 4), id="mixing has no weights"),
    pytest.param(Count(0, weights=8), (4, 4, 4), id="weights: read, read, written"),
    pytest.param(Count(0, activations=8), (4, 8, 4), id="activations: a gradient for each"),
    pytest.param(Count(0, float32=4), (4, 8, 4), id="float32: twice the bytes of this type"),
    pytest.param(Count(60, weights=4, activations=6), (6, 8, 6), id="F bound by FLOPs, I by bytes"),
    pytest.param(Count(60, weights=20, activations=10), (15, 20, 15), id="bound by bytes"),
]


@pytest.mark.parametrize(("count", "times"), PRICED)
def test_the_longer_of_computing_and_moving_counts(count, times):
    assert layer_time(count, RATE) == pytest.approx(times)


FROZEN = [(), ("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")]


@pytest.mark.parametrize("frozen", FROZEN, ids=" ".join)
@pytest.mark.parametrize("line", ["1f1b(a+b+c)", "transpose(a) >> 1f1b(b+c)", "1f1b(a) >> zb(b) >> transpose(c)"])
def test_frozen_layers_follow_the_rule_of_part_costs(line, frozen):
    plan = derive(line, ModelSpec.of({"a": 4, "b": 4, "c": 4}, frozen), 2, 2)
    whole = {"a": PartCost(4, 12, 8, 4), "b": PartCost(4, 20, 12, 8), "c": PartCost(8, 20, 16, 4)}
    one = {"a": LayerTime(1, 2, 1), "b": LayerTime(1, 3, 2), "c": LayerTime(2, 4, 1)}
    main = backbone(plan.schedule, plan.model.parts)
    times = [  # a backbone's cost is that of one of P slabs, so its layers cost twice as much here
        LayerTime(*(time * (2 if layer.part == main else 1) for time in one[layer.part])) for layer in plan.model.layers
    ]
    assert costs_from_layers(plan, [times] * 2).compute == {
        key: pytest.approx([time] * 2) for key, time in costs_from_parts(plan, whole).compute.items()
    }


def test_micro_batches_have_their_own_times():
    plan = derive("1f1b(llm)", ModelSpec.of({"llm": 2}), 2, 2)
    costs = costs_from_layers(plan, [[LayerTime(1, 2, 3)] * 2, [LayerTime(4, 5, 6)] * 2])
    assert [costs.duration(Action(1, kind, mb)) for mb in (0, 1) for kind in "FBIW"] == [1, 5, 2, 3, 4, 11, 5, 6]


def test_a_recomputed_stage_runs_its_forward_again_in_b_and_i():
    plan = derive("1f1b(llm)", ModelSpec.of({"llm": 4}), 2, 1)
    costs = costs_from_layers(plan, [[LayerTime(1, 2, 3)] * 4], recompute=[1])
    assert [costs.compute[0, kind] for kind in "FBIW"] == [[2], [10], [4], [6]]
    assert [costs.compute[1, kind] for kind in "FBIW"] == [[2], [12], [6], [6]]


def test_a_stage_without_backward_recomputes_nothing():
    plan = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 2}, ["vision"]), 2, 1)
    costs = costs_from_layers(plan, [[LayerTime(1, 2, 3)] * 4], recompute=range(4))
    assert [costs.compute[0, kind] for kind in "FBIW"] == [[2], [0], [0], [0]]
    assert [costs.compute[3, kind] for kind in "FBIW"] == [[1], [6], [3], [3]]


def test_a_stage_is_called_once_and_never_takes_less_than_nothing():
    plan = derive("1f1b(vision+llm, slabs=[3,1])", ModelSpec.of({"vision": 1, "llm": 3}, ["vision"]), 2, 1)
    costs = costs_from_layers(plan, [[LayerTime(4, 5, 5)] * 4], calls={"F": 1.0, "B": 2.0})
    assert [costs.compute[0, kind] for kind in "FBIW"] == [[10], [18], [8], [10]]  # 3 forwards, 2 backwards
    assert [costs.compute[1, kind] for kind in "FBIW"] == [[4], [10], [5], [5]]
    assert costs_from_layers(plan, [[LayerTime(1, 1, 1)] * 4], calls={"F": 9.0}).compute[0, "F"] == [0]


def test_messages_have_the_size_of_what_is_handed_on_and_of_its_gradient():
    plan = derive("transpose(vision) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 2}), 2, 2)
    times = [[LayerTime(1, 1, 1)] * 4] * 2
    costs = costs_from_layers(plan, times, alpha=1, beta=0.5, carries=[[10, 20, 40, 0], [12, 24, 48, 0]])
    assert costs.message_bytes == {
        (0, "SEND_F"): [20, 24], (1, "SEND_F"): [20, 24],
        (2, "SEND_F"): [40, 48], (2, "SEND_B"): [20, 24], (3, "SEND_B"): [40, 48],
    }  # fmt: skip
    assert costs.duration(Action(3, "SEND_B", 1)) == 1 + 48 / 2
    assert costs_from_layers(plan, times, alpha=1).duration(Action(2, "SEND_F", 0)) == Costs({}, 1).duration(
        Action(2, "SEND_F", 0)
    )


def test_pieces_have_the_shares_of_their_images_and_empty_ones_encode_one():
    plan = derive("transpose(vision, split=4) >> 1f1b(llm)", ModelSpec.of({"vision": 2, "llm": 2}), 2, 2)
    costs = costs_from_layers(plan, [[LayerTime(5, 1, 1)] * 4] * 2, images=[5, 2])
    assert [costs.duration(Action(0, "F", Piece(0, index))) for index in range(4)] == pytest.approx([4, 2, 2, 2])
    assert [costs.duration(Action(0, "F", Piece(1, index))) for index in range(4)] == pytest.approx([5, 5, 5, 5])
    equal = costs_from_layers(plan, [[LayerTime(5, 1, 1)] * 4] * 2)
    assert equal.duration(Action(0, "F", Piece(1, 3))) == 2.5


def test_equal_sizes_are_priced_once():
    asked = []
    found = by_size([{"images": 1, "tokens": 2}, {"tokens": 2, "images": 1}, {"images": 2, "tokens": 2}], asked.append)
    assert len(asked) == 2 and len(found) == 3


def test_gates_by_layer():
    times = [LayerTime(1, 2, 4)] * 4
    assert [time.total for time in gated([False, True, False, True], times)] == [1, 7, 3, 7]
