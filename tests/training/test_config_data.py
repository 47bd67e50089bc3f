"""The section `data` of the YAML with the source `files`: mistakes in one sentence, shapes, and training."""

from pathlib import Path

import numpy as np
import pytest
from training_config import FILES, LINES, write_config

from hyperparallel.cells.transport import Transport
from hyperparallel.cli import main
from hyperparallel.data import DigitsConfig, FilesConfig, ListSource, StepFeed
from hyperparallel.data.example import write_example
from hyperparallel.training.build import build_feed, build_layers, column_specs, room_of
from hyperparallel.training.config import load_config
from hyperparallel.training.plan_config import plan_from_config
from hyperparallel.training.planning import build_plan
from hyperparallel.training.runners import build_runner
from hyperparallel.training.steps import batches
from hyperparallel.training.trainer import learning_rate, train


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A folder of 24 lines with up to one image."""
    folder = tmp_path_factory.mktemp("files")
    write_example(folder, train=24, held_out=8, max_images=1)
    return folder


def write(tmp_path: Path, example: Path, data: str = FILES) -> Path:
    before = "data:\n  max_images: 1\n"
    assert LINES.count(before) == 1
    return write_config(tmp_path, LINES.replace(before, data.format(folder=example)))


MISTAKES = {
    "unknown source": (("source: files", "source: flies"), ["line 20", "data.source = 'flies'", "mean 'files'?"]),
    "no source near": (("source: files", "source: 7"), ["line 20", "data.source = '7'", "one of digits, files"]),
    "unknown key": (("  channels", "  chanels"), ["line 23", "unknown key 'data.chanels'", "did you mean 'channels'?"]),
    "unknown token": (
        ("channels: 1", "tokens: {{padd: x}}"),
        ["line 23: unknown key 'data.tokens.padd'; did you mean 'pad'?"],
    ),
    "key of the other": (("channels: 1", "mix: uniform"), ["line 23: 'data.mix' is a key of source: digits"]),
    "source left out": (("  source: files\n", ""), ["line 20: 'data.path' is a key of source: files; add"]),
    "no path": (("  path: {folder}/train.jsonl\n", ""), ["line 19: 'data.path' is missing; add it"]),
    "wrong choice": (("channels: 1", "resize: crop"), ["line 23: data.resize = 'crop'", "'pad' or 'stretch'"]),
    "wrong item": (
        ("channels: 1", "mean: [0.5, x, 0]"),
        ["line 23: data.mean.1 = 'x': input should be a valid number"],
    ),
    "wrong token": (("channels: 1", "tokens: {{bos: false}}"), ["line 23: data.tokens.bos = False: input should be"]),
    "numbers per channel": (("channels: 1", "std: [1, 1]"), ["line 19: data: std has 2 numbers", "3 for the channels"]),
    "missing file": (("train.jsonl", "gone.jsonl"), ["gone.jsonl: cannot be read (No such file"]),
    "missing folder": (("channels: 1", "channels: 1\n  images: gone"), ["images = 'gone' is not a folder"]),
    "image size": (("image_size: 8", "image_size: 16"), ["takes 1 x 8 x 8", "1 x 16 x 16", "data.image_size equal"]),
    "colour": (("channels: 1", "channels: 3"), ["the data give 3 x 8 x 8", "model.vision.channels and data.channels"]),
    "too long": (
        ("channels: 1", "channels: 1\n  max_tokens: 9"),
        ["model.llm.max_length is 8", "data.max_tokens = 9 has up to 16 tokens: raise max_length or lower max_tokens"],
    ),
    "one token for two": (
        ("channels: 1", "tokens: {{image: <eos>}}"),
        ["line 19: data: tokens.eos and tokens.image are both '<eos>'", "give tokens.image one of its own"],
    ),
    "image token": (("channels: 1", "channels: 1\n  tokens: {{image: 9}}"), ["image_token is 3; the files data use 9"]),
    "vocabulary": (
        ("channels: 1", "channels: 1\n  tokens: {{pad: 99}}"),
        ["vocab_size is 16; the files data have 100"],
    ),
    "a bad line": (("max_images: 1", "max_images: 0"), ["train.jsonl, line ", "1 images, more than max_images = 0"]),
}


@pytest.mark.parametrize(("change", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(tmp_path, example, capsys, monkeypatch, change, words):
    monkeypatch.setattr("hyperparallel.training.job.start_job", lambda *_: pytest.fail("a job was started"))
    assert FILES.count(change[0]) == 1
    assert main(["train", str(write(tmp_path, example, FILES.replace(*change)))]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hyperparallel: ") and err.count("\n") == 1
    assert all(word in err for word in words), err


def test_evaluation_needs_a_held_out_file(tmp_path, example, capsys):
    path = write(tmp_path, example)
    assert main(["train", str(path), "evaluation.samples=8"]) == 2
    assert "held_out_path is missing" in capsys.readouterr().err


def test_overrides_choose_the_source(tmp_path, example):
    path = write(tmp_path, example)
    changed = load_config(path, ["data.mean=[0.5]", "data.tokens.bos=null", "data.seed=3"]).data
    assert isinstance(changed, FilesConfig) and (changed.mean, changed.tokens.bos, changed.seed) == ((0.5,), None, 3)
    assert isinstance(load_config(path, ["data={max_images: 1}"]).data, DigitsConfig)
    assert load_config(path, [f"data={{source: files, path: {example}/x}}"]).data.max_images == 8


def test_the_plan_knows_the_sizes(tmp_path, example):
    path = write(tmp_path, example)
    (plan, _), costs = plan_from_config(path)
    infos = build_feed(load_config(path), "train").describe(0)
    assert len(costs.compute[0, "F"]) == len(infos) == plan.micro_batches
    assert sum(info.images for info in infos) > 0


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [([], 24), (["data.max_tokens=9"], 16), (["data.max_tokens=9", "run.max_tokens=12"], 12)],
)
def test_a_graph_has_room_for_the_longest_text(tmp_path, example, overrides, tokens):
    config = load_config(write(tmp_path, example), ["run.mode=graph", "model.llm.max_length=30", *overrides])
    specs = column_specs(config)
    room = room_of(config)
    assert (room.images, room.tokens) == (4, tokens)
    feed = build_feed(config, "train")
    for name, array in feed.micro_batch(0, 1, list(specs)).items():
        assert (array.shape, str(array.dtype)) == specs[name], name


def test_sizes_are_known_without_the_files(tmp_path, example):
    config = load_config(write(tmp_path, example), ["data.path=gone", "data.tokenizer=gone", "run.mode=graph"])
    assert len(build_layers(config)) == 6 and column_specs(config)["input_ids"].shape == (4, 8)


@pytest.mark.slow
def test_training_from_files_equals_training_from_memory(tmp_path, example):
    overrides = ["parallel.ranks=1", "training.steps=6", "training.lr=0.02"]
    config = load_config(write(tmp_path, example), overrides)
    summary = train(config, Transport(), tmp_path)
    feed = build_feed(config, "train")
    listed = StepFeed(ListSource([feed.source.sample(index) for index in range(48)]), 8, 2)
    layers = build_layers(config)
    runner = build_runner(config, build_plan(config, layers), layers, Transport())
    losses = [
        runner.step(batch, learning_rate(config.training, step)).loss
        for step, batch in enumerate(batches(runner, listed, 0, 6))
    ]
    assert [losses[0], losses[-1]] == [summary["first_loss"], summary["last_loss"]]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
