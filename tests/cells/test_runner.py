"""Mistakes that the runner refuses, and what a failed step leaves behind."""

from dataclasses import replace

import numpy as np
import pytest
from cells_case import INLINE, TRANSPOSE, Case, batch_of, layers_of
from cells_tiny import CALLS, tiny_batch, tiny_layers

from hyperparallel import Layer, Runner, Transport, derive, model_spec
from hyperparallel.cells.step_result import check_carry
from hyperparallel.errors import ConfigError, DataError, ModelError

SCHEDULE = "transpose(stem) >> 1f1b(net)"


def tiny_runner(schedule=SCHEDULE, micro_batches=2, ranks=1, layers=None, **more):
    layers = layers or tiny_layers()
    return Runner(derive(schedule, model_spec(layers), ranks, micro_batches), layers, jit=False, seed=3, **more)


@pytest.mark.parametrize(
    ("ranks", "replicas", "size", "words"),
    [
        (
            2,
            1,
            1,
            "2 ranks x 1 replicas x 1 shards (P x D x T) = 2 workers, the job has 1; start it with msrun",
        ),
        (1, 2, 1, "1 ranks x 2 replicas x 1 shards (P x D x T) = 2 workers, the job has 1"),
        (2, 2, 2, "2 ranks x 2 replicas x 1 shards (P x D x T) = 4 workers, the job has 2"),
        (1, 1, 4, "1 workers, the job has 4; start it with msrun --worker_num=1"),
    ],
)
def test_a_job_of_another_size_is_refused(ranks, replicas, size, words):
    with pytest.raises(ConfigError) as error:
        tiny_runner(ranks=ranks, data_parallel=replicas, transport=Transport(0, size))
    assert words in str(error.value)


def without(column, mb=1):
    batch = tiny_batch(2)
    del batch[mb][column]
    return batch


def unlabelled():
    batch = batch_of(0, Case(INLINE, 1), 0)
    return [{**columns, "labels": np.full_like(columns["labels"], -100)} for columns in batch]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        pytest.param(tiny_batch(3), ["3 micro-batches; the plan has 2"], id="too many"),
        pytest.param([], ["0 micro-batches; the plan has 2"], id="none"),
        pytest.param(without("x"), ["micro-batch 1 has no column 'x'", "stem.a", "it has y"], id="no x"),
        pytest.param(without("y", 0), ["micro-batch 0 has no column 'y'", "net.b .. net.c"], id="no y"),
        pytest.param([{}, {}], ["micro-batch 0 has no column 'x'", "it has none"], id="empty"),
    ],
)
def test_wrong_batches_are_refused(batch, words):
    for run in (tiny_runner().step, tiny_runner().evaluate):
        with pytest.raises(DataError) as error:
            run(batch)
        assert all(word in str(error.value) for word in words), str(error.value)


def test_a_step_without_any_label_is_refused_and_changes_nothing():
    case = Case(INLINE, 1, jit=False)
    layers = layers_of(case)
    runner = Runner(derive(INLINE, model_spec(layers), 1, 4), layers, jit=False)
    before = runner.parameters()
    with pytest.raises(DataError, match="step 0: no label in the whole batch"):
        runner.step(unlabelled())
    assert runner.evaluate(unlabelled()).loss == 0.0
    for name, value in runner.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_step_that_failed_half_way_leaves_no_gradients_behind():
    runner, clean = tiny_runner("1f1b(stem+net)"), tiny_runner("1f1b(stem+net)")
    with pytest.raises(DataError):
        runner.step(without("y", 1))  # micro-batch 0 has been through its backward by then
    assert runner.step(tiny_batch(2)) == clean.step(tiny_batch(2))
    for name, value in runner.parameters().items():
        np.testing.assert_array_equal(value, clean.parameters()[name])


def test_parameters_are_copies():
    runner = tiny_runner()
    taken = runner.parameters()
    for value in taken.values():
        value += 1.0
    for name, value in runner.parameters().items():
        np.testing.assert_array_equal(value + 1.0, taken[name])
    before = runner.parameters()
    kept = {name: value.copy() for name, value in before.items()}
    runner.step(tiny_batch(2))
    assert all(np.array_equal(before[name], kept[name]) for name in kept), "a step wrote into what was handed out"


def test_a_tie_to_a_parameter_that_the_layer_has_not_is_refused():
    for local, target in (
        ("nope", "llm.embed.weight"),
        ("weight", "llm.embed.nope"),
        ("norm.weight", "llm.embed.weight"),
    ):
        layers = list(layers_of(Case(INLINE, 1)))
        layers[-1] = replace(layers[-1], tied={local: target})
        with pytest.raises(ModelError, match=f"ties '{local}' to '{target}'; both must exist and have the same shape"):
            Runner(derive(INLINE, model_spec(layers), 1, 1), layers)


def test_metrics_that_the_last_layer_does_not_return_are_refused():
    layers = tiny_layers()
    layers[-1] = replace(layers[-1], metrics=("right", "wrong"))
    with pytest.raises(ModelError, match="'net.c' returned 2 values; expected loss, weight and its metrics"):
        tiny_runner(layers=layers).step(tiny_batch(2))


