"""The digits source: real images, their text, two splits that share no image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hyperparallel.data import IGNORE, IMAGE, Digits, DigitsConfig, decode
from hyperparallel.data.digits import BUNDLED_IMAGES, MEAN, STD, bundled, image_count_probabilities
from hyperparallel.errors import DataError


def make(tokens_per_image=4, split="train", **config):
    return Digits(DigitsConfig(**config), tokens_per_image, split)


def digit_of():
    """Map the pixels of every bundled image to the digit it shows."""
    images, digits = bundled()
    return {image.tobytes(): int(digit) for image, digit in zip(images, digits, strict=True)}


def test_bundled_images_are_normalised_and_all_different():
    images, digits = bundled()
    assert images.shape == (BUNDLED_IMAGES, 8, 8) and images.dtype == np.float32
    assert images.mean() == pytest.approx(0, abs=1e-3) and images.std() == pytest.approx(1, abs=1e-3)
    assert images.min() == pytest.approx(-MEAN / STD) and images.max() == pytest.approx((1 - MEAN) / STD)
    assert len(digit_of()) == BUNDLED_IMAGES


@settings(max_examples=60, deadline=None)
@given(
    index=st.integers(0, 2**40),
    seed=st.integers(0, 2**40),
    tokens=st.integers(1, 5),
    mix=st.sampled_from(["uniform", "long_tail"]),
    split=st.sampled_from(["train", "held_out"]),
)
def test_the_text_reads_out_the_images(index, seed, tokens, mix, split):
    source = make(tokens, split, seed=seed, mix=mix)
    sample, info = source.sample(index), source.describe(index)
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    shown = [words[digit_of()[image.tobytes()]] for image in sample.images]
    spoken = " ".join(shown) or "nothing"
    placeholders = "<image> " * (len(shown) * tokens)
    assert decode(sample.input_ids) == f"<bos> {placeholders}reads {spoken} <eos>"
    targets = sample.labels[sample.labels != IGNORE]
    assert decode(targets) == f"{spoken} <eos>"
    assert (info.images, info.tokens, info.targets) == (len(shown), len(sample.input_ids), len(targets))
    assert sample.images.shape == (len(shown), 1, 8, 8) and sample.images.dtype == np.float32
    assert sample.input_ids.dtype == sample.labels.dtype == np.int32


def test_every_label_is_the_next_token():
    for index in range(20):
        sample = make().sample(index)
        at = np.flatnonzero(sample.labels != IGNORE)
        assert np.array_equal(sample.labels[at], sample.input_ids[at + 1])


def test_a_sample_depends_on_seed_split_and_index_only():
    def text(index, **kwargs):
        return make(min_images=6, **kwargs).sample(index).input_ids.tolist()

    reference = text(3)
    assert text(3) == reference
    others = [text(4), text(3, seed=1), text(3, split="held_out")]
    assert reference not in others
    train, held_out = ([make(split=s).describe(i).images for i in range(30)] for s in ("train", "held_out"))
    assert train != held_out


def test_without_pixels_the_text_is_the_same():
    full, bare = make().sample(11), make().sample(11, pixels=False)
    assert bare.images is None and bare.image_count == len(full.images)
    assert np.array_equal(bare.input_ids, full.input_ids) and np.array_equal(bare.labels, full.labels)


def test_describe_looks_at_no_image(monkeypatch):
    def forbidden():
        raise AssertionError("pixels were touched")

    monkeypatch.setattr("hyperparallel.data.digits.bundled", forbidden)
    assert [make().describe(index).images for index in range(50)]


@pytest.mark.parametrize("size", [8, 16, 24])
def test_larger_images_repeat_pixels(size):
    small, large = make(min_images=3).sample(0).images, make(min_images=3, image_size=size).sample(0).images
    step = size // 8
    assert large.shape == (len(small), 1, size, size)
    assert np.array_equal(large, np.kron(small, np.ones((step, step), np.float32)))


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.9])
def test_splits_share_no_image(fraction):
    train, held_out = make(held_out=fraction).pool(), make(split="held_out", held_out=fraction).pool()
    assert sorted([*train, *held_out]) == list(range(BUNDLED_IMAGES))
    assert len(held_out) == round(fraction * BUNDLED_IMAGES)


def test_no_held_out_image_is_drawn_in_train_whatever_the_seed():
    def drawn(split, seed):
        source = make(split=split, seed=seed)
        return {image.tobytes() for index in range(1000) for image in source.sample(index).images}

    held_out = drawn("held_out", 0)
    assert len(held_out) > 300
    assert not held_out & drawn("train", 0) and not held_out & drawn("train", 1)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"mix": "uniform"}, [1 / 7] * 7),
        ({"mix": "long_tail", "max_images": 2}, [1 / 2, 1 / 4, 1 / 4]),
        ({"mix": "long_tail", "min_images": 3, "max_images": 3}, [1.0]),
    ],
)
def test_image_counts_follow_the_mix(config, expected):
    expected = np.array(expected)
    config = DigitsConfig(**config)
    assert image_count_probabilities(config) == pytest.approx(expected)
    counts = np.array([Digits(config, 1).describe(index).images for index in range(3000)])
    share = np.bincount(counts - config.min_images, minlength=len(expected)) / len(counts)
    assert share == pytest.approx(expected, abs=0.03)


def test_long_tail_has_the_mean_and_the_tail_that_its_docstring_says():
    p = image_count_probabilities(DigitsConfig(mix="long_tail"))
    assert p @ np.arange(7) == pytest.approx(1.6, abs=0.05) and p[-1] == pytest.approx(0.13, abs=0.005)


@pytest.mark.parametrize(
    "config",
    [
        {"image_size": 12},
        {"image_size": 0},
        {"min_images": 4, "max_images": 2},
        {"min_images": -1},
        {"held_out": 1.0},
        {"mix": "normal"},
        {"source": "letters"},
        {"colour": True},
    ],
)
def test_wrong_configs_are_refused(config):
    with pytest.raises(ValidationError):
        DigitsConfig(**config)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"tokens_per_image": 0}, "tokens_per_image is 0"),
        ({"split": "test"}, "train, held_out"),
        ({"split": "held_out", "held_out": 0.0}, "held_out is 0.0"),
        ({"split": "held_out", "held_out": 0.0001}, "leaves none"),
    ],
)
def test_wrong_arguments_are_named(kwargs, said):
    with pytest.raises(DataError, match=said):
        make(**kwargs)


def test_placeholders_match_images():
    for index in range(50):
        sample = make(tokens_per_image=3).sample(index)
        assert np.count_nonzero(sample.input_ids == IMAGE) == 3 * sample.image_count
