"""The pipeline result equals one process, for every schedule, rank count and mix of images."""

from dataclasses import replace

import numpy as np
import pytest
from cells_case import CASES, GPIPE, INLINE, NO_IMAGE, STEPS, TRANSPOSE, Case, reference, relative_difference

TOLERANCE = 1e-5

pytestmark = pytest.mark.slow
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def expected(case):
    return reference(case.vision, case.llm, case.tied)


def losses(seen):
    return [result["loss"] for result in seen.facts["results"]]


@every_case
def test_losses_and_norms_equal_one_process(results, case):
    for seen in results[case.name]:
        np.testing.assert_allclose(losses(seen), expected(case).losses, rtol=TOLERANCE)
        # Counts tied and replicated parameters once, or it would differ.
        norms = [result["grad_norm"] for result in seen.facts["results"]]
        np.testing.assert_allclose(norms, expected(case).norms, rtol=TOLERANCE)
        assert seen.facts["results"] == results[case.name][0].facts["results"], "ranks disagree"


@every_case
def test_parameters_equal_one_process(results, case):
    found = set()
    for seen in results[case.name]:
        found |= set(seen.final)
        for name, value in seen.final.items():
            assert relative_difference(value, expected(case).final[name]) < TOLERANCE, name
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
    for kind in sorted({(case.vision, case.llm, case.tied) for case in CASES}):
        one = reference(*kind)
        assert one.losses[-1] < one.losses[0] - 0.05 or kind[1] is False
        for name, value in one.final.items():
            trained = kind[0] if name.startswith("vision") else kind[1]
            assert np.array_equal(value, one.initial[name]) is not trained, name


def of_one_kind():
    """Group compiled cases that differ in their schedule only."""
    groups = {}
    for case in CASES:
        if case.jit:
            groups.setdefault(replace(case, schedule="", evaluates=False), []).append(case)
    return [pytest.param(cases, id=kind.name) for kind, cases in groups.items() if len(cases) > 1]


@pytest.mark.parametrize("cases", of_one_kind())
def test_step_1_has_the_same_loss_to_the_bit_under_every_schedule(results, cases):
    assert len({losses(results[case.name][0])[0] for case in cases}) == 1


@every_case
def test_the_encoder_gets_a_gradient_of_zero_from_a_step_without_images(results, case):
    seen = [step["gradients"] for rank in results[case.name] for step in rank.facts["steps"][NO_IMAGE : NO_IMAGE + 1]]
    encoder = [largest for gradients in seen for name, largest in gradients.items() if name.startswith("vision")]
    assert bool(encoder) is case.vision and all(largest == 0.0 for largest in encoder)
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
