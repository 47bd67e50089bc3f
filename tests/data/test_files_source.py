"""The source `files`: the stream, its order, what is skipped, and when it stops."""

import re
import threading

import numpy as np
import pytest
from files_case import SIZE, line, make, save, write_lines, write_tokenizer
from pydantic import ValidationError

from hyperparallel.data import COLUMNS, Files, FilesConfig, ListSource, SampleInfo, StepFeed, collate
from hyperparallel.data.example import write_example
from hyperparallel.errors import DataError

CUT = "cut.jpg"


@pytest.fixture
def folder(tmp_path):
    """Five good pictures, of which each has its own grey, and one that is cut off."""
    for shade in range(5):
        save(tmp_path / f"{shade}.png", size=(9 + shade, 20 - shade), colour=(51 * shade,) * 3)
    whole = save(tmp_path / CUT, size=(64, 48)).read_bytes()
    (tmp_path / CUT).write_bytes(whole[: len(whole) // 2])
    return tmp_path


def shades(sample):
    """Read back which pictures a sample has."""
    return [round(float(image[0, SIZE // 2, SIZE // 2] / 2 + 0.5) * 5) for image in sample.images]


def responses(source, count):
    """Read back what the first samples say, as numbers."""
    ids = [source.sample(index, pixels=False).input_ids[-2] for index in range(count)]
    return [int(number) - 6 for number in ids]


def numbered(count):
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    return [line(say=words[number]) for number in range(count)]


def test_samples_have_their_images_in_order_and_describe_agrees(folder):
    lines = [line("3.png", "0.png"), line(), line("4.png", "4.png", "1.png", say="one two")]
    source = make(folder, lines, tokens=2)
    assert [shades(source.sample(index)) for index in range(3)] == [[3, 0], [], [4, 4, 1]]
    for index in range(7):
        sample, info = source.sample(index), source.describe(index)
        assert info == SampleInfo(len(sample.images), len(sample.input_ids), np.count_nonzero(sample.labels != -100))
        assert sample.images.dtype == np.float32 and sample.images.shape[1:] == (3, SIZE, SIZE)
        collate([sample], COLUMNS)
    assert len(source) == 3 and source.sample(5).name == "train.jsonl, line 3"


def test_without_pixels_and_to_describe_no_image_is_opened(folder, monkeypatch):
    source = make(folder, [line("3.png", "gone.png")])
    monkeypatch.setattr("PIL.Image.open", lambda *_, **__: pytest.fail("an image was opened"))
    assert source.describe(0) == SampleInfo(images=2, tokens=12, targets=2)
    assert source.sample(0, pixels=False).images is None and source.sample(0, pixels=False).image_count == 2


def test_skipping_makes_no_pixels_to_describe(folder, monkeypatch):
    source = make(folder, [line("gone.png"), line("3.png")], on_error="skip")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("pixels were decoded"))
    assert source.describe(0).images == 1 and len(source.skipped) == 1


def test_an_epoch_has_every_line_once_in_an_order_of_its_own(folder):
    write_lines(folder, numbered(10))
    config = {"shuffle": True, "seed": 5}
    first, second = (make(folder, **config) for _ in range(2))
    stream = responses(first, 30)
    assert responses(second, 30) == stream
    epochs = [stream[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs) and len(set(map(tuple, epochs))) == 3
    assert responses(make(folder, shuffle=True, seed=6), 10) != stream[:10]
    # From anywhere, as after a restart.
    assert [first.sample(index, pixels=False).name for index in (25, 3)] == [
        second.sample(index, pixels=False).name for index in (25, 3)
    ]


def test_held_out_lines_are_read_in_order(folder):
    write_lines(folder, numbered(2))
    held_out = write_lines(folder, numbered(9), "held_out.jsonl")
    source = make(folder, split="held_out", held_out_path=str(held_out), shuffle=True)
    assert responses(source, 12) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]
    with pytest.raises(DataError, match="held_out_path is missing.*evaluation.samples to 0"):
        make(folder, split="held_out")


BAD = {
    "missing image": (line("gone.png"), "image 'gone.png' is missing: .*gone.png does not exist"),
    "broken image": (line("1.png", CUT), "image 'cut.jpg' is (cut off|broken)"),
    "outside": (line("../1.png"), "image '../1.png' is not inside the image folder"),
    "not JSON": (b'{"prompt": ', "is not JSON"),
    "key twice": (b'{"prompt": "reads", "response": "six", "response": "one"}', "has the key 'response' twice in one"),
    "marker": (line("1.png", prompt="reads"), "'prompt' has 0 <image> but 'images' names 1"),
    "too many images": (line(*["1.png"] * 4), "has 4 images, more than max_images = 3"),
    "too long": (line(say="one " * 40), "has 43 tokens, more than max_tokens = 20; raise it"),
    "unknown word": (line(say="elevn"), "cannot be encoded: word 0 of 'elevn'"),
}


@pytest.mark.parametrize(("bad", "said"), BAD.values(), ids=BAD)
def test_bad_lines_fail_with_their_place_or_are_skipped(folder, bad, said):
    lines = [line(say="one"), bad, line("2.png", say="two"), line("4.png", say="three")]
    with pytest.raises(DataError, match=f"^train.jsonl, line 2: .*{said}"):
        make(folder, lines, max_tokens=20).sample(1)
    source = make(folder, max_tokens=20, on_error="skip")
    assert responses(source, 8) == [1, 2, 2, 3] * 2
    assert shades(source.sample(1)) == [2] and source.describe(1).images == 1
    assert list(source.skipped) == ["train.jsonl, line 2"]
    assert re.match(said, source.skipped["train.jsonl, line 2"])


def test_every_rank_skips_alike_whatever_it_reads(folder, caplog):
    lines = [line(f"{n}.png", say=word) for n, word in enumerate(["zero", "one", "two", "three", "four"])]
    lines += [line("gone.png"), line(CUT), line("gone.png"), b"{", line("../1.png")]
    write_lines(folder, lines)
    config = {"on_error": "skip", "shuffle": True}
    everything, pixels_late, sizes = (make(folder, **config) for _ in range(3))
    wanted = [everything.sample(index) for index in range(30)]
    for index in reversed(range(30)):
        info = sizes.describe(index)
        assert (info.images, info.tokens) == (wanted[index].image_count, len(wanted[index].input_ids))
        assert pixels_late.sample(index, pixels=False).name == wanted[index].name
    for index in range(30):
        assert np.array_equal(pixels_late.sample(index).images, wanted[index].images)
    assert everything.skipped == sizes.skipped and len(sizes.skipped) == 5
    # Each is said once, however many feeds of the process meet it.
    assert sum("line 6" in record.message for record in caplog.records) == 1
    assert all(record.message.startswith("skipped train.jsonl, line") for record in caplog.records)


def test_nothing_left_to_read_is_an_error(folder):
    source = make(folder, [line("gone.png"), b"{"], on_error="skip")
    with pytest.raises(DataError, match="none of its 2 lines can be used; train.jsonl, line 1: image 'gone.png'"):
        source.describe(0)


def test_threads_read_the_same(folder):
    source = make(folder, numbered(10) * 30)
    wanted, wrong = responses(source, 300), []
    source._text.cache_clear()

    def read():
        if responses(source, 300) != wanted:
            wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_tokenizer_of_ones_own_pads_with_its_own_id(folder):
    names = {"pad": "[PAD]", "bos": None, "eos": "[EOS]", "image": "[IMG]"}
    lines = [line("1.png", prompt="<image> the", say="cat"), line(prompt="the", say="cat sat sat")]
    config = FilesConfig(
        path=str(write_lines(folder, lines)),
        image_size=SIZE,
        tokenizer=write_tokenizer(folder),
        tokens=names,
        shuffle=False,
    )
    source = Files(config, tokens_per_image=1)
    batch = collate([source.sample(0), source.sample(1)], COLUMNS)
    assert batch["input_ids"].tolist() == [[22, 1, 2, 21, 20, 20, 20, 20], [1, 2, 3, 3, 21, 20, 20, 20]]
    assert batch["labels"][0].tolist() == [-100, 2, 21, -100, -100, -100, -100, -100]
    assert (source.vocabulary_size, source.image_id) == (23, 22)


def test_texts_alone_need_no_image_token(folder):
    names = {"pad": "[PAD]", "bos": None, "eos": "[EOS]"}
    write_lines(folder, [line(prompt="the", say="cat")])
    values = {"path": str(folder / "train.jsonl"), "tokenizer": write_tokenizer(folder), "tokens": names}
    source = Files(FilesConfig(max_images=0, **values), tokens_per_image=1)
    assert source.image_id is None
    assert collate([source.sample(0, pixels=False)], ["input_ids"])["input_ids"][0, :3].tolist() == [1, 2, 21]


def test_a_file_that_changed_is_indexed_anew(folder):
    assert len(make(folder, numbered(3))) == 3
    assert len(make(folder, numbered(9))) == 9


def test_the_example_is_the_digits_task(tmp_path):
    for name in ("a", "b"):
        write_example(tmp_path / name, train=40, held_out=8)
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    kinds = {path.suffix for path in (tmp_path / "a/images").iterdir()}
    assert kinds == {".png", ".jpg"}
    source = make(tmp_path / "a", channels=1)
    counts = [source.sample(index).image_count for index in range(40)]
    assert set(counts) == {0, 1, 2, 3}
    with pytest.raises(DataError, match="cannot be written"):
        write_example(tmp_path / "a/train.jsonl")


def test_a_feed_of_files_equals_that_of_a_list(folder):
    source = make(folder, [line("3.png", "0.png"), line(), line("4.png", say="one two"), line("1.png")])
    listed = ListSource([source.sample(index) for index in range(len(source))])
    requests = {0: ((0, 1), COLUMNS)}
    pairs = zip(*(StepFeed(one, 4, 2).stream(requests, 0, 3) for one in (source, listed)), strict=True)
    for left, right in pairs:
        for m in (0, 1):
            for column in COLUMNS:
                assert np.array_equal(left[0][m][column], right[0][m][column])


@pytest.mark.parametrize(
    ("config", "tokens", "said"),
    [
        ({"path": "gone.jsonl"}, 1, "gone.jsonl: cannot be read .No such file"),
        ({"images": "gone"}, 1, "images = 'gone' is not a folder"),
        ({}, 0, "tokens_per_image is 0"),
        ({"split": "test"}, 1, "the splits are train, held_out"),
        ({"tokenizer": "gone.json"}, 1, "tokenizer = 'gone.json' is not a file"),
    ],
)
def test_what_is_missing_is_named(folder, config, tokens, said):
    with pytest.raises(DataError, match=said):
        make(folder, [line()], tokens=tokens, **config)


def test_missing_pillow_is_named_with_its_extra(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"with Pillow; pip install 'hyperparallel\[files\]'"):
        make(folder, [line()])
    make(folder, [line()], max_images=0)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"path": ""},
        {"path": "a", "channels": 2},
        {"path": "a", "mean": [0.1, 0.2]},
        {"path": "a", "std": 0},
        {"path": "a", "channels": 1, "std": [1, 1, 1]},
        {"path": "a", "mean": float("nan")},
        {"path": "a", "resize": "crop"},
        {"path": "a", "on_error": "ignore"},
        {"path": "a", "max_pixels": 10**9},
        {"path": "a", "source": "digits"},
        {"path": "a", "folder": "b"},
    ],
)
def test_wrong_configs_are_refused(values):
    with pytest.raises(ValidationError):
        FilesConfig(**values)
