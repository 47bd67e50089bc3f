"""The feed: who gets which samples, what is read, and the stream through mindspore.dataset."""

import threading
import time

import mindspore.dataset as ds
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperparallel.data import COLUMNS, IGNORE, PAD, Digits, DigitsConfig, ListSource, Sample, StepFeed
from hyperparallel.data.collate import Room
from hyperparallel.errors import DataError


class Counting:
    """Digits that write down which samples were made, with and without pixels."""

    def __init__(self, **config):
        self.digits = Digits(DigitsConfig(**config), tokens_per_image=4)
        self.rendered, self.read = [], []

    def sample(self, index, pixels=True):
        (self.rendered if pixels else self.read).append(index)
        return self.digits.sample(index, pixels)

    def describe(self, index):
        return self.digits.describe(index)


def same(left, right):
    """Compare nested dicts of arrays, keys, order, types and all."""
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return left.dtype == right.dtype and np.array_equal(left, right)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 30), st.integers(0, 50))
def test_a_step_is_the_same_samples_in_the_same_order_however_it_is_cut(micro_batches, replicas, more, step):
    batch = micro_batches * replicas + more
    feeds = [StepFeed(None, batch, micro_batches, replicas, replica) for replica in range(replicas)]
    seen = [index for feed in feeds for m in range(micro_batches) for index in feed.indices(step, m)]
    assert seen == list(range(step * batch, (step + 1) * batch))
    sizes = [len(feed.indices(step, m)) for feed in feeds for m in range(micro_batches)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100), st.integers(0, 1))
def test_describe_agrees_with_the_batches(step, replica):
    source = Counting()
    feed = StepFeed(source, 12, 3, 2, replica)
    infos = feed.describe(step)
    assert not source.rendered and not source.read
    for m, info in enumerate(infos):
        batch = feed.micro_batch(step, m, COLUMNS)
        assert len(batch["pixel_values"]) == max(1, info.images)
        assert np.count_nonzero(batch["input_ids"] != PAD) == info.tokens
        assert np.count_nonzero(batch["labels"] != IGNORE) == info.targets
        assert batch["input_ids"].size == info.padded_tokens
        assert len(batch["input_ids"]) == info.samples == 2


REQUESTS = {
    "encoder here, texts there": {1: ((1, 3), ("pixel_values",)), 4: ((0, 1, 2, 3), ("input_ids",))},
    "two stages, one micro-batch": {0: ((0,), ("input_ids", "labels")), 7: ((0, 2), ("labels",))},
    "everything": {0: ((0, 1, 2, 3), COLUMNS)},
    "nothing": {5: ((0, 1, 2, 3), ())},
    "no stage": {},
    "no micro-batch": {2: ((), ("labels",)), 3: ((2,), ("labels",))},
}


@pytest.mark.parametrize("requests", REQUESTS.values(), ids=REQUESTS.keys())
def test_the_stream_gives_each_stage_what_it_asked_for(requests):
    feed = StepFeed(Counting(mix="long_tail"), 8, 4)
    expected = [
        {stage: {m: feed.micro_batch(step, m, columns) for m in mbs} for stage, (mbs, columns) in requests.items()}
        for step in range(3, 23)
    ]
    # All rows are kept to the end: none of them may lie in memory that a later row reuses.
    steps = list(feed.stream(requests, 3, 23))
    assert len(steps) == 20
    assert all(same(step, wanted) for step, wanted in zip(steps, expected, strict=True))


def test_shapes_do_change_from_step_to_step():
    stream = StepFeed(Counting(), 4, 2).stream({0: ((0, 1), ("pixel_values", "input_ids"))}, 0, 20)
    shapes = [(mb["pixel_values"].shape, mb["input_ids"].shape) for step in stream for mb in step[0].values()]
    assert len({pixels for pixels, _ in shapes}) > 5 and len({ids for _, ids in shapes}) > 2


def test_only_owned_pixels_are_rendered_and_each_sample_is_made_once():
    source = Counting()
    requests = {1: ((1,), ("pixel_values",)), 4: ((0, 1), ("input_ids",)), 6: ((0, 1), ("labels",))}
    list(StepFeed(source, 12, 3, data_parallel=2, replica=1).stream(requests, 0, 2))
    assert source.rendered == [8, 9, 20, 21]
    assert source.read == [6, 7, 18, 19]


