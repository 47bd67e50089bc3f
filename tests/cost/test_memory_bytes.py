"""Live bytes of small plans, counted by hand."""

from __future__ import annotations

import pytest

from hyperparallel.algebra import ModelSpec, derive
from hyperparallel.algebra.program import Action
from hyperparallel.cost.memory_bytes import memory_curve, peak_of, predict_peaks
from hyperparallel.cost.memory_stage import LayerBytes, StageBytes, stage_bytes

# One layer: 10 of parameters, 3 of tables, 100 kept, a backward that needs 40 more; it hands on 7.
LAYER = LayerBytes(weights=10, trained=10, largest=6, constants=3, saved=100, forward=0, backward=40)
ADDING = 40 + 6
FROZEN = LayerBytes(weights=10, trained=0, largest=0, constants=3, saved=0, forward=50, backward=0)
CARRY = 7
# Parameters and tables 13, moments 20; update: 3 x 6 beside the sums.
STILL, UPDATE = 33, 18


def curve_of(schedule, parts, ranks, micro_batches, rank, layers, recompute=(), columns=None, frozen=()):
    """Walk one rank of a plan with one layer in every slab."""
    plan = derive(schedule, ModelSpec.of(parts, frozen), ranks, micro_batches)
    placement = plan.placement
    stages = [
        stage_bytes(
            layers[first:last],
            CARRY if last < len(layers) else 0,
            trains=placement.gates[stage].receives_gradient,
            recompute=stage in recompute,
        )
        for stage, (first, last) in enumerate(placement.slabs)
    ]
    batch = columns or [{}] * len(stages)
    return [(str(action or "end"), live) for action, live in memory_curve(plan, rank, stages, batch)]


def totals(curve):
    """Keep action and total."""
    return [(action, live.total) for action, live in curve]


class TestCurve:
    def test_two_ranks_first(self):
        curve = curve_of("1f1b(llm)", {"llm": 2}, 2, 2, 0, [LAYER] * 2)
        assert totals(curve) == [
            ("0F0", STILL + 100 + 7),
            ("0SEND_F0", STILL + 100 + 7),
            # Nothing has waited for the messages yet, so what was sent is still there.
            ("0F1", STILL + 200 + 14),
            ("0SEND_F1", STILL + 200 + 14),
            ("0RECV_B0", STILL + 200 + 14 + 7),
            ("0B0", STILL + 200 + 7 + 40),
            ("0RECV_B1", STILL + 100 + 10 + 7),
            ("0B1", STILL + 100 + 10 + 7 + ADDING),
            ("end", STILL + 10 + UPDATE),
        ]

    def test_two_ranks_last(self):
        curve = curve_of("1f1b(llm)", {"llm": 2}, 2, 2, 1, [LAYER] * 2)
        by_action = dict(totals(curve))
        assert by_action["1F0"] == STILL + 100  # what came is part of what is kept
        # The next carry was received early, and waits.
        assert by_action["1B0"] == STILL + 100 + 40 + 7
        assert by_action["1SEND_B0"] == STILL + 10 + 7 + 7
        assert by_action["1B1"] == STILL + 100 + 10 + 7 + ADDING  # what 1SEND_B0 sent is not free

    def test_split_backward_keeps_weight_gradients(self):
        curve = curve_of("zb(llm)", {"llm": 2}, 2, 2, 1, [LAYER] * 2)
        names = [action for action, _ in curve]
        assert names.index("1W0") > names.index("1I1"), "a plan in which two W wait was expected"
        by_action = dict(curve)
        assert by_action["1I1"].gradients == 10
        assert by_action["1W0"].gradients == 20
        assert by_action["1W1"].gradients == 20
        assert by_action["end"].gradients == 10

    def test_recompute_keeps_the_input_only(self):
        curve = dict(curve_of("gpipe(llm)", {"llm": 2}, 2, 2, 1, [LAYER] * 2, recompute=(0, 1)))
        assert curve["1F1"].activations == 0
        assert curve["1F1"].carries == 2 * CARRY
        assert curve["1F1"].scratch == 100
        assert curve["1B0"].total == STILL + 2 * CARRY + 100 + 40

    def test_frozen_encoder_waits_as_features(self):
        layers = [FROZEN, LAYER, LAYER]
        parts = {"vision": 1, "llm": 2}
        curve = curve_of("transpose(vision) >> gpipe(llm)", parts, 2, 2, 0, layers, frozen=["vision"])
        by_action = dict(curve)
        still = 13 + STILL
        assert totals(curve)[0] == ("0F0", still + 50)  # its output is part of the 50
        assert by_action["2F0"].activations == 100
        assert by_action["end"].total == still + 10 + UPDATE

    def test_features_of_another_rank_wait_until_used(self):
        parts = {"vision": 1, "llm": 2}
        schedule = "transpose(vision, owner=[1,1]) >> gpipe(llm)"
        curve = dict(curve_of(schedule, parts, 2, 2, 0, [FROZEN, LAYER, LAYER], frozen=["vision"]))
        assert curve["2RECV_F0"].features == CARRY
        assert curve["2F0"].activations == 100
        assert "2SEND_B0" not in curve
        curve = dict(curve_of(schedule, parts, 2, 2, 0, [LAYER] * 3))
        assert curve["2SEND_B0"].features >= CARRY

    def test_batch_is_there_for_the_whole_step(self):
        columns = [{"ids": 5}, {"ids": 5, "labels": 2}]
        curve = curve_of("gpipe(llm)", {"llm": 2}, 2, 3, 1, [LAYER] * 2, columns=columns)
        assert {live.inputs for _, live in curve} == {3 * 7}


