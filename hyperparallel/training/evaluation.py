"""The held-out samples: read after training, each one once, whatever batches and layouts are."""

from __future__ import annotations

import math
import zlib

import numpy as np

from hyperparallel.cells.transport import Transport
from hyperparallel.data import HeldOut, StepFeed
from hyperparallel.errors import DataError
from hyperparallel.training.build import build_feed
from hyperparallel.training.config import Config
from hyperparallel.training.runners import AnyRunner
from hyperparallel.training.steps import batches


def held_out_feed(config: Config, replica: int = 0) -> StepFeed | None:
    """Build what one replica reads of the held-out samples.

    Args:
        config: `evaluation.samples` of them are wanted; the data may have fewer.
        replica: 0..D-1.

    Raises:
        HyperParallelError: as `build_feed`.
        DataError: none of the samples has a label.

    Returns:
        The feed; None where `evaluation.samples` is 0.
    """
    if config.evaluation.samples == 0:
        return None
    feed = build_feed(config, "held_out", replica)
    samples: HeldOut = feed.source
    if not any(samples.describe(index).targets for index in range(len(samples))):
        raise DataError(
            f"none of the {len(samples)} held-out samples has a label, so there is no loss to report; give them "
            "responses, or set evaluation.samples to 0"
        )
    return feed


def evaluate(runner: AnyRunner, feed: StepFeed, transport: Transport) -> dict[str, float]:
    """Read held-out samples and count those without a single wrong word; every rank of the job calls this.

    With the right words before it given, every word of a sample is predicted right if and only if greedy
    generation reads the whole sample right, so one forward per micro-batch measures exact reading.

    Args:
        runner: of this rank.
        feed: of its replica, from `held_out_feed`.
        transport: the job.

    Raises:
        DataError: ranks read different samples.

    Returns:
        `held_out_loss`, the mean over all labels; `exact`, a share of the samples; and `samples`, their number. Those
        without a label are in none of them.
    """
    _check_equal(feed.source, transport)
    loss = weight = exact = samples = 0.0
    for batch in batches(runner, feed, 0, math.ceil(len(feed.source) / feed.batch_size)):
        result = runner.evaluate(batch)
        loss, weight = loss + result.loss * result.weight, weight + result.weight
        exact, samples = exact + result.metrics["exact"], samples + result.metrics["samples"]
    return {"held_out_loss": loss / weight, "exact": exact / samples, "samples": samples}


def _check_equal(samples: HeldOut, transport: Transport) -> None:
    """Refuse to go on where a rank skips other lines: it would read other batches than the rest, or fewer."""
    own = zlib.crc32(repr((list(samples.numbers), getattr(samples.source, "digest", 0))).encode()) & 0xFFFFFF
    table = np.zeros(transport.size, np.float32)  # which holds 24 bits exactly
    table[transport.rank] = own
    table = transport.sum(table, range(transport.size), "which held-out samples ranks read")
    other = np.flatnonzero(table != table[0])
    if len(other):
        raise DataError(
            f"workers 0 and {other[0]} read different held-out samples; give all of them the same files, and do not "
            "change these while a job runs"
        )