def test_a_stage_without_columns_reads_no_sample():
    source = Counting()
    requests = {1: ((0, 1), ()), 2: ((1,), ("labels",))}
    list(StepFeed(source, 2, 2).stream(requests, 0, 3))
    assert source.read == [1, 3, 5] and not source.rendered


def test_two_streams_at_once_do_not_mix():
    feed = StepFeed(Counting(), 4, 2)
    requests = {0: ((0, 1), COLUMNS)}
    pairs = list(zip(feed.stream(requests, 0, 10), feed.stream(requests, 0, 10), strict=True))
    assert len(pairs) == 10 and all(same(left, right) for left, right in pairs)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 5), (5, 3)])
def test_no_steps_is_an_empty_stream(first, last):
    assert list(StepFeed(Counting(), 4, 2).stream({0: ((0,), COLUMNS)}, first, last)) == []


def test_the_stream_stays_few_steps_ahead_and_stops_when_closed(monkeypatch):
    source = Counting()
    monkeypatch.setattr("hyperparallel.data.prefetch.ROWS_AHEAD", 3)
    before = ds.config.get_prefetch_size()
    stream = StepFeed(source, 1, 1).stream({0: ((0,), COLUMNS)}, 0, 10**6)
    next(stream)
    time.sleep(0.1)
    assert len(source.rendered) <= 6
    assert ds.config.get_prefetch_size() == before
    stream.close()
    made = len(source.rendered)
    time.sleep(0.1)
    assert len(source.rendered) <= made + 1


def test_samples_are_made_on_another_thread():
    threads = set()

    class Source(Counting):
        def sample(self, index, pixels=True):
            threads.add(threading.get_ident())
            return super().sample(index, pixels)

    list(StepFeed(Source(), 2, 1).stream({0: ((0,), COLUMNS)}, 0, 3))
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("bad", [0, 3])
def test_a_wrong_sample_comes_out_as_its_own_error_after_the_steps_before_it(bad):
    class Source(Counting):
        def sample(self, index, pixels=True):
            sample = super().sample(index, pixels)
            if index < bad:
                return sample
            return Sample(sample.images, np.append(sample.input_ids, 3), np.append(sample.labels, 3), 4, name="x")

    stream = StepFeed(Source(), 1, 1).stream({0: ((0,), COLUMNS)}, 0, 10)
    for _ in range(bad):
        next(stream)
    with pytest.raises(DataError, match=r"sample 0 of the micro-batch \(x\)"):
        next(stream)


def test_a_list_source_feeds_too():
    ids = np.array([1, 3, 4, 13, 2], np.int32)
    source = ListSource([Sample(np.full((1, 3, 4, 4), n, np.float32), ids, ids, 1) for n in range(3)])
    steps = list(StepFeed(source, 2, 1).stream({0: ((0,), ("pixel_values",))}, 0, 3))
    order = [step[0][0]["pixel_values"][:, 0, 0, 0].tolist() for step in steps]
    assert order == [[0, 1], [2, 0], [1, 2]]


ROOM = Room(images=4, tokens=8)


@pytest.mark.parametrize(
    ("batch", "cut", "said"),
    [
        (3, (4,), "batch_size 3 cannot be cut into 4 micro-batches on 1 replicas: each needs .* raise batch_size to 4"),
        (3, (2, 2), "2 micro-batches on 2 replicas: each needs at least one sample; raise batch_size to 4 or lower"),
        (0, (4,), "each needs at least one sample"),
        (10, (4, 1, 0, 8, ROOM), "4 micro-batches on 1 .*multiple of 4; the nearest that fit: 8 and 12$"),
        (10, (4, 2, 0, 8, ROOM), "4 micro-batches on 2 replicas.*multiple of 8.* 8 and 16$"),
        (8, (0,), "micro_batches is 0"),
        (8, (2, 2, 2), r"replica is 2.*0\.\.1"),
    ],
)
def test_wrong_cuts_are_answered_with_numbers(batch, cut, said):
    with pytest.raises(DataError, match=said):
        StepFeed(None, batch, *cut)


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ({0: ((0,), ("pixels",))}, "'pixels' is unknown"),
        ({0: ((4,), ("labels",))}, r"micro-batch 4 does not exist.*0\.\.3"),
        ({0: ((-1,), ("labels",))}, "micro-batch -1"),
    ],
)
def test_wrong_requests_are_refused_before_the_first_step(requests, said):
    with pytest.raises(DataError, match=said):
        StepFeed(Counting(), 8, 4).stream(requests, 0, 1)
