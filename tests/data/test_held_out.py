"""Held-out samples: each counts once, whatever cuts the batches; what fills a batch counts nothing."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from files_case import line, make, save, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperparallel.data import COLUMNS, IGNORE, Digits, DigitsConfig, HeldOut, ListSource, Sample, StepFeed
from hyperparallel.data.collate import Room
from hyperparallel.errors import DataError

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]


def listed(good):
    """Make a list of as many samples as there are good ones; each has labels and a picture of its own."""
    ids = np.array([1, 3, 4, 13, 2], np.int32)
    numbers = range(max(1, sum(good)))
    return ListSource([Sample(np.full((1, 1, 4, 4), n, np.float32), ids, ids + n, 1) for n in numbers])


def files(good, folder):
    """Write a line for each good one, and one that cannot be used for each other."""
    picture = save(folder / "a.png").name
    lines = [line(*[picture] * (n % 2), say=f"{WORDS[n]} {WORDS[n]}") if one else b"{" for n, one in enumerate(good)]
    write_lines(folder, lines)
    return make(folder, on_error="skip")


def labels_of(source, numbers):
    """Read back the labels of some samples."""
    rows = [source.sample(number, pixels=False).labels for number in numbers]
    return sorted(tuple(row[row != IGNORE].tolist()) for row in rows)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["list", "digits", "files"]),
    good=st.lists(st.booleans(), min_size=1, max_size=8).filter(any),
    asked=st.integers(1, 11),
    micro_batches=st.integers(1, 3),
    replicas=st.integers(1, 3),
    more=st.integers(0, 5),
    room=st.sampled_from([None, Room(images=40, tokens=48)]),
)
def test_every_sample_counts_once_however_batches_are_cut(kind, good, asked, micro_batches, replicas, more, room):
    with tempfile.TemporaryDirectory() as folder:
        if kind == "digits":
            source, own = Digits(DigitsConfig(max_images=3), 4, "held_out"), range(asked)
        elif kind == "list":
            source, own = listed(good), range(min(asked, sum(good)))
        else:
            source = files(good, Path(folder))
            own = [number for number, one in enumerate(good) if one][:asked]
        batch = micro_batches * replicas * (1 + more) if room else micro_batches * replicas + more
        feeds = [
            StepFeed(HeldOut(source, asked), batch, micro_batches, replicas, d, room=room) for d in range(replicas)
        ]
        assert len(feeds[0].source) == len(own)
        seen, images, infos = [], 0, []
        for step in range(math.ceil(len(own) / batch)):
            for feed in feeds:
                infos += feed.describe(step)
                for m in range(micro_batches):
                    made = feed.micro_batch(step, m, COLUMNS)
                    images += int(made["image_mask"].sum())
                    seen += [tuple(row[row != IGNORE].tolist()) for row in made["labels"]]
        read = sorted(row for row in seen if row)
        assert read == labels_of(source, own)
        assert images == sum(info.images for info in infos) == sum(source.describe(n).images for n in own)
        assert sum(info.targets for info in infos) == sum(map(len, read))


def test_a_skipped_line_is_not_counted_and_its_neighbour_not_twice(tmp_path):
    source = files([False, True, False, False, True, True], tmp_path)
    held_out = HeldOut(source, 2)
    assert held_out.numbers == [1, 4] and len(source.skipped) == 3
    assert HeldOut(source, 9).numbers == [1, 4, 5]
    assert [held_out.sample(index).name for index in range(3)] == [
        "train.jsonl, line 2",
        "train.jsonl, line 5",
        "a fill of the last batch",
    ]
    # The stream itself has the next good line in the place of each.
    assert [source.sample(index).name[-1] for index in range(6)] == ["2", "2", "5", "5", "5", "6"]


def test_where_lines_fail_each_is_a_sample_until_it_is_read(tmp_path):
    write_lines(tmp_path, [line(say="one"), b"{", line(say="two")])
    held_out = HeldOut(make(tmp_path), 9)
    assert len(held_out) == 3
    with pytest.raises(DataError, match="line 2: is not JSON"):
        held_out.sample(1)


def test_no_good_line(tmp_path):
    with pytest.raises(DataError, match="none of its 2 lines can be used"):
        HeldOut(files([False, False], tmp_path), 2)
