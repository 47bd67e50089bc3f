"""Where a run begins and when it must not go on, through whole runs in one process."""

import json
import logging
import os
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file
from training_config import write_config

from hyperparallel import Transport
from hyperparallel.data.example import write_example
from hyperparallel.errors import CheckpointError, TrainingError
from hyperparallel.training.config import load_config
from hyperparallel.training.keeper import check_start
from hyperparallel.training.trainer import train

BLOW_UP = ("training.lr=1e30", "training.clip_norm=0", "training.steps=6", "training.warmup_steps=0")


def run(folder, *overrides, report=None):
    """Train in this process; return the lines of metrics and the summary."""
    folder.mkdir()
    config = load_config(write_config(folder), ["parallel.ranks=1", "run.jit=false", *overrides])
    summary = train(config, Transport(), folder, report)
    return read_lines(folder), summary


def read_lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbers(lines):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that is not interrupted, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("keeper") / "whole"
    lines, _ = run(folder, "checkpoint.every=1", "checkpoint.keep=9", "model.llm.dropout=0.1", "training.steps=4")
    return folder, lines


def test_a_run_goes_on_with_equal_bits(whole, tmp_path):
    folder, lines = whole
    more, summary = run(
        tmp_path / "more", f"resume={folder}/checkpoints/step_000002", "model.llm.dropout=0.1", "training.steps=4"
    )
    assert numbers(more) == numbers(lines)[2:] and summary["steps"] == 2
    kept, gone_on = (
        load_file(one / "checkpoints" / "step_000004" / "worker_00.safetensors") for one in (folder, tmp_path / "more")
    )
    assert set(kept) == set(gone_on)
    for name, value in kept.items():
        np.testing.assert_array_equal(value, gone_on[name], err_msg=name)


def test_with_another_batch_size_the_data_go_on_where_they_were(whole, tmp_path):
    folder, lines = whole
    more, _ = run(
        tmp_path / "more", f"resume={folder}/checkpoints/step_000002", "training.batch_size=4", "training.steps=6"
    )
    # Steps of 4 samples: two of them are the tokens and images of one of 8.
    for key in ("tokens", "images"):
        assert [more[at][key] + more[at + 1][key] for at in (0, 2)] == [line[key] for line in lines[2:]]


def test_weights_of_another_run_begin_at_step_0(whole, tmp_path):
    folder, lines = whole
    more, _ = run(tmp_path / "more", f"init_from={folder}", "training.steps=1")
    assert more[0]["step"] == 0 and more[0]["loss"] != lines[0]["loss"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.steps=2"], ("has done 4 steps", "raise training.steps")),
        (["training.seed=3", "training.steps=9"], ("training.seed = 0, now it is 3", "set it to 0")),
        (
            ["run.trace_step=3", "training.steps=9"],
            ("run.trace_step = 3 is before step 4, the first after resume", "give one from 4 to 8"),
        ),
        (["data.seed=3", "training.steps=9"], ("data.seed = 0, now it is data.seed = 3", "weights: init_from=")),
        (["data.max_images=0", "training.steps=9"], ("data.max_images = 1, now it is data.max_images = 0",)),
        (["data.held_out=0.3", "training.steps=9"], ("data.held_out = 0.2, now it is data.held_out = 0.3",)),
    ],
)
def test_what_cannot_go_on_is_found_before_a_rank_starts(whole, tmp_path, overrides, said):
    config = load_config(write_config(tmp_path), [f"resume={whole[0]}", *overrides])
    with pytest.raises(CheckpointError) as error:
        check_start(config)
    assert all(words in str(error.value) for words in said), str(error.value)


@pytest.fixture(scope="module")
def from_files(tmp_path_factory):
    """A run of two steps on a folder of lines, and the section `data` that it had."""
    folder = tmp_path_factory.mktemp("files")
    write_example(folder / "lines", train=12, held_out=4, max_images=1)
    data = f"data={{source: files, path: {folder}/lines/train.jsonl, image_size: 8, channels: 1, max_images: 1}}"
    lines, _ = run(folder / "run", data, "training.steps=2", "data.mean=[0.25]")
    return folder, data, lines


def resumed(folder, from_files, *overrides):
    run_folder, data, _ = from_files
    return load_config(
        write_config(folder), ["parallel.ranks=1", data, "data.mean=[0.25]", f"resume={run_folder}/run", *overrides]
    )


def test_a_run_goes_on_with_the_same_lines_in_another_place(tmp_path, from_files):
    shutil.copytree(from_files[0] / "lines", tmp_path / "moved")
    for overrides in ([], [f"data.path={tmp_path}/moved/train.jsonl", "data.on_error=skip", "data.max_images=2"]):
        sizes = ["training.steps=4", "training.batch_size=4", "model.llm.max_length=16"]
        check_start(resumed(tmp_path, from_files, *sizes, *overrides))


OTHER_DATA = {
    "seed": (["data.seed=1"], "data.seed = 0, now it is data.seed = 1"),
    "order": (["data.shuffle=false"], "data.shuffle = True, now it is data.shuffle = False"),
    "pixels": (["data.mean=[0.5]"], "data.mean = [0.25], now it is data.mean = [0.5]"),
    "source": (["data={max_images: 1}"], "data.source = 'files', now it is data.source = 'digits'"),
    "tokens": (["data.tokens={bos: null}"], "data.tokens = {'pad': '<pad>', 'bos': '<bos>'"),
}


