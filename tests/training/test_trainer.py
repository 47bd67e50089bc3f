"""The training loop in one process: learning rates, files, and what the summary says."""

import json
import math

import numpy as np
import pytest
from training_config import LINES, write_config

from hyperparallel import Transport
from hyperparallel.training.build import (
    build_feed,
    build_layers,
    build_optimizer,
    estimate_costs,
    layer_times,
)
from hyperparallel.training.config import Training, load_config
from hyperparallel.training.plan_config import plan_from_config
from hyperparallel.training.planning import build_plan
from hyperparallel.training.steps import merge
from hyperparallel.training.trainer import learning_rate, train

LINE_KEYS = {
    *("step", "loss", "grad_norm", "lr", "step_time", "tokens", "images", "tokens_per_s", "images_per_s"),
    *("updated", "skipped", "bubble", "memory_peak_mb", "data_wait"),
}
SUMMARY_KEYS = [
    *("schedule", "steps", "first_loss", "last_loss", "step_time", "tokens_per_s", "images_per_s", "data_wait"),
    *("memory_peak_mb", "steps_left_out", "skipped", "bubble", "stopped", "checkpoint", "untrained"),
]
EVALUATION_KEYS = ["held_out_loss", "exact", "samples"]


def training(**values):
    return Training(**{"steps": 110, "batch_size": 1, "micro_batches": 1, "lr": 2.0, "warmup_steps": 10, **values})


@pytest.mark.parametrize(
    ("values", "step", "rate"),
    [
        pytest.param({}, 0, 0.2, id="first step of the warmup"),
        pytest.param({}, 4, 1.0, id="middle of the warmup"),
        pytest.param({}, 9, 2.0, id="end of the warmup"),
        pytest.param({}, 10, 2.0, id="peak"),
        pytest.param({"steps": 111}, 60, 2.0 * 0.55, id="middle of the cosine"),
        pytest.param({}, 109, 0.2, id="last step"),
        pytest.param({"warmup_steps": 0}, 0, 2.0, id="no warmup"),
        pytest.param({"warmup_steps": 0, "steps": 1}, 0, 2.0, id="one step"),
        pytest.param({"warmup_steps": 0, "steps": 2}, 1, 0.2, id="two steps"),
        pytest.param({"warmup_steps": 20, "steps": 5}, 4, 0.5, id="warmup longer than the run"),
    ],
)
def test_learning_rate(values, step, rate):
    assert learning_rate(training(**values), step) == pytest.approx(rate)


def test_the_rate_rises_then_falls():
    rates = [learning_rate(training(), step) for step in range(110)]
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert all(0 < rate <= 2.0 for rate in rates)


def test_columns_of_all_stages_are_merged_by_micro_batch():
    data = {0: {0: {"a": 1}, 2: {"a": 2}}, 3: {0: {"b": 3}, 1: {"b": 4}}}
    assert merge(data, 3) == [{"a": 1, "b": 3}, {"b": 4}, {"a": 2}]


def alone(tmp_path, *overrides):
    return load_config(write_config(tmp_path), ["parallel.ranks=1", "run.jit=false", *overrides])


@pytest.mark.slow
@pytest.mark.parametrize("samples", [0, 9])
def test_metrics_and_summary(tmp_path, samples):
    config, reported = alone(tmp_path, f"evaluation.samples={samples}"), []
    summary = train(config, Transport(), tmp_path, reported.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == reported and [line["step"] for line in lines] == [0, 1, 2]
    feed = build_feed(config, "train")
    for step, line in enumerate(lines):
        assert set(line) == LINE_KEYS
        assert line["bubble"] == [pytest.approx(0, abs=0.05)] and line["memory_peak_mb"] > 100
        assert line["lr"] == learning_rate(config.training, step)
        assert line["tokens"] == sum(info.tokens for info in feed.describe(step))
        assert line["images"] == sum(info.images for info in feed.describe(step))
        assert line["tokens_per_s"] == line["tokens"] / line["step_time"] and line["grad_norm"] > 0
        assert line["images_per_s"] == line["images"] / line["step_time"] and 0 <= line["data_wait"] < line["step_time"]
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert list(summary) == SUMMARY_KEYS + (EVALUATION_KEYS if samples else [])
    assert (summary["first_loss"], summary["last_loss"]) == (lines[0]["loss"], lines[-1]["loss"])
    if samples:
        assert summary["samples"] == 9  # of two batches of 8
        assert 0 <= summary["exact"] <= 1 and math.isfinite(summary["held_out_loss"])


def test_the_optimizer_has_the_settings_of_the_section(tmp_path):
    overrides = ["training.lr=0.5", "training.weight_decay=0.25", "training.betas=[0.1,0.2]", "training.eps=0.125"]
    settings = build_optimizer(alone(tmp_path, *overrides, "training.clip_norm=3"))
    assert settings == type(settings)(0.5, 0.25, (0.1, 0.2), 0.125, 3.0)


@pytest.mark.parametrize("frozen", [False, True])
def test_costs_follow_the_work_of_the_layers(tmp_path, frozen):
    config = alone(tmp_path, "cost.gflops=2", "cost.backward=3", f"model.vision.trainable={not frozen}")
    layers = build_layers(config)
    plan = build_plan(config, layers)
    costs = estimate_costs(config, plan, layers)
    infos = build_feed(config, "train").describe(0)
    sizes = [{"images": max(1, i.images), "samples": i.samples, "tokens": i.padded_tokens} for i in infos]
    for stage, (first, last) in enumerate(plan.placement.slabs):
        forward = [sum(layer.work(size) for layer in layers[first:last]) / 2e9 * 1e3 for size in sizes]
        np.testing.assert_allclose(costs.compute[stage, "F"], forward)
        backward = 3 * np.array(forward) * layers[first].trainable
        np.testing.assert_allclose(costs.compute[stage, "B"], backward)
    times = layer_times(config, layers)
    for layer, time in zip(layers, times, strict=True):
        mean = np.mean([layer.work(size) for size in sizes]) / 2e9 * 1e3
        assert time == pytest.approx(mean * (4 if layer.trainable else 1))


def test_the_plan_of_a_configuration_is_the_one_that_trains(tmp_path):
    path = write_config(tmp_path, LINES)
    (plan, _), costs = plan_from_config(path, ["training.micro_batches=4"])
    config = load_config(path, ["training.micro_batches=4"])
    assert plan.programs == build_plan(config, build_layers(config)).programs
    assert (plan.ranks, plan.micro_batches) == (2, 4) and costs.alpha == config.cost.message_ms
