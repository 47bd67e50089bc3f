"""Samples held in memory: for tests, and for data of one's own that fits there.

Shape letters: N images · C channels · H, W height and width in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hyperparallel.data.sample import IGNORE, Sample, SampleInfo, check_sample
from hyperparallel.errors import DataError


class ListSource:
    """Serve a list of samples as an endless stream: after the last comes the first again.

    Args:
        samples: at least one; all images of one size. Ids are free; a sample says which of them are padding and
            placeholder, by default those of `data.vocabulary`.

    Raises:
        DataError: no samples, images of two sizes, or a sample whose images, counts and placeholders differ.

    >>> ids = np.array([1, 3, 3, 4, 13, 2], np.int32)
    >>> labels = np.array([-100, -100, -100, 13, 2, -100], np.int32)
    >>> source = ListSource([Sample(np.zeros((1, 1, 8, 8), np.float32), ids, labels, tokens_per_image=2)])
    >>> source.describe(5)
    SampleInfo(images=1, tokens=6, targets=2)
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        if not samples:
            raise DataError("the list of samples is empty; give at least one Sample")
        for number, sample in enumerate(samples):
            check_sample(sample, f"sample {number} of the list")
            if sample.images is None and sample.image_count:
                raise DataError(
                    f"sample {number} of the list: image_count is {sample.image_count} but images is None; "
                    "give the images, this source has nowhere else to read them"
                )
        empty_0CHW = _no_images(samples)
        self._samples = [
            replace(
                sample,
                images=empty_0CHW if sample.images is None else sample.images,
                name=sample.name or f"samples[{number}]",
            )
            for number, sample in enumerate(samples)
        ]
        self._infos = [_info(sample) for sample in samples]

    def __len__(self) -> int:
        return len(self._samples)

    def sample(self, index: int, pixels: bool = True) -> Sample:
        """Give sample `index` modulo the length of the list; the pixels are there anyway."""
        return self._samples[index % len(self._samples)]

    def describe(self, index: int) -> SampleInfo:
        """Give the sizes of sample `index` modulo the length of the list."""
        return self._infos[index % len(self._infos)]

    def distinct(self, count: int) -> range:
        """Number the first `count` samples; fewer where the list ends before."""
        return range(min(count, len(self)))


def _info(sample: Sample) -> SampleInfo:
    targets = int(np.count_nonzero(sample.labels != IGNORE))
    return SampleInfo(sample.image_count, len(sample.input_ids), targets)


def _no_images(samples: Sequence[Sample]) -> np.ndarray | None:
    """Make the empty `(0, C, H, W)` of this list, so that a text-only micro-batch knows its image size."""
    first, shape_CHW = 0, None
    for number, sample in enumerate(samples):
        if sample.images is None:
            continue
        if shape_CHW is None:
            first, shape_CHW = number, sample.images.shape[1:]
        elif sample.images.shape[1:] != shape_CHW:
            raise DataError(
                f"sample {number} of the list has images of (channels, height, width) = "
                f"{sample.images.shape[1:]}, sample {first} of {shape_CHW}; resize them to one size"
            )
    return None if shape_CHW is None else np.zeros((0, *shape_CHW), np.float32)
