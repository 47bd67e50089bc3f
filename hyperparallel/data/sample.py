"""Samples: what a data source gives, and what must hold for each one.

Shape letters: N images · C channels · H, W height and width in pixels · T tokens of one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hyperparallel.data.vocabulary import IMAGE, PAD
from hyperparallel.errors import DataError

IGNORE = -100
"""The label of a position where nothing is to be predicted."""


class BadSample(DataError):
    """A sample that every rank finds unusable, so that all can skip it alike.

    Args:
        reason: what is wrong, and the move to make.
        place: file and line, where known.
    """

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Sample:
    """Hold the images of one sample and the text around them.

    Args:
        images: `(N, C, H, W)` float32; None if there is none, or if the pixels were not asked for.
        input_ids: `(T,)` int32; each image has `tokens_per_image` consecutive `image_id`, in image order.
        labels: `(T,)` int32, already shifted: `labels[t]` is the token to predict at position t, or -100.
        tokens_per_image: placeholders of one image, >= 1; only a sample without images may leave it 0.
        image_count: N; needed only where `images` is None because the pixels were not asked for.
        name: how error messages call the sample, e.g. `train[17]`.
        pad_id: fills up `input_ids` where texts are put together.
        image_id: the placeholder in `input_ids`; the model's `image_token`.
    """

    images: np.ndarray | None
    input_ids: np.ndarray
    labels: np.ndarray
    tokens_per_image: int = 0
    image_count: int | None = None
    name: str = ""
    pad_id: int = PAD
    image_id: int = IMAGE

    def __post_init__(self) -> None:
        if self.image_count is None:
            object.__setattr__(self, "image_count", 0 if self.images is None else len(self.images))


@dataclass(frozen=True)
class SampleInfo:
    """Give the sizes of one sample: images, tokens of its text, and positions with a label."""

    images: int
    tokens: int
    targets: int


class Source(Protocol):
    """An endless, deterministic stream of samples; every rank sees the same one."""

    def sample(self, index: int, pixels: bool = True) -> Sample:
        """Make sample `index`, any integer >= 0; `pixels=False` may leave `images` None."""

    def describe(self, index: int) -> SampleInfo:
        """Give the sizes of sample `index` without touching its pixels."""


def next_token_labels(input_ids: Sequence[int] | np.ndarray, first_target: int) -> np.ndarray:
    """Make the labels that ask for every token from position `first_target` on.

    Args:
        input_ids: `(T,)` token ids.
        first_target: position in `input_ids` of the first token to predict, 1..T.

    Returns:
        `(T,)` int32: `input_ids` shifted left by one, -100 where nothing is to be predicted.

    >>> next_token_labels([1, 3, 4, 13, 2], first_target=3).tolist()
    [-100, -100, 13, 2, -100]
    """
    labels_T = np.full(len(input_ids), IGNORE, np.int32)
    labels_T[first_target - 1 : -1] = input_ids[first_target:]
    return labels_T


def check_sample(sample: Sample, place: str) -> None:
    """Refuse a sample whose images, counts and placeholders do not agree.

    Args:
        sample: the sample to check.
        place: where it stands, for the message, e.g. `sample 3 of the list`.

    Raises:
        DataError: names the sample and both numbers that should be equal.
    """
    who = f"{place} ({sample.name})" if sample.name else place
    ids_T, labels_T = sample.input_ids, sample.labels
    if ids_T.ndim != 1 or ids_T.shape != labels_T.shape:
        raise DataError(
            f"{who}: input_ids have shape {ids_T.shape} and labels {labels_T.shape}; give one label per "
            f"token, both of shape (tokens,), with {IGNORE} where nothing is to be predicted"
        )
    if sample.images is not None:
        _check_images(sample.images, sample.image_count, who)
    if sample.image_count and sample.tokens_per_image < 1:
        raise DataError(
            f"{who}: {sample.image_count} images but tokens_per_image is {sample.tokens_per_image}; set "
            "tokens_per_image to the number of tokens that the model makes of one image"
        )
    placeholders = int(np.count_nonzero(ids_T == sample.image_id))
    expected = sample.image_count * sample.tokens_per_image
    if placeholders != expected:
        raise DataError(
            f"{who}: {placeholders} <image> placeholders in input_ids, but {sample.image_count} images of "
            f"{sample.tokens_per_image} tokens each need {expected}; give every image its placeholders and "
            "no others"
        )


def _check_images(images_NCHW: np.ndarray, image_count: int, who: str) -> None:
    if images_NCHW.ndim != 4:
        raise DataError(
            f"{who}: images have shape {images_NCHW.shape}; expected (images, channels, height, width), "
            "(1, 1, 8, 8) for one grey image of 8x8 pixels"
        )
    if len(images_NCHW) != image_count:
        raise DataError(
            f"{who}: {len(images_NCHW)} images but image_count is {image_count}; leave image_count out and "
            "the images are counted"
        )
