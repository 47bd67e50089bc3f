"""Collation: order, padding, the dummy image, and refused samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperparallel.data import COLUMNS, IGNORE, PAD, Digits, DigitsConfig, Sample, collate, encode
from hyperparallel.data.collate import Room
from hyperparallel.errors import DataError


def sample(images, text, tokens=1, size=2, **kwargs):
    pixels = None if images is None else np.arange(images * size * size, dtype=np.float32)
    pixels = None if pixels is None else pixels.reshape(images, 1, size, size)
    ids = np.array(encode(text), np.int32)
    return Sample(pixels, ids, ids, tokens, **kwargs)


@settings(max_examples=40, deadline=None)
@given(
    start=st.integers(0, 1000),
    size=st.integers(1, 5),
    multiple=st.integers(1, 9),
    columns=st.lists(st.sampled_from(COLUMNS), unique=True),
)
def test_a_micro_batch_is_its_samples_side_by_side(start, size, multiple, columns):
    source = Digits(DigitsConfig(min_images=1), tokens_per_image=2)
    samples = [source.sample(start + i) for i in range(size)]
    batch = collate(samples, columns, multiple)
    assert list(batch) == columns
    longest = max(len(s.input_ids) for s in samples)
    for column, fill in (("input_ids", PAD), ("labels", IGNORE)):
        if column in batch:
            assert batch[column].dtype == np.int32 and batch[column].shape[1] % multiple == 0
            assert longest <= batch[column].shape[1] < longest + multiple
            for row, s in zip(batch[column], samples, strict=True):
                values = getattr(s, column)
                assert np.array_equal(row[: len(values)], values) and (row[len(values) :] == fill).all()
    if "pixel_values" in batch:
        assert batch["pixel_values"].dtype == np.float32
        assert np.array_equal(batch["pixel_values"], np.concatenate([s.images for s in samples]))


@pytest.mark.parametrize(
    ("images", "expected"),
    [([0], 1), ([0, 0], 1), ([0, 2], 2), ([None, 2, None], 2)],
)
def test_only_a_micro_batch_without_images_gets_a_dummy(images, expected):
    samples = [sample(n, "<bos> " + "<image> " * (n or 0)) for n in images]
    pixels = collate(samples, ["pixel_values"])["pixel_values"]
    assert pixels.shape == (expected, 1, 2, 2)
    assert pixels.any() == any(images)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([sample(0, "<bos>"), sample(2, "<bos> <image>")], ["sample 1", "1 <image>", "2 images", "need 2"]),
        ([sample(2, "<image> <image> <image>", 2, name="train[5]")], ["(train[5])", "3 <image>", "need 4"]),
        ([sample(None, "<image>")], ["sample 0", "1 <image>", "0 images"]),
        ([sample(1, "<bos>", 0)], ["1 images", "tokens_per_image is 0"]),
        ([sample(2, "<image> <image>", image_count=3)], ["2 images", "image_count is 3", "leave image_count out"]),
        ([sample(None, "<image>", image_count=1)], ["pixel_values", "1 images", "pixels=True"]),
        ([sample(None, "<bos>")], ["images=None", "image size is unknown"]),
        ([sample(1, "<image>"), sample(1, "<image>", size=3)], ["(1, 2, 2)", "(1, 3, 3)"]),
        ([Sample(np.zeros((1, 8, 8)), np.array([3]), np.array([3]), 1)], ["(1, 8, 8)", "(1, 1, 8, 8)"]),
        ([Sample(None, np.array([1, 2]), np.array([1]))], ["(2,)", "(1,)"]),
    ],
)
def test_wrong_samples_are_named_with_their_numbers(samples, said):
    with pytest.raises(DataError) as error:
        collate(samples, COLUMNS)
    for words in said:
        assert words in str(error.value)


def test_an_unknown_column_is_answered_with_the_known_ones():
    with pytest.raises(DataError, match="'pixels' is unknown.*pixel_values, image_mask, input_ids, labels"):
        collate([sample(0, "<bos>")], ["pixels"])


def test_room_makes_every_micro_batch_of_one_shape():
    samples = [sample(2, "<bos> <image> <image> zero"), sample(1, "<bos> <image> one")]
    got = collate(samples, COLUMNS, room=Room(images=5, tokens=40))
    assert got["pixel_values"].shape[0] == 5
    assert got["input_ids"].shape == got["labels"].shape == (2, 40)
    assert got["image_mask"].tolist() == [1, 1, 1, 0, 0]
    np.testing.assert_array_equal(got["pixel_values"][:3], collate(samples, COLUMNS)["pixel_values"])
    assert not got["pixel_values"][3:].any()


def test_without_images_the_mask_is_blank():
    assert collate([sample(0, "<bos> one")], ["image_mask"])["image_mask"].tolist() == [0]


def test_too_little_room_names_the_sample_and_the_option():
    with pytest.raises(DataError, match="3 images, there is room for 2; raise run.max_images"):
        collate([sample(3, "<bos> <image> <image> <image> zero")], COLUMNS, room=Room(images=2, tokens=40))
    with pytest.raises(DataError, match="tokens, there is room for 4; raise run.max_tokens"):
        collate([sample(3, "<bos> <image> <image> <image> zero")], COLUMNS, room=Room(images=3, tokens=4))
