"""Hand each rank the columns its stages need, of the micro-batches they own, and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass

import numpy as np

from hyperparallel.data.collate import PIXELS, Room, check_columns, collate, padded_length
from hyperparallel.data.loads import Loads
from hyperparallel.data.prefetch import prefetch
from hyperparallel.data.sample import Source
from hyperparallel.errors import DataError

Requests = Mapping[int, tuple[Sequence[int], Sequence[str]]]
"""stage -> (its micro-batches, its columns)."""
StepData = dict[int, dict[int, dict[str, np.ndarray]]]
"""stage -> micro-batch -> column -> array."""

_STEPS_KEPT = 64  # whose sizes are remembered: the thread that reads ahead asks for them, then the step itself


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
    takes the d-th contiguous slice of the step, micro-batch m the m-th contiguous slice of that. Where they do not go
    into equal slices the first ones get one sample more.

    Args:
        source: where the samples come from.
        batch_size: samples of one step over all replicas, at least micro_batches * data_parallel.
        micro_batches: M, per replica, >= 1.
        data_parallel: D, >= 1.
        replica: d, 0..D-1: which replica this feed serves.
        pad_to_multiple: texts are padded to a multiple of this many tokens.
        room: makes all micro-batches of one shape instead; they must have equally many samples then.
        first_sample: sample that step 0 begins with, or would: a run that goes on with another batch size may be at a
            step for which this is below 0.

    Raises:
        DataError: a batch that cannot be cut, or a replica outside 0..D-1.
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
        first_sample: int = 0,
    ) -> None:
        _check_cut(batch_size, micro_batches, data_parallel, room is not None)
        if not 0 <= replica < data_parallel:
            raise DataError(f"replica is {replica}; with data_parallel={data_parallel} it is 0..{data_parallel - 1}")
        self.source = source
        self.batch_size = batch_size
        self.micro_batches = micro_batches
        self.data_parallel = data_parallel
        self.replica = replica
        self.pad_to_multiple = pad_to_multiple
        self.room = room
        self.first_sample = first_sample
        self.beside: Sequence[StepFeed] = ()
        """Feeds of other replicas, whose sizes are looked up ahead too because the step asks for them."""
        self.loads = Loads()
        """When the last steps were made and how long they were waited for."""
        self._order: Callable[[int], Sequence[int]] | None = None
        self._sizes: dict[int, list[MicroBatchInfo]] = {}

    def ordered(self, order: Callable[[int], Sequence[int]]) -> StepFeed:
        """Return a feed whose micro-batches come in another order.

        Args:
            order: from a step to, place by place, the number of the micro-batch that goes there: 0..M-1, each once.
        """
        other = copy(self)
        other._order, other._sizes = order, {}
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
        size, more = divmod(self.batch_size, self.micro_batches * self.data_parallel)
        slot = self.replica * self.micro_batches + m
        start = self.first_sample + step * self.batch_size + slot * size + min(slot, more)
        return range(start, start + size + (slot < more))

    def describe(self, step: int) -> list[MicroBatchInfo]:
        """Give the sizes of this replica's M micro-batches of step `step`, without touching a pixel."""
        found = self._sizes.get(step)
        if found is None:
            found = [self._describe(step, m) for m in range(self.micro_batches)]
            if len(self._sizes) >= _STEPS_KEPT:
                self._sizes.clear()
            self._sizes[step] = found
        return found

    def skipped(self, step: int) -> frozenset[str]:
        """Name the lines that this replica skipped up to and with `step`, since this feed began; call `describe` first.

        A source that skips nothing has none.
        """
        before = getattr(self.source, "skipped_before", None)
        return frozenset() if before is None else before(self.first_sample + (step + 1) * self.batch_size)

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

    def load(self, step: int, requests: Requests) -> dict[int, dict[str, np.ndarray]]:
        """Make all that a rank reads in a step, and note how long it took.

        Args:
            step: from 0.
            requests: stage -> (its micro-batches, its columns).

        Returns:
            micro-batch -> column -> array, of those that are read.
        """
        with self.loads.making(step):
            for feed in (self, *self.beside):
                feed.describe(step)
            wanted = columns_by_micro_batch(requests)
            return {m: self.micro_batch(step, m, columns) for m, columns in wanted.items()}

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
        keys = [(m, column) for m, columns in columns_by_micro_batch(requests).items() for column in columns]

        def make_row(step: int) -> tuple[np.ndarray, ...]:
            made = self.load(step, requests)
            return np.array([step]), *(made[m][column] for m, column in keys)

        # MindSpore has no data set without columns, but a rank in the middle of a pipeline reads nothing.
        names = ["step", *(f"{m}.{column}" for m, column in keys)]
        with closing(prefetch(make_row, names, steps)) as rows:
            for step in steps:
                with self.loads.waiting(step):
                    number, *row = next(rows)
                assert number.item() == step, f"row {number} came for step {step}"
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


def count_skipped(feeds: Sequence[StepFeed], step: int) -> int:
    """Count the lines that were skipped up to and with a step; a line that several replicas met counts once.

    Args:
        feeds: one of every replica, whose `describe(step)` was called.
        step: from 0.
    """
    return len(frozenset().union(*(feed.skipped(step) for feed in feeds)))


def fingerprint(feeds: Sequence[StepFeed], step: int) -> int:
    """Sum up what a step reads, so that ranks find out whether they read the same.

    Args:
        feeds: one of every replica.
        step: from 0.

    Returns:
        0..2^24 - 1, which a float32 holds exactly: from the sizes of all micro-batches, the lines skipped so far and
        the content of the source's lines.
    """
    sizes = [feed.describe(step) for feed in feeds]
    skipped = sorted(frozenset().union(*(feed.skipped(step) for feed in feeds)))
    lines = [getattr(feed.source, "digest", 0) for feed in feeds]
    return zlib.crc32(repr((sizes, skipped, lines)).encode()) & 0xFFFFFF


def _check_cut(batch_size: int, micro_batches: int, data_parallel: int, even: bool) -> None:
    if micro_batches < 1 or data_parallel < 1:
        raise DataError(f"micro_batches is {micro_batches} and data_parallel {data_parallel}; both are 1 or more")
    unit = micro_batches * data_parallel
    cut = f"batch_size {batch_size} cannot be cut into {micro_batches} micro-batches on {data_parallel} replicas"
    if batch_size < unit:
        raise DataError(f"{cut}: each needs at least one sample; raise batch_size to {unit} or lower micro_batches")
    if even and batch_size % unit:
        below = batch_size // unit * unit
        raise DataError(
            f"{cut} of one shape, which a graph needs: it must be a multiple of {unit}; the nearest that fit: {below} "
            f"and {below + unit}"
        )
