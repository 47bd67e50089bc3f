"""Lines: found by number, read, and turned into ids."""

import json
import os

import pytest
from files_case import write_lines, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperparallel.data import IGNORE, decode
from hyperparallel.data.lines import Line, LineFile, parse_line, to_ids
from hyperparallel.data.sample import BadSample
from hyperparallel.data.tokens import TokenNames, load_tokens
from hyperparallel.errors import DataError

WORDS = load_tokens("words", TokenNames())


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_lines_are_found_by_number_and_empty_ones_do_not_count(tmp_path, end):
    content = [b"\xef\xbb\xbf" + b'{"a": "\xc3\xa4"}', b"", b"  ", b'{"b": 2}', b"x" * 100_000, b"last"]
    path = tmp_path / "a.jsonl"
    path.write_bytes((end if end == b"\r\n" else b"\n").join(content) + end)
    lines = LineFile(path)
    assert [lines.read(index).strip() for index in (3, 1, 0, 2)] == [b"last", content[3], content[0], content[4]]
    assert len(lines) == 4 and [lines.place(index) for index in (0, 1, 3)] == [
        "a.jsonl, line 1",
        "a.jsonl, line 4",
        "a.jsonl, line 6",
    ]


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), (b"", "has no lines"), (b"\n \n", "has no lines")]
)
def test_files_without_lines_are_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=f"{tmp_path / 'a'}: {said}"):
        LineFile(tmp_path / "a")


def test_the_file_is_not_held(tmp_path):
    path = write_lines(tmp_path, [{"prompt": "x" * 5000, "response": ""}] * 400)
    lines = LineFile(path)
    assert sum(len(part) * part.itemsize for part in (lines._starts, lines._numbers, lines._sums)) == 20 * 400


def test_lines_that_change_are_noticed_and_appended_ones_do_no_harm(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}')
    lines, same = LineFile(path), LineFile(path)
    with path.open("ab") as file:
        file.write(b'\n{"a": 3}\n')
    assert [lines.read(index).strip() for index in (0, 1)] == [b'{"a": 1}', b'{"a": 2}'] and len(lines) == 2
    assert lines.digest == same.digest != LineFile(path).digest
    path.write_bytes(b'{"a": 7}\n{"a": 2}')
    assert lines.read(1) == b'{"a": 2}'
    with pytest.raises(DataError, match="a.jsonl: line 1 changed while the file was in use; leave it alone") as error:
        lines.read(0)
    assert not isinstance(error.value, BadSample)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="line 2 changed while"):
        lines.read(1)
    path.unlink()
    with pytest.raises(DataError, match="a.jsonl: cannot be read any more .No such file"):
        lines.read(1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=4), st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back(pieces, response):
    pieces = [piece.replace("<image>", "") for piece in pieces]
    wanted = Line("<image>".join(pieces), response.replace("<image>", ""), tuple("ab.png" for _ in pieces[1:]))
    for ascii in (True, False):
        values = {"prompt": wanted.prompt, "response": wanted.response, "images": list(wanted.images), "id": 7}
        assert parse_line(json.dumps(values, ensure_ascii=ascii).encode()) == wanted


def test_other_keys_may_hold_anything():
    raw = b'{"prompt": "reads", "response": "", "score": NaN, "weight": 1e999, "of": [{"id": 1}, {"id": 1}]}'
    assert parse_line(raw) == Line("reads", "")


def test_images_may_be_left_out():
    assert parse_line(b'\xef\xbb\xbf{"prompt": "reads", "response": ""}') == Line("reads", "")


