"""Samples to evaluate on: each one once, and fills that count for nothing after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from hyperparallel.data.sample import IGNORE, Sample, SampleInfo, Source


class DistinctSource(Source, Protocol):
    """A source that knows which of its samples are not another one again."""

    def distinct(self, count: int) -> Sequence[int]:
        """Number the first `count` samples of which none is there twice; fewer, at least 1, where it has no more."""


class HeldOut:
    """Serve the first samples of a source, each once; whatever lies behind them is a fill.

    Steps take whole batches, and a graph batches of one shape. A fill makes the last batch whole and changes no sum: it
    is one token of padding without images and without a label.

    Args:
        source: where the samples come from.
        asked: how many are wanted, at least 1; the source may have fewer.

    Raises:
        DataError: none of the source's samples can be used.

    >>> from hyperparallel.data.list_source import ListSource
    >>> ids = np.array([1, 4, 5, 2], np.int32)
    >>> held_out = HeldOut(ListSource([Sample(None, ids, ids)] * 3), asked=5)
    >>> len(held_out), [held_out.describe(index).targets for index in range(5)]
    (3, [4, 4, 4, 0, 0])
    """

    def __init__(self, source: DistinctSource, asked: int) -> None:
        self.source = source
        self.numbers: Sequence[int] = source.distinct(asked)
        """Of the samples in their source."""
        self._fills: dict[bool, Sample] = {}  # by whether pixels were asked for

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, index: int, pixels: bool = True) -> Sample:
        """Make sample `index`, or a fill where there are no more samples."""
        if index < len(self):
            return self.source.sample(self.numbers[index], pixels)
        if pixels not in self._fills:
            self._fills[pixels] = self._fill(self.source.sample(self.numbers[0], pixels))
        return self._fills[pixels]

    def describe(self, index: int) -> SampleInfo:
        """Give the sizes of sample `index`, or of a fill."""
        if index < len(self):
            return self.source.describe(self.numbers[index])
        return SampleInfo(images=0, tokens=1, targets=0)

    def _fill(self, like: Sample) -> Sample:
        """Make a fill with the ids and the image size of another sample."""
        return replace(
            like,
            images=None if like.images is None else like.images[:0],
            image_count=0,
            input_ids=np.array([like.pad_id], np.int32),
            labels=np.array([IGNORE], np.int32),
            name="a fill of the last batch",
        )
