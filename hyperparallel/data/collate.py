"""Put samples together into one micro-batch.

Shape letters: N images · C channels · H, W height and width in pixels · B samples · T padded tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hyperparallel.data.sample import IGNORE, Sample, check_sample
from hyperparallel.data.vocabulary import PAD
from hyperparallel.errors import DataError

PIXELS = "pixel_values"
COLUMNS = (PIXELS, "input_ids", "labels")


def collate(samples: Sequence[Sample], columns: Sequence[str], pad_to_multiple: int = 8) -> dict[str, np.ndarray]:
    """Make the asked columns of one micro-batch.

    Images of all samples are concatenated in the order of their texts, so the i-th run of placeholders in
    the micro-batch belongs to image i: images are never cut along the batch axis.

    Args:
        samples: at least one.
        columns: any of `pixel_values`, `input_ids`, `labels`.
        pad_to_multiple: T is the longest text rounded up to a multiple of this, which limits how many
            shapes are compiled.

    Returns:
        `pixel_values` (N, C, H, W) float32, `input_ids` (B, T) int32 padded on the right with `<pad>`,
        `labels` (B, T) int32 padded with -100; the asked ones only.

    Raises:
        DataError: an unknown column, images of two sizes, or a sample whose images, counts and placeholders
            do not agree.

    >>> texts = [Sample(None, np.array(ids), np.array(ids)) for ids in ([1, 4, 5, 2], [1, 2])]
    >>> collate(texts, ["input_ids"], pad_to_multiple=4)["input_ids"].tolist()
    [[1, 4, 5, 2], [1, 2, 0, 0]]
    """
    check_columns(columns)
    for number, sample in enumerate(samples):
        check_sample(sample, f"sample {number} of the micro-batch")
    makers = {
        PIXELS: lambda: _concatenate(samples),
        "input_ids": lambda: _pad([sample.input_ids for sample in samples], PAD, pad_to_multiple),
        "labels": lambda: _pad([sample.labels for sample in samples], IGNORE, pad_to_multiple),
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


def _pad(rows: Sequence[np.ndarray], fill: int, pad_to_multiple: int) -> np.ndarray:
    length = padded_length(map(len, rows), pad_to_multiple)
    padded_BT = np.full((len(rows), length), fill, np.int32)
    for row, values in enumerate(rows):
        padded_BT[row, : len(values)] = values
    return padded_BT


def _concatenate(samples: Sequence[Sample]) -> np.ndarray:
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
    if len(pixels_NCHW):
        return pixels_NCHW
    # A dummy image: the encoder never sees an empty batch, so its graph, its messages and the plan stay the
    # same for a text-only micro-batch. No placeholder takes its features, so its gradient is exactly zero.
    return np.zeros((1, *shapes_CHW[0]), np.float32)
