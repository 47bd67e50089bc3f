"""Samples in memory: wrap around, and lists that are refused."""

import numpy as np
import pytest

from hyperparallel.data import ListSource, Sample, SampleInfo, collate, next_token_labels
from hyperparallel.errors import DataError


def sample(images, size=8, placeholders=None, **kwargs):
    ids = np.array([1, *[3] * (images if placeholders is None else placeholders), 4, 13, 2], np.int32)
    pixels = np.ones((images, 1, size, size), np.float32) if images else None
    return Sample(pixels, ids, next_token_labels(ids, len(ids) - 2), 1, **kwargs)


def test_the_list_goes_round():
    source = ListSource([sample(0), sample(1), sample(2)])
    assert len(source) == 3
    assert [source.describe(index).images for index in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert source.describe(5) == SampleInfo(images=2, tokens=6, targets=2)
    assert source.sample(5) is source.sample(2) and source.sample(5).name == "samples[2]"


def test_a_sample_without_images_learns_their_size_from_the_others():
    source = ListSource([sample(0), sample(1)])
    assert collate([source.sample(0)], ["pixel_values"])["pixel_values"].shape == (1, 1, 8, 8)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([], "empty"),
        ([sample(1), sample(2, placeholders=3)], "sample 1 of the list: 3 <image> .*need 2"),
        ([sample(1, size=8), sample(0), sample(1, size=16)], r"sample 2 .*\(1, 16, 16\), sample 0 of \(1, 8, 8\)"),
        ([sample(0, placeholders=2, image_count=2)], "sample 0 of the list: image_count is 2 but images is None"),
        ([sample(1, pad_id=3)], "sample 0 of the list: pad_id and image_id are both 3"),
        ([sample(1, image_count=2)], "1 images but image_count is 2"),
    ],
)
def test_wrong_lists_are_refused(samples, said):
    with pytest.raises(DataError, match=said):
        ListSource(samples)