BAD = {
    "not JSON": (b'{"prompt": "a", ', "is not JSON"),
    "two objects": (b"{} {}", "is not JSON"),
    "deep": (b"[" * 100_000, "is not JSON"),
    "a key twice": (b'{"prompt": "a", "response": "b", "response": "c"}', "has the key 'response' twice in one object"),
    "a key twice inside": (
        b'{"prompt": "a", "response": "b", "of": [{"x": {"id": 1, "id": 1}}]}',
        "the key 'id' twice",
    ),
    "one key in two spellings": (b'{"prompt": "a", "response": "b", "\\u0070rompt": "c"}', "the key 'prompt' twice"),
    "long number": (b"1" * 10_000, "is not JSON|holds int"),
    "not text": (b'{"prompt": "\xff"}', "UTF-8"),
    "a list": (b"[1]", "holds list; expected an object with 'prompt' and 'response'"),
    "no prompt": (b'{"response": "a"}', "'prompt' is missing; expected a text"),
    "no response": (b'{"prompt": "a"}', "'response' is missing"),
    "a number": (b'{"prompt": "a", "response": 7}', "'response' is 7; expected a text"),
    "half a pair": (b'{"prompt": "\\ud83d", "response": ""}', "surrogate"),
    "one name": (b'{"prompt": "<image>", "response": "", "images": "a.png"}', "'images' is 'a.png'; expected a list"),
    "numbers": (b'{"prompt": "<image>", "response": "", "images": [1]}', "expected a list of file names"),
    "too few": (b'{"prompt": "<image><image>", "response": "", "images": ["a"]}', "has 2 <image> but 'images' names 1"),
    "misspelt": (b'{"prompt": "<image>", "response": "", "image": ["a"]}', "has 1 <image> but 'images' names 0"),
    "in response": (b'{"prompt": "a", "response": "<image>"}', "images belong into the prompt"),
}


@pytest.mark.parametrize(("raw", "said"), BAD.values(), ids=BAD)
def test_wrong_lines_are_refused(raw, said):
    with pytest.raises(BadSample, match=said):
        parse_line(raw)


@pytest.mark.parametrize(
    ("line", "text", "targets"),
    [
        (Line("<image> reads", "two", ("a",)), "<bos> <image> <image> reads two <eos>", "two <eos>"),
        (
            Line("one <image><image> reads <image>", "two one", ("a", "b", "c")),
            "<bos> one <image> <image> <image> <image> reads <image> <image> two one <eos>",
            "two one <eos>",
        ),
        (Line("", "nothing"), "<bos> nothing <eos>", "nothing <eos>"),
        (Line("reads", ""), "<bos> reads <eos>", "<eos>"),
    ],
)
def test_ids_and_labels(line, text, targets):
    ids, labels = to_ids(line, WORDS, tokens_per_image=2)
    assert decode(ids) == text and decode(labels[labels != IGNORE]) == targets
    at = (labels != IGNORE).nonzero()[0]
    assert (labels[at] == ids[at + 1]).all() and ids.dtype == labels.dtype == "int32"


def test_without_bos_a_text_may_begin_with_its_response(tmp_path):
    names = TokenNames(pad="[PAD]", bos=None, eos="[EOS]", image="[IMG]")
    tokens = load_tokens(write_tokenizer(tmp_path), names)
    ids, labels = to_ids(Line("", "cat sat"), tokens, 1)
    assert ids.tolist() == [2, 3, 21] and labels.tolist() == [3, 21, IGNORE]
    ids, labels = to_ids(Line("<image>the", "cat", ("a",)), tokens, 2)
    assert ids.tolist() == [22, 22, 1, 2, 21] and labels.tolist() == [IGNORE, IGNORE, 2, 21, IGNORE]
    with pytest.raises(BadSample, match=r"'the \[IMG\]' makes the image token by itself"):
        to_ids(Line("the [IMG]", "cat"), tokens, 2)


def test_a_word_that_the_tokenizer_does_not_have():
    with pytest.raises(BadSample, match="cannot be encoded: word 0 of 'raeds' .* did you mean 'reads'"):
        to_ids(Line("raeds", ""), WORDS, 1)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_what_has_no_end_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is no regular file; give a file of JSON lines"):
        LineFile(tmp_path / name)


def test_a_name_that_is_too_long_is_no_file(tmp_path):
    """The system refuses even the question whether there is such a file."""
    with pytest.raises(DataError, match="cannot be read .File name too long.; give a file of JSON lines"):
        LineFile(tmp_path / ("x" * 5000))
    with pytest.raises(DataError, match="is not a file; give 'words' or the path of a tokenizer.json"):
        load_tokens("x" * 5000, TokenNames())
