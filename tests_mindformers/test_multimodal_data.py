"""MindFormers' data loader: rows of one shape that keep their images."""

import json

import numpy as np
import pytest
from mindformers.dataset.dataloader.build_dataloader import build_dataset_loader
from PIL import Image

import mindformers_patch.register  # noqa: F401
from hyperparallel.data import Digits, DigitsConfig
from hyperparallel.errors import ConfigError

LOADER = {
    "type": "MultimodalDataLoader",
    "source": {"source": "digits", "max_images": 3},
    "samples": 12,
    "tokens_per_image": 4,
    "max_tokens": 24,
}


def rows(**more):
    loader = build_dataset_loader({**LOADER, **more.pop("loader", {})}, default_args=more)
    return list(loader.create_dict_iterator(num_epochs=1, output_numpy=True))


def test_a_row_is_a_text_with_its_images():
    source = Digits(DigitsConfig(max_images=3), 4, "train")
    counts = set()
    for index, row in enumerate(rows()):
        sample = source.sample(index)
        count, length = sample.image_count, len(sample.input_ids)
        counts.add(count)
        assert row["pixel_values"].shape == (3, 1, 8, 8)
        np.testing.assert_array_equal(row["pixel_values"][:count], sample.images)
        assert not row["pixel_values"][count:].any()
        np.testing.assert_array_equal(row["input_ids"][:length], sample.input_ids)
        np.testing.assert_array_equal(row["labels"][:length], sample.labels)
        assert (row["labels"][length:] == -100).all()
    assert len(counts) > 2, "texts with different numbers of images, none among them"
    assert 0 in counts


def test_batches_keep_their_images_and_columns_their_order():
    loader = build_dataset_loader(LOADER, default_args={"column_names": ["pixel_values", "input_ids"]})
    batch = next(iter(loader.batch(4)))
    assert batch[0].shape == (4, 3, 1, 8, 8)
    assert batch[1].shape == (4, 24)


def test_replicas_have_what_one_process_has_together():
    everything = rows()
    halves = [rows(replicas=2, replica=replica, num_shards=7, shard_id=5) for replica in range(2)]
    for index, row in enumerate(everything):
        np.testing.assert_array_equal(halves[index % 2][index // 2]["pixel_values"], row["pixel_values"])


@pytest.mark.parametrize(
    "loader, columns, words",
    [
        ({"samples": None}, None, "samples is missing"),
        ({"source": {"source": "digits", "max_image": 3}}, None, "max_image"),
        ({}, ["input_ids", "pixels"], "names 'pixels'; MultimodalDataLoader has input_ids, labels, pixel_values"),
    ],
)
def test_mistakes(loader, columns, words):
    with pytest.raises(ConfigError, match=words):
        rows(loader=loader, column_names=columns)


def test_json_lines_with_an_image_folder(tmp_path):
    for name, size in (("wide.png", (20, 10)), ("tall.jpg", (9, 30))):
        Image.new("L", size, 200).save(tmp_path / name)
    lines = [
        {"prompt": "<image> <image> reads", "response": "one two", "images": ["wide.png", "tall.jpg"]},
        {"prompt": "reads", "response": "nothing"},
        {"prompt": "<image> reads", "response": "one", "images": ["tall.jpg"]},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"source": "files", "path": str(tmp_path / "train.jsonl"), "image_size": 8, "channels": 1, "max_images": 3}
    found = rows(loader={"source": {**source, "tokenizer": "words"}, "samples": None})
    assert len(found) == 3, "the file has an end, so nobody must say where it is"
    assert sorted(int((row["pixel_values"] != 0).any((1, 2, 3)).sum()) for row in found) == [0, 1, 2]
    assert all(row["pixel_values"].shape == (3, 1, 8, 8) for row in found)
    assert sorted(int((row["input_ids"] == 3).sum()) for row in found) == [0, 4, 8]