class TestStage:
    def test_backward_frees_as_it_goes_up(self):
        small, large = LAYER._replace(backward=1), LAYER._replace(backward=300)
        assert stage_bytes([small, large], CARRY, trains=True).backward == 300
        # The last layer's 100 are free by then, but its weight gradients are there.
        assert stage_bytes([large, small], CARRY, trains=True).backward == 300 - 100 + 10
        assert stage_bytes([large, small], CARRY, trains=True).adding == 300 - 100 + 6

    def test_frozen_layers_before_trained_ones_keep_nothing(self):
        one = stage_bytes([FROZEN, LAYER], CARRY, trains=True)
        assert (one.saved, one.forward, one.keeps_input) == (100, 50, False)

    def test_without_backward_nothing_is_kept(self):
        one = stage_bytes([FROZEN, FROZEN], CARRY, trains=False)
        assert (one.weights, one.trained, one.saved, one.forward) == (20, 0, 0, 50)


class TestPeaks:
    def test_peak_is_the_highest_moment(self):
        plan = derive("1f1b(llm)", ModelSpec.of({"llm": 4}), 4, 8)
        peaks = predict_peaks(plan, [LAYER] * 4, [CARRY] * 3 + [0], [{}] * 4)
        assert [peak.live.activations for peak in peaks] == [400, 300, 200, 100]
        assert [peak.bytes for peak in peaks] == [peak.live.total for peak in peaks]
        assert all(peak.at is not None and peak.at.kind == "B" for peak in peaks)

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_update_can_be_the_peak(self, replicas):
        heavy = LAYER._replace(weights=1000, trained=1000, largest=500)
        plan = derive("1f1b(llm)", ModelSpec.of({"llm": 1}), 1, 1)
        (peak,) = predict_peaks(plan, [heavy], [0], [{}], replicas=replicas)
        assert peak.at is None
        assert peak.bytes == 1003 + 2000 + 1000 + 3 * 500

    def test_first_of_equal_moments(self):
        stage = StageBytes(1, 0, 0, 0, 0, 9, 0, 0, 0)
        plan = derive("gpipe(llm)", ModelSpec.of({"llm": 1}, ["llm"]), 1, 2)
        assert peak_of(memory_curve(plan, 0, [stage], [{}])).at == Action(0, "F", 0)
