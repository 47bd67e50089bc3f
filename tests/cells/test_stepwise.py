"""The pipeline result equals one process, for every schedule, rank count and mix of images."""

from dataclasses import replace

import numpy as np
import pytest
from cells_case import (
    CASES,
    GPIPE,
    HEAD,
    INLINE,
    NO_IMAGE,
    STEPS,
    TRANSPOSE,
    Case,
    kind_of,
    layers_of,
    reference,
    relative_difference,
)

from hyperparallel import parse
from hyperparallel.algebra.skeletons.base import registry

TOLERANCE = 1e-5
# float16 keeps 11 bits; the plain reference rounds sample by sample, the runner micro-batch by micro-batch.
ROUNDING = {"float32": (TOLERANCE, TOLERANCE), "float16": (2e-3, 5e-2)}  # of losses and norms, of parameters

pytestmark = pytest.mark.slow
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def expected(case):
    return reference(*kind_of(case))


def losses(seen):
    return [result["loss"] for result in seen.facts["results"]]


@every_case
def test_losses_and_norms_equal_one_process(results, case):
    for seen in results[case.name]:
        tolerance = ROUNDING[case.dtype][0]
        np.testing.assert_allclose(losses(seen), expected(case).losses, rtol=tolerance)
        # Counts tied and replicated parameters once, or it would differ.
        norms = [result["grad_norm"] for result in seen.facts["results"]]
        np.testing.assert_allclose(norms, expected(case).norms, rtol=tolerance)
        assert seen.facts["results"] == results[case.name][0].facts["results"], "ranks disagree"


@every_case
def test_parameters_equal_one_process(results, case):
    found = set()
    for seen in results[case.name]:
        found |= set(seen.final)
        for name, value in seen.final.items():
            assert relative_difference(value, expected(case).final[name]) < ROUNDING[case.dtype][1], name
    assert found == set(expected(case).final)


@every_case
def test_first_weights_are_those_of_one_process_to_the_bit(results, case):
    for seen in results[case.name]:
        for name, value in seen.initial.items():
            np.testing.assert_array_equal(value, expected(case).initial[name], err_msg=name)


@every_case
def test_copies_stay_equal_to_the_bit(results, case):
    """Tied ends, copies of a transposed encoder and replicas."""
    copies: dict[str, np.ndarray] = {}
    for seen in results[case.name]:
        for name, value in seen.final.items():
            name = "llm.embed.weight" if case.tied and name == "llm.head.weight" else name
            np.testing.assert_array_equal(value, copies.setdefault(name, value), err_msg=name)


def test_training_moves_what_is_compared():
    for kind in sorted({kind_of(case) for case in CASES}):
        one, layers = reference(*kind), layers_of(Case("", 1, **kind._asdict()))
        assert one.losses[-1] < one.losses[0] - 0.05 or not kind.llm or kind.freeze
        for name, value in one.final.items():
            trained = next(layer.trainable for layer in layers if name.startswith(f"{layer.name}."))
            assert np.array_equal(value, one.initial[name]) is not trained, name


def of_one_kind():
    """Group compiled cases that differ in their schedule only."""
    groups = {}
    for case in CASES:
        if case.jit:
            groups.setdefault(replace(case, schedule="", evaluates=False, recompute=""), []).append(case)
    return [pytest.param(cases, id=kind.name) for kind, cases in groups.items() if len(cases) > 1]


@pytest.mark.parametrize("cases", of_one_kind())
def test_step_1_has_the_same_loss_to_the_bit_under_every_schedule(results, cases):
    assert len({losses(results[case.name][0])[0] for case in cases}) == 1


@every_case
def test_the_encoder_gets_a_gradient_of_zero_from_a_step_without_images(results, case):
    seen = [step["gradients"] for rank in results[case.name] for step in rank.facts["steps"][NO_IMAGE : NO_IMAGE + 1]]
    encoder = [largest for gradients in seen for name, largest in gradients.items() if name.startswith("vision")]
    trained = any(layer.trainable for layer in layers_of(case) if layer.name.startswith("vision"))
    assert bool(encoder) is trained and all(largest == 0.0 for largest in encoder)
    others = [step["gradients"] for rank in results[case.name] for step in rank.facts["steps"][:NO_IMAGE]]
    assert all(value > 0 for gradients in others for value in gradients.values()), "a gradient is always zero"


def messages(step):
    return [(peer, action) for peer, action, _ in step["sends"]], step["sums"]


@every_case
def test_every_step_has_the_same_messages_and_sums_with_and_without_images(results, case):
    for seen in results[case.name]:
        steps = [messages(step) for step in seen.facts["steps"]]
        assert len(steps) == STEPS and all(step == steps[0] for step in steps)


@every_case
def test_the_callers_arrays_are_left_alone(results, case):
    assert all(seen.facts["kept"] for seen in results[case.name])


def test_evaluate_gives_the_loss_of_the_step_and_changes_nothing(results):
    case = Case(TRANSPOSE, 2, pad=8, evaluates=True)
    for seen in results[case.name]:
        assert len(seen.facts["evaluated"]) == STEPS and seen.facts["kept"]
        for evaluated, stepped in zip(seen.facts["evaluated"], seen.facts["results"], strict=True):
            assert {**evaluated, "grad_norm": 0} == {**stepped, "grad_norm": 0}
            assert evaluated["grad_norm"] == 0


@pytest.mark.parametrize("schedule", [INLINE, GPIPE, TRANSPOSE])
def test_metrics_are_sums_over_the_batch(results, schedule):
    for result in results[Case(schedule, 2).name][0].facts["results"]:
        assert result["metrics"]["samples"] == 8 and 0 <= result["metrics"]["exact"] <= 8


def test_a_rank_without_trainable_parameters_has_no_state_and_sums_nothing(results):
    case = Case(INLINE, 4, freeze=HEAD, tied=False)
    *idle, last = results[case.name]
    for seen in idle:
        assert (seen.facts["state"], seen.facts["shared"], seen.facts["trained"]) == ([], {}, [])
        assert not any(action[:1] == "B" for action in seen.facts["program"]), "a backward of nothing"
    assert set(last.facts["shared"]) == {"llm.head.norm.weight", "llm.head.weight"}


def test_running_forwards_again_changes_no_bit(results):
    for case in (case for case in CASES if case.recompute and not case.dropout):
        for kept, again in zip(results[replace(case, recompute="").name], results[case.name], strict=True):
            assert kept.facts["results"] == again.facts["results"]
            for name, value in kept.final.items():
                np.testing.assert_array_equal(value, again.final[name], err_msg=name)


@pytest.mark.parametrize("ranks", (2, 4))
def test_every_skeleton_is_among_the_cases(ranks):
    lines = [case.schedule for case in CASES if case.ranks == ranks]
    assert {region.skeleton for line in lines for region in parse(line).regions} == set(registry())


def test_dropout_drops():
    kinds = [kind_of(Case(INLINE, 1, dropout=rate)) for rate in (0.0, 0.2)]
    kept, dropped = (reference(*kind) for kind in kinds)
    assert abs(kept.losses[0] - dropped.losses[0]) > 1e-3
