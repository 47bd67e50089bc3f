"""Loading beside the steps: what is noted, and that a step does not wait for data that are made fast enough."""

import threading
import time

import numpy as np
import pytest

from hyperparallel.data import COLUMNS, ListSource, Sample, StepFeed
from hyperparallel.data.loads import KEPT, Loads

IDS = np.array([1, 3, 4, 13, 2], np.int32)
REQUESTS = {0: ((0, 1), COLUMNS)}


class Slow(ListSource):
    """One sample, which takes long to make; two of them are a step."""

    def __init__(self, seconds):
        super().__init__([Sample(np.zeros((1, 1, 4, 4), np.float32), IDS, IDS, 1)])
        self.seconds = seconds

    def sample(self, index, pixels=True):
        time.sleep(self.seconds / 2)
        return super().sample(index, pixels)


def run(feed, steps, seconds, requests=REQUESTS):
    """Walk through steps that take long; return their spans and what each waited."""
    spans, waits = [], []
    for _ in feed.stream(requests, 0, steps):
        waits.append(feed.loads.waited)
        start = time.perf_counter()
        time.sleep(seconds)
        spans.append((start, time.perf_counter()))
    return spans, waits


def test_data_that_are_made_faster_than_a_step_are_not_waited_for():
    feed = StepFeed(Slow(0.05), 2, 2)
    spans, waits = run(feed, 7, 0.1)
    assert waits[0] > 0.045 and sorted(waits[1:])[len(waits) // 2] < 0.01
    made = {load.step: load for load in feed.loads.made()}
    assert list(made) == list(range(7)) and all(load.end - load.start > 0.045 for load in made.values())
    for step in range(1, 7):  # each was made while an earlier step ran
        assert any(start < made[step].end and made[step].start < end for start, end in spans[:step])


def test_data_that_take_longer_than_a_step_are_waited_for():
    feed = StepFeed(Slow(0.1), 2, 2)
    _, waits = run(feed, 5, 0.05)
    assert sorted(waits)[2] > 0.03
    assert feed.loads.wait_of(4).end - feed.loads.wait_of(4).start == waits[4] and feed.loads.wait_of(5) is None


def test_a_rank_that_reads_no_column_looks_up_sizes_ahead_too():
    class Described(Slow):
        def describe(self, index):
            asked.append(threading.get_ident())
            return super().describe(index)

    asked = []
    feed, other = (StepFeed(Described(0), 4, 2, 2, replica) for replica in (0, 1))
    feed.beside = [other]
    run(feed, 3, 0.0, {})
    assert len(asked) == 12 and threading.get_ident() not in asked
    feed.describe(2), other.describe(2)
    assert len(asked) == 12
    feed.ordered(lambda step: (1, 0)).describe(2)
    assert len(asked) == 14


def test_only_the_last_are_kept_and_what_runs_ends_now():
    loads = Loads()
    assert loads.waited == 0.0 and loads.made() == []
    for step in range(3 * KEPT):
        with loads.making(step), loads.waiting(step):
            pass
    assert [load.step for load in loads.made()] == list(range(2 * KEPT, 3 * KEPT))
    with loads.making(99):
        first, second = (loads.made()[-1] for _ in range(2))
        assert first.step == 99 and first.start == second.start <= first.end < second.end
    with pytest.raises(KeyError), loads.making(100):
        raise KeyError("of the source")
    assert [load.step for load in loads.made()][-2:] == [99, 100]