@pytest.mark.parametrize(("overrides", "said"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_other_data_are_refused(tmp_path, from_files, overrides, said):
    with pytest.raises(CheckpointError) as error:
        check_start(resumed(tmp_path, from_files, "training.steps=4", *overrides))
    assert said in str(error.value) and f"init_from={from_files[0]}/run" in str(error.value)


@pytest.mark.parametrize("change", ["more", "fewer", "another"])
def test_other_lines_are_refused(tmp_path, from_files, change):
    folder = from_files[0] / "lines"
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    text = {"more": [*lines, lines[0]], "fewer": lines[:-1], "another": [*lines[:-1], lines[0]]}[change]
    (tmp_path / "train.jsonl").write_text("".join(text))
    config = resumed(
        tmp_path, from_files, "training.steps=4", f"data.path={tmp_path}/train.jsonl", f"data.images={folder}"
    )
    with pytest.raises(CheckpointError) as error:
        check_start(config)
    assert f"{folder}/train.jsonl (12 lines, digest" in str(error.value)
    assert f"now it is {tmp_path}/train.jsonl ({len(text)} lines, digest" in str(error.value)


def test_a_rank_refuses_other_data_too(whole, tmp_path):
    with pytest.raises(CheckpointError, match="data.seed = 0, now it is data.seed = 1"):
        run(tmp_path / "more", f"resume={whole[0]}", "training.steps=6", "data.seed=1")


def test_a_checkpoint_without_its_data_goes_on_with_a_warning(whole, tmp_path, caplog):
    shutil.copytree(whole[0], tmp_path / "old")
    for path in (tmp_path / "old").glob("checkpoints/*/checkpoint.json"):
        values = json.loads(path.read_text())
        del values["facts"]["data"], values["sha256"]
        path.write_text(json.dumps({**values, "format": 1}))
    overrides = [f"resume={tmp_path}/old", "training.steps=6", "data.seed=1", "model.llm.dropout=0.1"]
    with caplog.at_level(logging.WARNING):
        check_start(load_config(write_config(tmp_path), overrides))
    assert "did not note its data" in caplog.text
    assert len(run(tmp_path / "more", *overrides)[0]) == 2


def test_a_run_that_is_not_there_is_found_before_a_rank_starts(tmp_path):
    for key in ("resume", "init_from"):
        for name in ("nowhere", "nowhere" * 1000):
            with pytest.raises(CheckpointError, match="nowhere"):
                check_start(load_config(write_config(tmp_path), [f"{key}={tmp_path / name}"]))


def test_a_loss_that_is_no_number_stops_with_step_and_last_checkpoint(tmp_path):
    with pytest.raises(TrainingError) as error:
        run(tmp_path / "run", *BLOW_UP, "checkpoint.every=1")
    lines = read_lines(tmp_path / "run")
    assert lines[-1]["updated"] is False and all(line["updated"] for line in lines[:-1])
    broken = lines[-1]["step"]
    last = tmp_path / "run" / "checkpoints" / f"step_{broken:06}"
    said = str(error.value)
    assert f"step {broken}: the loss is" in said and f"resume={last}" in said and last.is_dir()


def test_a_loss_that_is_no_number_can_be_left_out(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        lines, summary = run(tmp_path / "run", *BLOW_UP, "training.on_nonfinite=skip")
    left_out = [line["step"] for line in lines if not line["updated"]]
    assert len(lines) == 6 and left_out and summary["steps_left_out"] == len(left_out)
    assert sum("the step was left out" in record.message for record in caplog.records) == len(left_out)


def test_float16_goes_on_over_overflows_and_a_checkpoint_keeps_the_factor(tmp_path):
    float16 = (
        "run.dtype=float16",
        "run.jit=true",
        "training.loss_scale=131072",
        "training.steps=8",
        "checkpoint.every=1",
        "checkpoint.keep=9",
    )
    lines, summary = run(tmp_path / "run", *float16)
    scales = [line["loss_scale"] for line in lines]
    assert 0 < summary["steps_left_out"] < 8 and not lines[0]["updated"] and scales[-1] < 131072
    more, _ = run(tmp_path / "more", *float16, f"resume={tmp_path / 'run' / 'checkpoints' / 'step_000003'}")
    assert numbers(more) == numbers(lines)[3:] and [line["loss_scale"] for line in more] == scales[3:]


def test_passes_and_micro_batches_give_the_same_numbers(tmp_path):
    ways = {
        "once": ("training.micro_batches=4",),
        "twice": ("training.micro_batches=2", "training.accumulate=2"),
        "uneven": ("training.micro_batches=3",),
    }
    runs = {name: run(tmp_path / name, *overrides)[0] for name, overrides in ways.items()}
    for lines in runs.values():
        for key in ("loss", "grad_norm", "tokens", "images"):
            np.testing.assert_allclose([line[key] for line in lines], [line[key] for line in runs["once"]], rtol=1e-5)


def test_a_layer_without_gradients_is_named_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _, summary = run(tmp_path / "run", "data.max_images=0", "data.min_images=0")  # nothing for the encoder to see
    assert "vision.patch.project.weight" in summary["untrained"]
    assert all(name.startswith("vision") for name in summary["untrained"])
    (record,) = [one for one in caplog.records if "never got a gradient" in one.message]
    assert "vision.blocks.0" in record.message and "3 steps" in record.message and "model.freeze" in record.message


def test_what_is_frozen_by_name_does_not_move_and_is_not_missed(tmp_path):
    _, summary = run(tmp_path / "run", 'model.freeze=["vision.patch", "vision.blocks.*", "llm.*"]')
    assert summary["untrained"] == []


def test_a_stop_saves_at_the_end_of_the_step(tmp_path):
    def ask(line):
        if line["step"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    lines, summary = run(tmp_path / "run", "training.steps=9", "evaluation.samples=8", report=ask)
    assert [line["step"] for line in lines] == [0, 1, 2] and summary["stopped"] and "exact" not in summary
    assert summary["checkpoint"].endswith("step_000003")
