"""Put samples together into one micro-batch.

Shape letters: N images · C channels · H, W height and width in pixels · B samples · T padded tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hyperparallel.data.sample import IGNORE, Sample, check_sample
from hyperparallel.errors import DataError

PIXELS = "pixel_values"
MASK = "image_mask"
COLUMNS = (PIXELS, MASK, "input_ids", "labels")


@dataclass(frozen=True)
class Room:
    """Make all micro-batches of one shape, for graphs that are compiled once.

    Args:
        images: every micro-batch has this many, the last ones blank and marked so in `image_mask`.
        tokens: every text is padded to this length.
    """

    images: int
    tokens: int


def collate(
    samples: Sequence[Sample], columns: Sequence[str], pad_to_multiple: int = 8, room: Room | None = None
) -> dict[str, np.ndarray]:
    """Make the asked columns of one micro-batch.

    Images of all samples are concatenated in the order of their texts, so the i-th run of placeholders in
    the micro-batch belongs to image i: images are never cut along the batch axis.

    Args:
        samples: at least one.
        columns: any of `COLUMNS`.
        pad_to_multiple: T is the longest text rounded up to a multiple of this, which limits how many
            shapes are compiled.
        room: fixes N and T instead.

    Returns:
        `pixel_values` (N, C, H, W) float32, `image_mask` (N,) float32 with 1 for an image and 0 for a blank one,
        `input_ids` (B, T) int32 padded on the right with the samples' `pad_id`, `labels` (B, T) int32 padded with
        -100; the asked ones only.

    Raises:
        DataError: an unknown column, images of two sizes, a sample whose images, counts and placeholders
            do not agree, or more images or tokens than there is room for.

    >>> texts = [Sample(None, np.array(ids), np.array(ids)) for ids in ([1, 4, 5, 2], [1, 2])]
    >>> collate(texts, ["input_ids"], pad_to_multiple=4)["input_ids"].tolist()
    [[1, 4, 5, 2], [1, 2, 0, 0]]
    """
    check_columns(columns)
    for number, sample in enumerate(samples):
        check_sample(sample, f"sample {number} of the micro-batch")
    images = sum(sample.image_count for sample in samples)
    length = padded_length((len(sample.input_ids) for sample in samples), pad_to_multiple)
    room = _room(samples, images, room) if room else Room(max(1, images), length)
    makers = {
        PIXELS: lambda: _concatenate(samples, room.images),
        MASK: lambda: (np.arange(room.images) < images).astype(np.float32),
        "input_ids": lambda: _pad([(sample.input_ids, sample.pad_id) for sample in samples], room.tokens),
        "labels": lambda: _pad([(sample.labels, IGNORE) for sample in samples], room.tokens),
    }
    return {column: makers[column]() for column in columns}


def check_columns(columns: Iterable[str]) -> None:
    """Refuse columns that no micro-batch has.

    Raises:
        DataError: names the first unknown column and the known ones.
    """
    for column in columns:
        if column not in COLUMNS:
            raise DataError(f"column {column!r} is unknown; a micro-batch has the columns {', '.join(COLUMNS)}")


def padded_length(lengths: Iterable[int], pad_to_multiple: int) -> int:
    """Round the longest of `lengths` up to a multiple.

    >>> padded_length([3, 9], pad_to_multiple=8)
    16
    """
    return -(-max(lengths) // pad_to_multiple) * pad_to_multiple


def _room(samples: Sequence[Sample], images: int, room: Room) -> Room:
    """Refuse a micro-batch for which the declared room is too small."""
    longest = max(samples, key=lambda sample: len(sample.input_ids))
    if len(longest.input_ids) > room.tokens:
        raise DataError(
            f"{longest.name} has {len(longest.input_ids)} tokens, there is room for {room.tokens}; raise run.max_tokens"
        )
    if images > room.images:
        raise DataError(
            f"a micro-batch of {len(samples)} samples from {samples[0].name} on has {images} images, there is room for "
            f"{room.images}; raise run.max_images"
        )
    return room


def _pad(rows: Sequence[tuple[np.ndarray, int]], length: int) -> np.ndarray:
    padded_BT = np.empty((len(rows), length), np.int32)
    for row, (values, fill) in enumerate(rows):
        padded_BT[row, : len(values)], padded_BT[row, len(values) :] = values, fill
    return padded_BT


def _concatenate(samples: Sequence[Sample], count: int) -> np.ndarray:
    for number, sample in enumerate(samples):
        if sample.images is None and sample.image_count:
            raise DataError(
                f"sample {number} of the micro-batch ({sample.name}): pixel_values needs its "
                f"{sample.image_count} images, but they were left out; make it with pixels=True"
            )
    images = [sample.images for sample in samples if sample.images is not None]
    shapes_CHW = sorted({array.shape[1:] for array in images})
    if not shapes_CHW:
        raise DataError(
            "pixel_values of a micro-batch whose samples all have images=None: the image size is unknown; "
            "give empty images of shape (0, channels, height, width)"
        )
    if len(shapes_CHW) > 1:
        raise DataError(
            f"one micro-batch has images of (channels, height, width) = {shapes_CHW[0]} and {shapes_CHW[1]}; "
            "resize them to one size"
        )
    pixels_NCHW = np.concatenate(images).astype(np.float32, copy=False)
    # Blank images: the encoder never sees an empty batch, so its graph, its messages and the plan stay the same for
    # a text-only micro-batch. No placeholder takes their features, so their gradient is exactly zero.
    blank_NCHW = np.zeros((count - len(pixels_NCHW), *shapes_CHW[0]), np.float32)
    return np.concatenate([pixels_NCHW, blank_NCHW]) if len(blank_NCHW) else pixels_NCHW
