"""Hand each rank the columns its stages need, of the micro-batches they own, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from hyperparallel.data.collate import PIXELS, Room, check_columns, collate, padded_length
from hyperparallel.data.prefetch import prefetch
from hyperparallel.data.sample import Source
from hyperparallel.errors import DataError

Requests = Mapping[int, tuple[Sequence[int], Sequence[str]]]
"""stage -> (its micro-batches, its columns)."""
StepData = dict[int, dict[int, dict[str, np.ndarray]]]
"""stage -> micro-batch -> column -> array."""


@dataclass(frozen=True)
class MicroBatchInfo:
    """Give the sizes of one micro-batch, known before its step on every rank, without pixels.

    Args:
        images: real images; where it is 0 the encoder still gets one dummy image.
        samples: B.
        tokens: tokens of the texts, padding not counted.
        targets: positions with a label, the weight of the micro-batch in the loss.
        padded_tokens: B * T, what the backbone computes on.
    """

    images: int
    samples: int
    tokens: int
    targets: int
    padded_tokens: int


class StepFeed:
    """Cut an endless stream of samples into steps, replicas and micro-batches.

    Step s takes samples s * batch_size onwards, whatever the number of replicas and micro-batches: replica d
    takes the d-th contiguous slice of the step, micro-batch m the m-th contiguous slice of that.

    Args:
        source: where the samples come from.
        batch_size: samples of one step over all replicas; a multiple of micro_batches * data_parallel.
        micro_batches: M, per replica, >= 1.
        data_parallel: D, >= 1.
        replica: d, 0..D-1: which replica this feed serves.
        pad_to_multiple: texts are padded to a multiple of this many tokens.
        room: makes all micro-batches of one shape instead.

    Raises:
        DataError: a batch that cannot be cut evenly, or a replica outside 0..D-1.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        micro_batches: int,
        data_parallel: int = 1,
        replica: int = 0,
        pad_to_multiple: int = 8,
        room: Room | None = None,
    ) -> None:
        _check_cut(batch_size, micro_batches, data_parallel)
        if not 0 <= replica < data_parallel:
            raise DataError(f"replica is {replica}; with data_parallel={data_parallel} it is 0..{data_parallel - 1}")
        self.source = source
        self.batch_size = batch_size
        self.micro_batches = micro_batches
        self.data_parallel = data_parallel
        self.replica = replica
        self.pad_to_multiple = pad_to_multiple
        self.room = room
        self._order: Callable[[int], Sequence[int]] | None = None

    def ordered(self, order: Callable[[int], Sequence[int]]) -> StepFeed:
        """Return a feed whose micro-batches come in another order.

        Args:
            order: from a step to, place by place, the number of the micro-batch that goes there: 0..M-1, each once.
        """
        other = copy(self)
        other._order = order
        return other

    def indices(self, step: int, m: int) -> range:
        """Give the sample numbers of micro-batch `m` of step `step`, both from 0, for this replica.

        Raises:
            DataError: `m` is not one of the feed's micro-batches.

        >>> StepFeed(None, batch_size=12, micro_batches=3, data_parallel=2, replica=1).indices(step=2, m=0)
        range(30, 32)
        """
        self._check_micro_batch(m)
        if self._order is not None:
            m = self._order(step)[m]
        size = self.batch_size // (self.micro_batches * self.data_parallel)
        start = step * self.batch_size + (self.replica * self.micro_batches + m) * size
        return range(start, start + size)

    def describe(self, step: int) -> list[MicroBatchInfo]:
        """Give the sizes of this replica's M micro-batches of step `step`, without touching a pixel."""
        return [self._describe(step, m) for m in range(self.micro_batches)]

    def micro_batch(self, step: int, m: int, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """Make the asked columns of one micro-batch; pixels are rendered only for `pixel_values`.

        Args:
            step: from 0.
            m: 0..M-1.
            columns: as in `collate`, which also gives the shapes.

        Returns:
            column -> array.

        Raises:
            DataError: an unknown micro-batch or column, or a sample whose numbers do not agree.
        """
        pixels = PIXELS in columns
        samples = [self.source.sample(index, pixels=pixels) for index in self.indices(step, m)]
        return collate(samples, columns, self.pad_to_multiple, self.room)

    def stream(self, requests: Requests, first_step: int, last_step: int) -> Iterator[StepData]:
        """Yield what the stages of one rank read, step by step, made ahead on a background thread.

        Args:
            requests: stage -> (its micro-batches, its columns).
            first_step: the first step to yield.
            last_step: one past the last step to yield, as in `range`.

        Returns:
            An iterator of stage -> micro-batch -> column -> array. Stages that ask for the same column of the
            same micro-batch get the same array: do not write into it.

        Raises:
            DataError: at once for an unknown micro-batch or column, at its step for a sample that is wrong.
        """
        for micro_batches, columns in requests.values():
            check_columns(columns)
            for m in micro_batches:
                self._check_micro_batch(m)
        return self._serve(requests, range(first_step, last_step))

    def _serve(self, requests: Requests, steps: range) -> Iterator[StepData]:
        wanted = columns_by_micro_batch(requests)
        keys = [(m, column) for m, columns in wanted.items() for column in columns]

        def make_row(step: int) -> tuple[np.ndarray, ...]:
            made = {m: self.micro_batch(step, m, columns) for m, columns in wanted.items()}
            return tuple(made[m][column] for m, column in keys)

        # MindSpore has no data set without columns, but a rank in the middle of a pipeline reads nothing.
        rows = prefetch(make_row, [f"{m}.{column}" for m, column in keys], steps) if keys else (() for _ in steps)
        for row in rows:
            arrays = dict(zip(keys, row, strict=True))
            yield {
                stage: {m: {column: arrays[m, column] for column in columns} for m in micro_batches}
                for stage, (micro_batches, columns) in requests.items()
            }

    def _describe(self, step: int, m: int) -> MicroBatchInfo:
        infos = [self.source.describe(index) for index in self.indices(step, m)]
        return MicroBatchInfo(
            images=sum(info.images for info in infos),
            samples=len(infos),
            tokens=sum(info.tokens for info in infos),
            targets=sum(info.targets for info in infos),
            padded_tokens=len(infos)
            * (self.room.tokens if self.room else padded_length((i.tokens for i in infos), self.pad_to_multiple)),
        )

    def _check_micro_batch(self, m: int) -> None:
        if not 0 <= m < self.micro_batches:
            raise DataError(
                f"micro-batch {m} does not exist: this feed has {self.micro_batches}, "
                f"0..{self.micro_batches - 1}; make the feed with the plan's micro_batches"
            )


def columns_by_micro_batch(requests: Requests) -> dict[int, list[str]]:
    """Join what all stages ask of a micro-batch, so that each sample is made once per step."""
    wanted: dict[int, list[str]] = {}
    for micro_batches, columns in requests.values():
        for m in micro_batches:
            known = wanted.setdefault(m, [])
            known.extend(column for column in columns if column not in known)
    return {m: columns for m, columns in sorted(wanted.items()) if columns}


def _check_cut(batch_size: int, micro_batches: int, data_parallel: int) -> None:
    if micro_batches < 1 or data_parallel < 1:
        raise DataError(f"micro_batches is {micro_batches} and data_parallel {data_parallel}; both are 1 or more")
    unit = micro_batches * data_parallel
    if batch_size >= 1 and batch_size % unit == 0:
        return
    above = max(-(-batch_size // unit), 1) * unit
    fitting = [size for size in (above - unit, above) if size > 0]
    raise DataError(
        f"batch_size {batch_size} cannot be cut into {micro_batches} micro-batches on {data_parallel} "
        f"replicas: it must be a multiple of {unit}; the nearest that fit: {' and '.join(map(str, fitting))}"
    )