def test_a_first_slab_without_parameters_has_nothing_to_differentiate():
    from mindspore import nn

    class Double(nn.Cell):
        def construct(self, x):
            return 2 * x

    layers = [Layer("pre", "pre", Double, columns=("x",)), *tiny_layers()]
    layers[1] = replace(layers[1], columns=())
    runner = tiny_runner("transpose(pre) >> 1f1b(stem+net)", layers=layers)
    doubled = [{**columns, "x": 2 * columns["x"]} for columns in tiny_batch(2)]
    assert runner.step(tiny_batch(2)) == tiny_runner().step(doubled)


def test_records_say_when_every_action_ran():
    runner = tiny_runner()
    runner.step(tiny_batch(2))
    assert runner.records is None
    runner.records = []
    for _ in range(2):
        runner.step(tiny_batch(2))
        assert [record.action for record in runner.records] == [a for a in runner.program if a.is_compute]
        assert all(0 <= record.start <= record.end for record in runner.records)


def test_a_rank_that_encodes_nothing_asks_for_no_pixels():
    layers = layers_of(Case(TRANSPOSE, 2))
    plan = derive("transpose(vision, owner=[1,1,1,1]) >> 1f1b(llm)", model_spec(layers), 2, 4)
    runner = Runner(plan, layers, transport=Transport(0, 2), jit=False)
    assert [own for own, columns in runner.requests.values() if "pixel_values" in columns and own] == []


def test_a_pass_that_failed_takes_those_before_it_with_it():
    runner, clean = tiny_runner("1f1b(stem+net)"), tiny_runner("1f1b(stem+net)")
    runner.accumulate(tiny_batch(2, seed=1))
    with pytest.raises(DataError):
        runner.step(without("y", 1))
    assert runner.step(tiny_batch(2)) == clean.step(tiny_batch(2))


def test_evaluating_between_two_passes_changes_nothing():
    runner, clean = tiny_runner(), tiny_runner()
    for one in (runner, clean):
        one.accumulate(tiny_batch(2, seed=1))
        if one is runner:
            one.evaluate(tiny_batch(2, seed=5))
    assert runner.step(tiny_batch(2)) == clean.step(tiny_batch(2))


def test_dropout_follows_the_number_of_a_micro_batch_not_its_place():
    case = Case(INLINE, 1, dropout=0.3, jit=False)
    layers, batch = layers_of(case), batch_of(0, case, 0)

    def step(places):
        runner = Runner(derive(INLINE, model_spec(layers), 1, 4), layers, jit=False)
        return runner.step([batch[mb] for mb in places], numbers=places)

    in_order, turned = step([0, 1, 2, 3]), step([2, 0, 3, 1])
    np.testing.assert_allclose(turned.loss, in_order.loss, rtol=1e-6)
    np.testing.assert_allclose(turned.grad_norm, in_order.grad_norm, rtol=1e-5)


@pytest.mark.parametrize("recompute", [(), (0,), (1,), (0, 1)])
def test_a_forward_runs_again_where_it_is_asked_to(recompute):
    layers = tiny_layers(counts=True)
    CALLS.clear()
    tiny_runner(layers=layers, recompute=recompute).step(tiny_batch(2))
    stages = (("stem.a",), ("net.b", "net.c"))
    expected = {name: 2 * (1 + (stage in recompute)) for stage, names in enumerate(stages) for name in names}
    assert expected == CALLS


def test_float16_op_by_op_is_refused():
    with pytest.raises(ConfigError, match="needs compiled stages"):
        tiny_runner(dtype="float16")


@pytest.mark.parametrize(
    "schedule", [INLINE, "transpose(vision) >> 1f1b(llm)", "transpose(vision, split=2) >> 1f1b(llm)"]
)
@pytest.mark.parametrize("run", ["step", "evaluate"])
def test_empty_columns_and_missing_features_are_refused_before_the_step(schedule, run):
    case = Case(schedule, 1)
    layers, batch = layers_of(case), batch_of(0, case, 0)
    runner = tiny_runner(schedule, 4, layers=layers)
    full = max(range(4), key=lambda mb: len(batch[mb]["pixel_values"]))
    for column, rows, said in (
        ("pixel_values", 0, r"column 'pixel_values' has the shape \(0, 1, 8, 8\), which is empty; give it a blank row"),
        ("input_ids", 0, r"column 'input_ids' has the shape \(0, 32\), which is empty"),
        ("pixel_values", 1, r"input_ids has 12 placeholders \(token \d+\), but 1 images of 4 features give 4"),
    ):
        wrong = [*batch]
        wrong[full] = {**batch[full], column: batch[full][column][:rows]}
        with pytest.raises(DataError, match=f"micro-batch {full}: {said}"):
            getattr(runner, run)(wrong)


def test_features_that_come_from_another_rank_are_counted_where_they_are_used():
    case = Case("transpose(vision) >> 1f1b(llm)", 1)
    layers = layers_of(case)
    embed = next(layer for layer in layers if layer.name == "llm.embed")
    token = embed.check.args[0]
    ids = np.full((1, 9), token, np.int32)
    with pytest.raises(DataError, match="micro-batch 3: input_ids has 9 placeholders.*2 images of 4 features give 8"):
        check_carry(embed, [(2, 4, 32)], {"input_ids": ids}, 3)
    check_carry(embed, [(3, 4, 32)], {"input_ids": ids}, 3)
