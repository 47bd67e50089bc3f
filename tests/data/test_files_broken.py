"""The source `files` under real conditions: every kind of bad line and image, and files that change while it runs."""

import numpy as np
import pytest
from files_case import broken_files, corrupted, line, make, save, write_lines
from PIL import Image

from hyperparallel.data import BadSample, StepFeed
from hyperparallel.data.feed import count_skipped, fingerprint
from hyperparallel.errors import DataError

GOOD = "good.png"


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / GOOD)
    return tmp_path


def test_every_kind_of_bad_image_stops_the_job_or_is_skipped(folder):
    said = broken_files(folder)
    lines = [one for name in said for one in (line(GOOD, name), line(GOOD))]
    failing = make(folder, lines, max_pixels=10**6)
    skipping = make(folder, max_pixels=10**6, on_error="skip")
    for number, (name, why) in enumerate(said.items()):
        place = f"train.jsonl, line {2 * number + 1}"
        with pytest.raises(BadSample, match=f"^{place}: image '{name}'.*({why})"):
            failing.sample(2 * number)
        assert skipping.describe(2 * number).images == 1
        assert len(skipping.skipped) == number + 1 and f"image {name!r}" in skipping.skipped[place]
    assert skipping.skipped_before(len(lines)) == set(skipping.skipped)


def test_nothing_but_the_images_of_the_line_is_asked_for(folder):
    # Links may lead out of the folder; a file with a space, or in a folder of its own, is a name like any other.
    elsewhere = save(folder / "elsewhere/b c.png")
    (folder / "images").mkdir()
    (folder / "images/link.png").symlink_to(elsewhere)
    source = make(folder, [line("link.png")], images=str(folder / "images"))
    assert source.sample(0).images.shape == (1, 3, 8, 8)
    source = make(folder, [line("elsewhere/b c.png")])
    assert source.sample(0).images.shape == (1, 3, 8, 8)


def feeds_of(folder, count=1, on_error="skip"):
    """Make the feeds of a rank, one per replica; micro-batches of one sample."""
    return [StepFeed(make(folder, on_error=on_error), 2 * count, 2, count, replica) for replica in range(count)]


def test_lines_count_once_whatever_was_read_ahead_and_whoever_met_them(folder):
    write_lines(folder, [line(GOOD), line("gone.png"), b"{", line(GOOD), line(GOOD), line("gone.png"), line(GOOD)])
    ahead, behind, halves = feeds_of(folder), feeds_of(folder), feeds_of(folder, 2)
    for step in range(5):
        ahead[0].describe(step)
    counts = []
    for step in range(5):
        behind[0].describe(step)
        counts.append(count_skipped(behind, step))
        assert counts[-1] == count_skipped(ahead, step)
        assert fingerprint(ahead, step) == fingerprint(behind, step) < 2**24
    # Sample 1 is in the place of lines 2 and 3, sample 5 in that of line 6.
    assert counts == [2, 2, 3, 3, 3]
    for step in range(3):
        for feed in halves:
            feed.describe(step)
        assert count_skipped(halves, step) == [2, 3, 3][step]
    assert [len(feed.skipped(0)) for feed in halves] == [2, 1]


def test_ranks_with_other_files_have_another_fingerprint(folder):
    write_lines(folder, [line(GOOD), line("late.png"), line(GOOD, say="two two")])
    without = feeds_of(folder)
    numbers = {fingerprint(without, 0)}
    save(folder / "late.png")
    numbers.add(fingerprint(feeds_of(folder), 0))
    write_lines(folder, [line(GOOD), line("late.png", say="three"), line(GOOD, say="two two")])
    numbers.add(fingerprint(feeds_of(folder), 0))
    assert len(numbers) == 3
    assert len({fingerprint(feeds_of(folder), step) for step in range(3)}) > 1


def test_an_image_that_breaks_after_its_check_stops_the_job(folder):
    path = save(folder / "late.jpg", size=(64, 48))
    write_lines(folder, [line(GOOD), line("late.jpg")])
    skipping, failing = make(folder, on_error="skip"), make(folder)
    assert skipping.describe(1).images == 1 and failing.sample(1).image_count == 1
    corrupted(path, lambda data: data[: len(data) // 2])
    with pytest.raises(
        DataError, match=r"line 2: image 'late.jpg' is .*\. It passed the check, so other ranks"
    ) as error:
        skipping.sample(1)
    assert not isinstance(error.value, BadSample) and not skipping.skipped
    with pytest.raises(BadSample, match="line 2: image 'late.jpg' is"):
        failing.sample(1)
    path.unlink()
    with pytest.raises(DataError, match="line 2: image 'late.jpg' is missing: .* passed the check"):
        skipping.sample(1)


def test_a_picture_that_decodes_in_part_is_no_good_picture(folder):
    path = save(folder / "half.jpg", size=(64, 48))
    corrupted(path, lambda data: data[: len(data) // 2] + bytes(len(data) // 2))
    Image.open(path).load()  # zeros are a picture to the decoder
    with pytest.raises(BadSample, match="'half.jpg' is cut off"):
        make(folder, [line("half.jpg")]).sample(0)


def test_trouble_of_the_disk_stops_the_job_and_names_the_line(folder, monkeypatch):
    source = make(folder, [line(GOOD)], on_error="skip")

    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("PIL.Image.open", fail)
    with pytest.raises(DataError, match=r"^train.jsonl, line 1: image 'good.png': .*Input/output error") as error:
        source.describe(0)
    assert not isinstance(error.value, BadSample) and not source.skipped


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_lines_that_change_while_they_are_read_stop_the_job(folder, on_error):
    source = make(folder, [line(say="one"), line(say="two")], on_error=on_error)
    source.describe(0)
    write_lines(folder, [line(say="one"), line(say="six")])
    assert source.describe(2).targets == 2  # what was read is kept
    with pytest.raises(DataError, match="line 2 changed while the file was in use") as error:
        source.describe(1)
    assert not isinstance(error.value, BadSample)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_ends_of_windows_and_a_mark_at_the_beginning(folder, end):
    one = b'{"prompt": "reads", "response": "one"}'
    (folder / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + one + end + end + one.replace(b"one", b"two") + end)
    source = make(folder)
    assert [source.sample(index).input_ids[-2] for index in range(2)] == [7, 8]
    assert source.sample(1).name == "train.jsonl, line 3"
    (folder / "train.jsonl").write_text(one.decode(), encoding="utf-16")
    with pytest.raises(BadSample, match="line 1: is not text in UTF-8; convert it"):
        make(folder).sample(0)


def test_the_pixels_of_a_line_are_checked_once(folder, monkeypatch):
    checked = []
    check = "hyperparallel.data.files.check_image"
    monkeypatch.setattr(check, lambda path, name, most: checked.append(name))
    for on_error in ("fail", "skip"):
        source = make(folder, [line(GOOD, GOOD), line()], on_error=on_error)
        images = [source.sample(index).images for index in (0, 1, 2, 4)]
        assert np.array_equal(images[0], images[2]) and len(images[1]) == 0
    assert checked == [GOOD] * 4
